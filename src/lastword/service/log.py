"""Structured logs: one JSON object per line on stderr, by default without prompts.

A thread writes the lines, so that no answer waits for a slow reader. Lines that cannot be written
are dropped and counted, and the next line that can be written is preceded by the count.
"""

import atexit
import json
import os
import threading
import time
import traceback
from typing import Any

_CHARACTERS = 2**24  # maximum characters of waiting lines
_PAUSE_SECONDS = 0.02  # lines are written together, because each wake-up delays other threads
_EXIT_SECONDS = 1.0  # for waiting lines when the process ends
_TEXTS = frozenset({"prompt", "candidates", "question", "id"})


class Log:
    """Writes events.

    Args:
        stream: An object with `write` and `flush`; stderr by default.
        prompts: True to log the fields that have texts of requests.
        characters: Maximum characters of waiting lines; further lines are dropped.

    Attributes:
        dropped: Number of dropped lines since the start.
    """

    dropped = 0

    def __init__(
        self, stream: Any = None, *, prompts: bool = False, characters: int = _CHARACTERS
    ) -> None:
        self._stream = _Stderr() if stream is None else stream
        self._prompts, self._most = prompts, characters
        self._change = threading.Condition()
        self._lines: list[str] = []
        self._waiting = 0  # characters of lines that are not written
        self._reported = 0  # number of dropped lines in the last report
        threading.Thread(target=self._write, name="lastword-log", daemon=True).start()
        atexit.register(self.flush, _EXIT_SECONDS)

    @property
    def losing(self) -> bool:
        """True if lines were dropped since the last report."""
        return self.dropped > self._reported

    def flush(self, seconds: float) -> bool:
        """Wait until no line waits; return False after so many seconds."""
        with self._change:
            return self._change.wait_for(lambda: self._waiting == 0, seconds)

    def event(self, name: str, **fields: Any) -> None:
        """Write a line with the time, the event's name, and its fields that are not None."""
        hidden = frozenset() if self._prompts else _TEXTS
        content = {k: v for k, v in fields.items() if v is not None and k not in hidden}
        line = _line(name, content)
        with self._change:
            if self._waiting + len(line) > self._most:
                self.dropped += 1
                return
            self._lines.append(line)
            self._waiting += len(line)
            self._change.notify_all()

    def failure(self, error: BaseException, **fields: Any) -> None:
        """Write an unexpected error with its traceback.

        The message is written only if prompts are, because it may quote a request.
        """
        frames = traceback.extract_tb(error.__traceback__)
        places = [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in frames]
        message = str(error) if self._prompts else None
        self.event("failure", error=type(error).__name__, message=message, trace=places, **fields)

    def _write(self) -> None:
        while True:
            with self._change:
                self._change.wait_for(lambda: self._lines)
                lines, self._lines, dropped = self._lines, [], self.dropped
            unreported, lost = dropped - self._reported, 0
            notice = [_line("dropped", {"lines": unreported})] if unreported else []
            try:
                self._stream.write("".join([*notice, *lines]))
                self._stream.flush()
                self._reported = dropped
            except (OSError, ValueError):  # no reader, a full disk, a closed stream
                lost = len(lines)
            with self._change:
                self._waiting -= sum(map(len, lines))
                self.dropped += lost
                self._change.notify_all()
            time.sleep(_PAUSE_SECONDS)


class _Stderr:
    """Standard error without Python's buffers, which would keep lines that were not written."""

    def write(self, text: str) -> None:
        rest = memoryview(text.encode())
        while rest:
            rest = rest[os.write(2, rest) :]

    def flush(self) -> None:
        """Do nothing: there is no buffer."""


def _line(name: str, content: dict[str, Any]) -> str:
    seconds = time.time()
    whole = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))
    stamp = f"{whole}.{int(seconds % 1 * 1000):03d}Z"
    return json.dumps({"time": stamp, "event": name} | content, default=str) + "\n"
