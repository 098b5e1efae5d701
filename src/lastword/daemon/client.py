"""Hand a command over to the warm process, which is started where there is none.

The address is a digest of what a process takes in when it starts (code, interpreter, variables of
libraries), so that a command never meets a process that would answer otherwise than a new one.
"""

import hashlib
import json
import os
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

# What loads one model and is soon done; all others start as they always do.
COMMANDS = frozenset({"correct", "decide", "ask"})
# Variables that are read once, at import or by the loader.
_READ_ONCE = (
    "ATEN CUDA DNNL GOMP HF_ HIP HOME KMP LANG LC_ LD_ MKL NVIDIA OMP ONEDNN PATH PYTHON PYTORCH"
    " ROCR SAFETENSORS TMPDIR TOKENIZERS TORCH TRANSFORMERS TRITON TZ XDG"
).split()
_GREETING_SECONDS = 0.5  # a process that is busy with another command does not greet
_START_SECONDS = 20.0
LENGTH = struct.Struct("!I")
WARM = "--warm-process"  # the argument of the process itself


def wanted(arguments: Sequence[str]) -> bool:
    """Whether a command line is to run in the warm process.

    Raises:
        SystemExit: LASTWORD_DAEMON is neither `auto` nor `off`.
    """
    choice = os.environ.get("LASTWORD_DAEMON") or "off"
    if choice not in ("auto", "off"):
        sys.exit(f"lastword: LASTWORD_DAEMON is auto or off, not {choice}")
    shared = "TORCHELASTIC_RUN_ID" in os.environ or "--engine" in arguments
    return choice == "auto" and not shared and bool(COMMANDS.intersection(arguments[:1]))


def hand_over(arguments: Sequence[str]) -> int | None:
    """Run a command in the warm process, on this one's streams and in its folder.

    Args:
        arguments: What follows `lastword`.

    Returns:
        Its exit code; None where the process is busy or cannot be had, and nothing has run.
    """
    with suppress(OSError):
        with socket.socket(socket.AF_UNIX) as line:
            _connect(line)
            line.settimeout(_GREETING_SECONDS)
            if line.recv(1) != b"+":
                return None
            line.settimeout(None)
            _send(line, arguments)
            return _code(line)
    return None


def _send(line: socket.socket, arguments: Sequence[str]) -> None:
    mask = os.umask(0)
    os.umask(mask)
    task = {"arguments": list(arguments), "folder": os.getcwd(), "mask": mask}
    text = json.dumps(task | {"variables": dict(os.environ)}).encode()
    socket.send_fds(line, [LENGTH.pack(len(text))], [0, 1, 2])
    line.sendall(text)


def _code(line: socket.socket) -> int:
    """The exit code; Ctrl-C is passed on, and the end of this process is one too."""
    while True:
        try:
            answer = line.recv(1)
        except KeyboardInterrupt:
            line.sendall(b"!")
            continue
        except ConnectionError:
            answer = b""
        if not answer:
            sys.exit("lastword: the warm process ended; run it again, or with LASTWORD_DAEMON=off")
        return answer[0]


def _connect(line: socket.socket) -> None:
    """Reach the process, which is started where nobody listens.

    Raises:
        OSError: It does not start.
    """
    path, process = str(address()), None
    latest = time.monotonic() + _START_SECONDS
    while True:
        try:
            return line.connect(path)
        except (FileNotFoundError, ConnectionRefusedError):
            ended = process is not None and process.poll() is not None
            if ended or time.monotonic() > latest:
                raise
        process = process or _start()
        time.sleep(0.01)


def _start() -> "subprocess.Popen[bytes]":
    nothing = subprocess.DEVNULL
    command = [sys.executable, "-m", "lastword", WARM]
    return subprocess.Popen(
        command, stdin=nothing, stdout=nothing, stderr=nothing, start_new_session=True, cwd="/"
    )


def address() -> Path:
    """Where the process of this code and these variables listens, in a folder of the user's own.

    Raises:
        PermissionError: The folder is somebody else's, or others may enter it.
    """
    root = os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()
    folder = Path(root) / f"lastword-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    state = folder.stat(follow_symlinks=False)
    if state.st_uid != os.getuid() or state.st_mode & 0o077 or folder.is_symlink():
        raise PermissionError(f"{folder} is not this user's alone")
    return folder / hashlib.sha256("\0".join(_taken_in()).encode()).hexdigest()[:16]


def _taken_in() -> Iterator[str]:
    """What a process takes in when it starts."""
    yield sys.executable
    yield from sorted(f"{k}={v}" for k, v in os.environ.items() if k.startswith(tuple(_READ_ONCE)))
    package = Path(__file__).parent.parent
    yield from sorted(f"{p}{p.stat().st_mtime_ns}" for p in package.rglob("*.py"))
