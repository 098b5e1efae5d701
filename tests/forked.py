"""Commands in processes of their own, forked from one that has imported torch: that takes 5 s.

What is imported beforehand has read its variables by then: transformers and the hub's client have,
and a test that sets theirs asks for forks without them.
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

# The largest of what transformers imports of others, and what a command of lastword does.
TORCH = ("torch._dynamo", "torch.distributed.tensor", "scipy.optimize", "sklearn.metrics", "rich")
LASTWORD = (
    "lastword.decide.tracer",
    "lastword.cli",
    "lastword.lab.evaluation.runner",
    "lastword.model.loading",
)
LONGEST_SECONDS = 300


class Fork:
    """A command that runs beside the test, with what it prints; killed when its block ends.

    Attributes:
        stdout: What it prints, as it comes.
        stderr: The same of its errors.
        returncode: As `subprocess.Popen` has it; None while it was not seen to end.
    """

    def __init__(self, forks: "Forks", pid: int, stdout: IO[str], stderr: IO[str]) -> None:
        self._forks, self._pid = forks, pid
        self.stdout, self.stderr = stdout, stderr
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """The exit code, or None while it runs."""
        if self.returncode is None:
            self.returncode = self._forks.ask(ended=self._pid)
        return self.returncode

    def wait(self, timeout: float = LONGEST_SECONDS) -> int:
        """The exit code, once it has ended."""
        latest = time.monotonic() + timeout
        while (code := self.poll()) is None:
            assert time.monotonic() < latest, "it did not end"
            time.sleep(0.005)
        return code

    def send_signal(self, number: int) -> None:
        """Signal it, where it has not ended."""
        if self.poll() is None:
            os.kill(self._pid, number)

    def kill(self) -> None:
        """Kill it, where it has not ended."""
        self.send_signal(signal.SIGKILL)


class Forks:
    """Runs commands, each in a fork of a process that has imported modules."""

    def __init__(self, server: "subprocess.Popen[str]") -> None:
        self._server = server

    def ask(self, **task: Any) -> Any:
        """What the process of the forks answers to a task."""
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
        """As `subprocess.run` of this Python, with what was printed.

        Args:
            arguments: What follows `python`: `-m` and a module or `-c` and a program, and more.
            env: Variables in place of this process's.
            cwd: The folder in place of this process's.
            stdout: The file that is printed to, in place of one that is read here.
            most: The most bytes of a file.
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
        """A command as `run` takes it, running until the block ends at most."""
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
    """Forks of a process that has imported these modules, until the block ends."""
    command = [sys.executable, __file__, *modules]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as server:
        yield Forks(server)


def _serve() -> None:
    """Fork for every task that comes in, and answer with its exit code, or with its number."""
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
    """The exit code of a fork, or None where it goes on."""
    ended, status = os.waitpid(pid, option)
    return os.waitstatus_to_exitcode(status) if ended else None


def _become(
    command: list[str], streams: list[str], most: int | None, env: dict[str, str], cwd: str
) -> None:
    """Run a command as a new process would, to the interpreter's own end."""
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
        # At the very end coverage writes what it has measured.
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
