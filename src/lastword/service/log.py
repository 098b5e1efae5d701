"""Structured logs: one JSON object per line on stderr, by default without prompts.

A separate thread writes the lines, so that no answer waits for whoever reads them. Where nobody
takes them they are dropped and counted, and a line says how many once one is taken again.
"""

import atexit
import json
import os
import threading
import time
import traceback
from typing import Any

_CHARACTERS = 2**24  # of lines that wait to be written
_PAUSE_SECONDS = 0.02  # in which lines gather: waking for each takes time from those who answer
_LAST_SECONDS = 1.0  # for those that wait when the process ends
_TEXTS = frozenset({"prompt", "candidates", "question", "id"})


class Log:
    """Writes events.

    Args:
        stream: Where to, by `write` and `flush`; stderr if not given.
        prompts: Keep the fields that have texts of requests.
        characters: Most that wait to be written; lines beyond them are dropped.

    Attributes:
        dropped: Lines that were not written, since the start.
    """

    dropped = 0

    def __init__(
        self, stream: Any = None, *, prompts: bool = False, characters: int = _CHARACTERS
    ) -> None:
        self._stream = _Stderr() if stream is None else stream
        self._prompts, self._most = prompts, characters
        self._change = threading.Condition()
        self._lines: list[str] = []
        self._waiting = 0  # characters, those in hand too
        self._said = 0  # of the dropped lines, those that a line has told
        threading.Thread(target=self._write, name="lastword-log", daemon=True).start()
        atexit.register(self.flush, _LAST_SECONDS)

    @property
    def losing(self) -> bool:
        """True if the last line that came was not written."""
        return self.dropped > self._said

    def flush(self, seconds: float) -> bool:
        """Wait for what has been said to be written or dropped; True if it is."""
        with self._change:
            return self._change.wait_for(lambda: self._waiting == 0, seconds)

    def event(self, name: str, **fields: Any) -> None:
        """Write one line: the time, the event's name and its fields that are not None."""
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
        """Write an error that nobody expected, with where it came from and not what it was about.

        A message may quote the text of a request, so it is written only where prompts are.
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
            unsaid, lost = dropped - self._said, 0
            notice = [_line("dropped", {"lines": unsaid})] if unsaid else []
            try:
                self._stream.write("".join([*notice, *lines]))
                self._stream.flush()
                self._said = dropped
            except (OSError, ValueError):  # nobody reads, no room, closed
                lost = len(lines)
            with self._change:
                self._waiting -= sum(map(len, lines))
                self.dropped += lost
                self._change.notify_all()
            time.sleep(_PAUSE_SECONDS)


class _Stderr:
    """Standard error past Python's buffers, which would keep what was not taken."""

    def write(self, text: str) -> None:
        rest = memoryview(text.encode())
        while rest:
            rest = rest[os.write(2, rest) :]

    def flush(self) -> None:
        """Nothing is held back."""


def _line(name: str, content: dict[str, Any]) -> str:
    seconds = time.time()
    whole = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))
    stamp = f"{whole}.{int(seconds % 1 * 1000):03d}Z"
    return json.dumps({"time": stamp, "event": name} | content, default=str) + "\n"
