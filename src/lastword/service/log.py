"""Structured logs: one JSON object a line on stderr, without prompts unless asked."""

import json
import sys
import threading
import time
import traceback
from typing import Any, Protocol, runtime_checkable


@runtime_checkable
class Stream(Protocol):
    """Where lines go."""

    def write(self, text: str, /) -> int:
        """Take some text."""

    def flush(self) -> None:
        """Let it out."""


class Log:
    """Writes events.

    Args:
        stream: Where to; stderr if not given.
        prompts: Keep the fields named in `TEXTS`.
    """

    TEXTS = frozenset({"prompt", "candidates", "question", "id"})

    def __init__(self, stream: Stream | None = None, *, prompts: bool = False) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._prompts = prompts
        self._lock = threading.Lock()

    def event(self, name: str, **fields: Any) -> None:
        """One line: the time, the event's name and its fields that are not None."""
        content = {
            key: value
            for key, value in fields.items()
            if value is not None and (self._prompts or key not in self.TEXTS)
        }
        line = json.dumps({"time": _now(), "event": name} | content, default=str)
        with self._lock:
            self._stream.write(line + "\n")
            self._stream.flush()

    def failure(self, error: BaseException, **fields: Any) -> None:
        """An error that nobody expected, with where it came from and not what it was about.

        A message may quote the text of a request, so it is written only where prompts are.
        """
        frames = traceback.extract_tb(error.__traceback__)
        places = [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in frames]
        message = str(error) if self._prompts else None
        self.event("failure", error=type(error).__name__, message=message, trace=places, **fields)


def _now() -> str:
    seconds = time.time()
    whole = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))
    return f"{whole}.{int(seconds % 1 * 1000):03d}Z"
