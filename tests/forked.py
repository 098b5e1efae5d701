"""Commands in processes of their own, forked from one that has imported torch: that takes 3 s.

What is imported beforehand has read its variables by then: transformers and the hub's client have,
and a test that sets theirs asks for forks without them.
"""

import atexit
import json
import os
import resource
import runpy
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

# The largest of what transformers imports of others, and what a command of lastword does.
TORCH = ("torch._dynamo", "torch.distributed.tensor", "scipy.optimize", "sklearn.metrics", "rich")
LASTWORD = (
    "lastword.tracer",
    "lastword.cli",
    "lastword.evaluation.runner",
    "lastword.model.loading",
)
LONGEST_SECONDS = 300


class Forks:
    """Runs commands one after the other, each in a fork of a process that has imported modules."""

    def __init__(self, server: "subprocess.Popen[str]") -> None:
        self._server = server

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
        command = list(map(str, arguments))
        with TemporaryDirectory() as folder:
            streams = [os.devnull, stdout or f"{folder}/out", f"{folder}/err"]
            task = {"command": command, "streams": streams, "most": most}
            task |= {"env": dict(env or os.environ), "cwd": str(cwd or Path.cwd())}
            assert self._server.stdin is not None and self._server.stdout is not None
            print(json.dumps(task), file=self._server.stdin, flush=True)
            code = int(self._server.stdout.readline())
            out, err = ("" if s == stdout else Path(s).read_text() for s in streams[1:])
        return subprocess.CompletedProcess(command, code, out, err)


@contextmanager
def forks(*modules: str) -> Iterator[Forks]:
    """Forks of a process that has imported these modules, until the block ends."""
    command = [sys.executable, __file__, *modules]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as server:
        yield Forks(server)


def _serve() -> None:
    """Fork for every task that comes in, and answer with its exit code."""
    for name in sys.argv[1:]:
        import_module(name)
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            _become(**json.loads(line))
            return
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)


def _become(
    command: list[str], streams: list[str], most: int | None, env: dict[str, str], cwd: str
) -> None:
    """Run a command as a new process would, to the interpreter's own end."""
    signal.alarm(LONGEST_SECONDS)
    os.environ.clear()
    os.environ.update(env)
    os.chdir(cwd)
    for number, path in enumerate(streams):
        os.dup2(os.open(path, os.O_RDWR | os.O_CREAT), number)
    if most is not None:
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
