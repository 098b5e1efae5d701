"""The system under the service: its signals and its limit of open files."""

import asyncio
import signal
import sys
from collections.abc import Callable

_ENDING = ("SIGTERM", "SIGINT", "SIGHUP")  # Windows has no SIGHUP


def on_end(loop: asyncio.AbstractEventLoop, stop: Callable[[], None]) -> None:
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
