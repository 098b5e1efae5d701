"""System: everything that differs between Linux, macOS and Windows."""

import io
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

_ENDING = ("SIGTERM", "SIGINT", "SIGHUP")  # Windows has no SIGHUP


def on_end(loop: "AbstractEventLoop", stop: Callable[[], None]) -> None:
    """Call `stop`, which any thread may call, at each signal that ends a process.

    A signal that the process ignores stays ignored, such as SIGHUP under nohup.
    """
    for number in [getattr(signal, name) for name in _ENDING if hasattr(signal, name)]:
        if signal.getsignal(number) is signal.SIG_IGN:
            continue
        if sys.platform == "win32":  # asyncio takes no handlers there
            signal.signal(number, lambda *_: stop())
        else:
            loop.add_signal_handler(number, stop)


def raise_file_limit() -> None:
    """Let the process open as many files as the system allows; Windows has no such limit."""
    if sys.platform != "win32":
        import resource

        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def sync_folder(folder: Path) -> None:
    """Put a rename in a folder on the disk; Windows opens no folder, and journals the rename."""
    if sys.platform != "win32":
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def write_utf8() -> None:
    """Print UTF-8 on Windows too, where a pipe would get the system's code page."""
    for stream in (sys.stdout, sys.stderr):
        if sys.platform == "win32" and isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8")
