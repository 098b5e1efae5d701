"""The warm process: one command after another, each as a new process would run it."""

import json
import os
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

from lastword.daemon import warm
from lastword.daemon.client import LENGTH, address

IDLE_SECONDS = 900.0


def serve(run: Callable[[], None]) -> None:
    """Run commands as they come, until none has come for `IDLE_SECONDS`.

    Args:
        run: The command line, of `sys.argv`.
    """
    path = address()
    with socket.socket(socket.AF_UNIX) as door:
        if not _listen(door, str(path)):
            return
        warm.keep()
        door.settimeout(IDLE_SECONDS)
        try:
            while True:
                line, _ = door.accept()
                with line, suppress(OSError, KeyboardInterrupt):  # of a client that left
                    _answer(line, run)
        except TimeoutError:
            path.unlink(missing_ok=True)


def _listen(door: socket.socket, path: str) -> bool:
    """Whether the address is this process's now; another may have been started with it."""
    fresh = f"{path}.{os.getpid()}"
    door.bind(fresh)
    os.chmod(fresh, 0o600)
    door.listen(8)
    with socket.socket(socket.AF_UNIX) as other:
        try:
            other.connect(path)
        except OSError:
            os.replace(fresh, path)  # none, or one that was left by a process that is gone
            return True
    os.unlink(fresh)
    return False


def _answer(line: socket.socket, run: Callable[[], None]) -> None:
    """Greet, take a command over, run it, and tell its exit code."""
    line.sendall(b"+")
    head, streams, _, _ = socket.recv_fds(line, LENGTH.size, 3)
    if len(head) < LENGTH.size or len(streams) < 3:
        return
    (size,) = LENGTH.unpack(head)
    task = json.loads(_receive(line, size))
    over = threading.Event()
    signal.signal(signal.SIGINT, partial(_interrupt, over))
    _become(task, streams)
    threading.Thread(target=_watch, args=(line, over), daemon=True).start()
    try:
        code = _code(run)
    finally:
        over.set()
        _leave()
    if code:
        warm.drop()  # an interrupted pass may have left anything
    line.sendall(bytes([code % 256]))


def _receive(line: socket.socket, size: int) -> bytes:
    text = b""
    while len(text) < size:
        piece = line.recv(size - len(text))
        if not piece:
            raise ConnectionError("the client left")
        text += piece
    return text


def _interrupt(over: threading.Event, *_: Any) -> None:
    """End the command, unless it has ended meanwhile."""
    if not over.is_set():
        raise KeyboardInterrupt


def _watch(line: socket.socket, over: threading.Event) -> None:
    """Interrupt the command where the client was interrupted or is gone."""
    main, going = threading.main_thread().ident, True
    assert main is not None
    while going:
        try:
            going = bool(line.recv(1))
        except OSError:
            going = False
        if over.is_set():
            return
        signal.pthread_kill(main, signal.SIGINT)  # which a read of standard input heeds too


def _become(task: dict[str, Any], streams: list[int]) -> None:
    """Take on a client's streams, variables, folder and arguments."""
    for place, stream in enumerate(streams):
        os.dup2(stream, place)
        os.close(stream)
    os.environ.clear()
    os.environ.update(task["variables"])
    os.chdir(task["folder"])
    os.umask(task["mask"])
    sys.argv = ["lastword", *task["arguments"]]
    _open_streams()


def _leave() -> None:
    """Let go of the client's streams and folder."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    nothing = os.open(os.devnull, os.O_RDWR)
    for place in range(3):
        os.dup2(nothing, place)
    os.close(nothing)
    os.chdir("/")


def _open_streams() -> None:
    sys.stdin = open(0, closefd=False)  # noqa: SIM115
    sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, errors="backslashreplace", closefd=False)  # noqa: SIM115


def _code(run: Callable[[], None]) -> int:
    """The exit code that a process of its own would have had."""
    try:
        run()
        sys.stdout.flush()
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        print(end.code, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    except BaseException:
        traceback.print_exc()
        return 1
    return 0
