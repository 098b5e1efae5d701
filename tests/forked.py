"""Commands in new processes: run to their end, or beside the test."""

import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

LONGEST_SECONDS = 300
Fork = subprocess.Popen[str]


class Forks:
    """Runs commands: arguments of `python` such as `-m` and a module, or `-c` and a program."""

    def run(
        self, *arguments: object, stdout: str | None = None, most: int | None = None, **more: Any
    ) -> "subprocess.CompletedProcess[str]":
        """Run a command to its end, and return its output.

        Args:
            stdout: A file for the output, which is then not returned.
            most: Maximum size of a written file in bytes.
        """
        options: dict[str, Any] = {"timeout": LONGEST_SECONDS, "stderr": subprocess.PIPE} | more
        if most is not None:
            import resource  # Windows has none

            ends = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
            options["preexec_fn"] = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (most, ends))
        with ExitStack() as stack:
            out = subprocess.PIPE if stdout is None else stack.enter_context(open(stdout, "w"))
            return subprocess.run(_command(arguments), stdout=out, text=True, **options)

    @contextmanager
    def start(
        self, *arguments: object, env: Mapping[str, str] | None = None, cwd: Path | None = None
    ) -> Iterator[Fork]:
        """Start a command, and kill it at the end of the block."""
        streams: dict[str, Any] = dict.fromkeys(("stdout", "stderr"), subprocess.PIPE)
        command = _command(arguments)
        with subprocess.Popen(command, text=True, env=env, cwd=cwd, **streams) as process:
            try:
                yield process
            finally:
                process.kill()


def _command(arguments: tuple[object, ...]) -> list[str]:
    return [sys.executable, *map(str, arguments)]
