"""Starts and calls the side process, and makes sure that it ends.

It runs with vLLM's Python. Of this environment, only lastword and two small pure-Python packages
are on its path. It leads a process group, so that vLLM's workers end with it.
"""

import contextlib
import os
import signal
import subprocess
import tempfile
import threading
from collections.abc import Sequence
from importlib.metadata import distribution
from multiprocessing import Pipe
from pathlib import Path
from typing import Any
from weakref import finalize

from lastword.errors import ModelError

# Packages that the side needs besides lastword: small, and pure Python.
_PACKAGES = ("jaxtyping", "wadler_lindig")
_LOOK_SECONDS = 0.5  # interval for checking that the side is alive while it computes
_LAST_LINES = 12

# vLLM's engine runs in the side process itself, with the model runner that the hooks support. The
# context has one token more than the model's, because vLLM counts the token that it samples.
_SETTINGS = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_USE_V2_MODEL_RUNNER": "0",
    "VLLM_ALLOW_LONG_MAX_MODEL_LEN": "1",
    "VLLM_NO_USAGE_STATS": "1",
}


class SideLostError(ModelError):
    """The side process ended; the message has its last lines."""


class Process:
    """The side process of one model.

    Args:
        python: vLLM's interpreter.
        folders: Temporary folders that the side removes if this process is killed.
    """

    def __init__(self, python: Path, folders: Sequence[str] = ()) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="lastword-vllm-")
        _link_packages(Path(self._folder.name))
        self._log = tempfile.TemporaryFile()
        self._pipe, theirs = Pipe()
        environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
        environment |= {"PYTHONPATH": self._folder.name, "VLLM_LOGGING_LEVEL": "WARNING"}
        arguments = (str(theirs.fileno()), str(os.getpid()), self._folder.name, *folders)
        self._process = subprocess.Popen(
            [python, "-m", "lastword.engines.vllm.side", *arguments],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            env=environment | _SETTINGS,
            start_new_session=True,  # Ctrl-C reaches only this process; the group ends together
        )
        theirs.close()
        self._lock = threading.Lock()
        self.close = finalize(self, _end, self._process, self._folder, self._pipe, self._log)

    @property
    def pid(self) -> int:
        """The process id of the side and of its process group."""
        return self._process.pid

    def call(self, name: str, *arguments: Any) -> Any:
        """Call a function in the side and return its result.

        Raises:
            ModelError: vLLM raised an error; the message has it in one line.
            SideLostError: The side ended.
        """
        with self._lock:
            try:
                self._pipe.send((name, arguments))
                # A pipe does not report that the process at the other end was killed.
                while not self._pipe.poll(_LOOK_SECONDS):
                    if self._process.poll() is not None and not self._pipe.poll(0):
                        raise EOFError
                answer, trouble = self._pipe.recv()
            except (EOFError, OSError) as error:
                raise SideLostError(self._describe_end()) from error
        if trouble is not None:
            raise ModelError(f"vLLM: {' '.join(trouble.split())[:500]}")
        return answer

    def _describe_end(self) -> str:
        """Return how the side ended, with its last lines."""
        _kill(self._process)
        code = self._process.returncode
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        self._log.seek(0)
        lines = self._log.read().decode(errors="replace").splitlines()[-_LAST_LINES:]
        self.close()
        tail = "; its last lines:\n" + "\n".join(lines) if lines else ""
        return f"vLLM's process ended by {how}{tail}"


def _link_packages(folder: Path) -> None:
    """Make links in a folder to the only packages that the side imports from this environment."""
    packages = {"lastword": Path(__file__).parents[2]}
    for name in _PACKAGES:
        package = distribution(name)  # with its metadata, which jaxtyping reads
        tops = {file.parts[0] for file in package.files or () if file.parts[0].startswith(name)}
        packages |= {top: Path(str(package.locate_file(top))) for top in tops}
    for name, place in packages.items():
        (folder / name).symlink_to(place, target_is_directory=True)


def _end(process: "subprocess.Popen[bytes]", folder: Any, *files: Any) -> None:
    _kill(process)
    folder.cleanup()
    for file in files:
        file.close()


def _kill(process: "subprocess.Popen[bytes]") -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
