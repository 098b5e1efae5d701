"""Structured logs: one JSON object per line on stderr, by default without prompts.

A thread writes the lines, so that no answer waits for a slow reader. Lines that cannot be written
are dropped and counted (`lastword_log_lines_dropped`).
"""

import atexit
import json
import logging
import os
import queue
import time
import traceback
from logging.handlers import QueueHandler, QueueListener
from typing import Any

_LINES = 8192  # maximum number of waiting lines
_CHARACTERS = 2**14  # of a text in a line, so that waiting lines take bounded memory
_EXIT_SECONDS = 1.0  # for waiting lines when the process ends
_TEXTS = frozenset({"prompt", "candidates", "question", "id"})


class Log:
    """Writes events.

    Args:
        stream: An object with `write` and `flush`; stderr by default.
        prompts: True to log the fields that have texts of requests.
        lines: Maximum number of waiting lines; further lines are dropped.

    Attributes:
        dropped: Number of dropped lines since the start.
    """

    dropped = 0

    def __init__(self, stream: Any = None, *, prompts: bool = False, lines: int = _LINES) -> None:
        self._prompts = prompts
        self._stream = _Stderr() if stream is None else stream
        self._waiting: queue.Queue[Any] = queue.Queue(lines)
        self._handler = QueueHandler(self._waiting)
        self._handler.handleError = self._drop  # type: ignore[method-assign]
        writer = logging.Handler()
        writer.emit = self._write  # type: ignore[method-assign]
        self._listener = QueueListener(self._waiting, writer)
        self._listener.start()
        atexit.register(self.flush, _EXIT_SECONDS)

    def flush(self, seconds: float) -> bool:
        """Wait until no line waits; return False after so many seconds."""
        latest = time.monotonic() + seconds
        while self._waiting.unfinished_tasks and time.monotonic() < latest:
            time.sleep(0.005)
        return not self._waiting.unfinished_tasks

    def event(self, name: str, **fields: Any) -> None:
        """Write a line with the time, the event's name, and its fields that are not None."""
        hidden = frozenset() if self._prompts else _TEXTS
        content = {k: _short(v) for k, v in fields.items() if v is not None and k not in hidden}
        self._handler.handle(logging.makeLogRecord({"msg": _line(name, content)}))

    def failure(self, error: BaseException, **fields: Any) -> None:
        """Write an unexpected error with its traceback.

        The message is written only if prompts are, because it may quote a request.
        """
        frames = traceback.extract_tb(error.__traceback__)
        places = [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in frames]
        message = str(error) if self._prompts else None
        self.event("failure", error=type(error).__name__, message=message, trace=places, **fields)

    def _drop(self, record: logging.LogRecord) -> None:
        self.dropped += 1

    def _write(self, record: logging.LogRecord) -> None:
        try:
            self._stream.write(record.msg)
            self._stream.flush()
        except (OSError, ValueError):  # no reader, a full disk, a closed stream
            self.dropped += 1


class _Stderr:
    """Standard error without Python's buffers, which would keep lines that were not written."""

    def write(self, text: str) -> None:
        rest = memoryview(text.encode())
        while rest:
            rest = rest[os.write(2, rest) :]

    def flush(self) -> None:
        """Do nothing: there is no buffer."""


def _short(value: Any) -> Any:
    return value[:_CHARACTERS] if isinstance(value, str) else value


def _line(name: str, content: dict[str, Any]) -> str:
    seconds = time.time()
    whole = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))
    stamp = f"{whole}.{int(seconds % 1 * 1000):03d}Z"
    return json.dumps({"time": stamp, "event": name} | content, default=str) + "\n"
