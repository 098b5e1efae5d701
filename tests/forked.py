"""Commands in new processes, forked from one that has imported torch, since that takes 5 s.

Modules that are imported before the fork have already read their environment variables. A test that
sets variables of transformers or of the hub's client needs forks without these modules.
"""

import atexit
import json
import os
import runpy
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, Any

# The slowest imports of transformers, and the modules that commands of lastword import.
TORCH = ("torch._dynamo", "torch.distributed.tensor", "scipy.optimize", "sklearn.metrics", "rich")
LASTWORD = (
    "lastword.decide.tracer",
    "lastword.cli",
    "lastword.lab.evaluation.runner",
    "lastword.model.loading",
)
LONGEST_SECONDS = 300


class Fork:
    """A command that runs next to the test; it is killed at the end of its block.

    Attributes:
        stdout: A pipe of its output.
        stderr: A pipe of its errors.
        returncode: As in `subprocess.Popen`; None until `poll` or `wait` sees the end.
    """

    def __init__(self, forks: "Forks", pid: int, stdout: IO[str], stderr: IO[str]) -> None:
        self._forks, self._pid = forks, pid
        self.stdout, self.stderr = stdout, stderr
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Return the exit code, or None while it runs."""
        if self.returncode is None:
            self.returncode = self._forks.ask(ended=self._pid)
        return self.returncode

    def wait(self, timeout: float = LONGEST_SECONDS) -> int:
        """Wait for its end, and return the exit code."""
        latest = time.monotonic() + timeout
        while (code := self.poll()) is None:
            assert time.monotonic() < latest, "the command did not end"
            time.sleep(0.005)
        return code

    def send_signal(self, number: int) -> None:
        """Send a signal unless it has ended."""
        if self.poll() is None:
            os.kill(self._pid, number)

    def kill(self) -> None:
        """Kill it unless it has ended."""
        self.send_signal(signal.SIGKILL)


class Forks:
    """Runs commands, each in a fork of a process that has imported modules."""

    def __init__(self, server: "subprocess.Popen[str]") -> None:
        self._server = server

    def ask(self, **task: Any) -> Any:
        """Send a task to the server, and return its answer."""
        assert self._server.stdin is not None and self._server.stdout is not None
        print(json.dumps(task), file=self._server.stdin, flush=True)
        return json.loads(self._server.stdout.readline())

    def run(
        self,
        *arguments: object,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        stdout: str | None = None,
        most: int | None = None,
    ) -> "subprocess.CompletedProcess[str]":
        """Run a command to its end, as `subprocess.run` does, and return its output.

        Args:
            arguments: Arguments of `python`: `-m` and a module or `-c` and a program, and more.
            env: Environment variables; those of this process by default.
            cwd: The working directory; that of this process by default.
            stdout: A file for the output, which is then not returned.
            most: Maximum size of a written file in bytes.
        """
        with TemporaryDirectory() as folder:
            streams = [os.devnull, stdout or f"{folder}/out", f"{folder}/err"]
            task = _task(arguments, streams, env, cwd) | {"most": most}
            code = self.ask(**task, wait=True)
            out, err = ("" if s == stdout else Path(s).read_text() for s in streams[1:])
        return subprocess.CompletedProcess(task["command"], code, out, err)

    @contextmanager
    def start(
        self, *arguments: object, env: Mapping[str, str] | None = None, cwd: Path | None = None
    ) -> Iterator[Fork]:
        """Start a command with the arguments of `run`, and kill it at the end of the block."""
        with TemporaryDirectory() as folder:
            streams = [f"{folder}/out", f"{folder}/err"]
            for stream in streams:
                os.mkfifo(stream)
            task = _task(arguments, [os.devnull, *streams], env, cwd) | {"most": None}
            pid = self.ask(**task, wait=False)
            with open(streams[0]) as stdout, open(streams[1]) as stderr:
                fork = Fork(self, pid, stdout, stderr)
                try:
                    yield fork
                finally:
                    fork.kill()
                    fork.wait()


def _task(
    arguments: tuple[object, ...],
    streams: list[str],
    env: Mapping[str, str] | None,
    cwd: Path | None,
) -> dict[str, Any]:
    task = {"command": list(map(str, arguments)), "streams": streams}
    return task | {"env": dict(env or os.environ), "cwd": str(cwd or Path.cwd())}


@contextmanager
def forks(*modules: str) -> Iterator[Forks]:
    """Start a server that imports modules and forks commands until the block ends."""
    command = [sys.executable, __file__, *modules]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as server:
        yield Forks(server)


def _serve() -> None:
    """Fork for every task, and answer with the exit code or the process id."""
    for name in sys.argv[1:]:
        import_module(name)
    for line in sys.stdin:
        task = json.loads(line)
        if "ended" in task:
            answer = _code(task["ended"], os.WNOHANG)
        else:
            wait = task.pop("wait")
            pid = os.fork()
            if pid == 0:
                _become(**task)
                return
            answer = _code(pid) if wait else pid
        print(json.dumps(answer), flush=True)


def _code(pid: int, option: int = 0) -> int | None:
    """Return the exit code of a fork, or None if it still runs."""
    ended, status = os.waitpid(pid, option)
    return os.waitstatus_to_exitcode(status) if ended else None


def _become(
    command: list[str], streams: list[str], most: int | None, env: dict[str, str], cwd: str
) -> None:
    """Run a command as a new process would, to the end of the interpreter."""
    signal.alarm(LONGEST_SECONDS)
    os.environ.clear()
    os.environ.update(env)
    os.chdir(cwd)
    for number, path in enumerate(streams):
        way = os.O_RDONLY if number == 0 else os.O_WRONLY
        os.dup2(os.open(path, way | os.O_CREAT), number)
    if most is not None:
        import resource  # Windows has none

        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, before[1]))
        # coverage writes its data at exit.
        atexit.register(resource.setrlimit, resource.RLIMIT_FSIZE, before)
    kind, what, *rest = command
    sys.path[0], sys.argv = cwd, [what, *rest]
    if kind == "-m":
        runpy.run_module(what, run_name="__main__", alter_sys=True)
    else:
        names: dict[str, Any] = {"__name__": "__main__"}
        exec(what, names)


if __name__ == "__main__":
    _serve()
