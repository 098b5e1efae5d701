"""Structured logs: one JSON object a line on stderr, without prompts unless asked.

Lines are written by a thread of their own, so that no answer waits for whoever reads them. Where
nobody takes them they are dropped and counted, and a line says how many once one is taken again.
"""

import json
import os
import threading
import time
import traceback
import weakref
from typing import Any, Protocol, runtime_checkable

_CHARACTERS = 2**24  # of lines that wait to be written
_PAUSE_SECONDS = 0.02  # in which lines gather: waking for each takes time from those who answer
_LAST_SECONDS = 1.0  # for those that wait when the process ends


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
        characters: Most that wait to be written; lines beyond them are dropped.
    """

    TEXTS = frozenset({"prompt", "candidates", "question", "id"})

    def __init__(
        self,
        stream: Stream | None = None,
        *,
        prompts: bool = False,
        characters: int = _CHARACTERS,
    ) -> None:
        self._prompts = prompts
        self._writer = _Writer(_Stderr() if stream is None else stream, characters)
        weakref.finalize(self, self._writer.end)

    @property
    def dropped(self) -> int:
        """Lines that were not written, since the start."""
        return self._writer.dropped

    @property
    def losing(self) -> bool:
        """Whether the last line that came was not written."""
        return self._writer.losing

    def flush(self, seconds: float) -> bool:
        """Wait for what has been said to be written or dropped; whether it is."""
        return self._writer.flush(seconds)

    def event(self, name: str, **fields: Any) -> None:
        """One line: the time, the event's name and its fields that are not None."""
        content = {
            key: value
            for key, value in fields.items()
            if value is not None and (self._prompts or key not in self.TEXTS)
        }
        self._writer.add(_line(name, content))

    def failure(self, error: BaseException, **fields: Any) -> None:
        """An error that nobody expected, with where it came from and not what it was about.

        A message may quote the text of a request, so it is written only where prompts are.
        """
        frames = traceback.extract_tb(error.__traceback__)
        places = [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in frames]
        message = str(error) if self._prompts else None
        self.event("failure", error=type(error).__name__, message=message, trace=places, **fields)


class _Stderr:
    """Standard error past Python's buffers, which would keep what was not taken."""

    def write(self, text: str) -> int:
        rest = memoryview(text.encode())
        while rest:
            rest = rest[os.write(2, rest) :]
        return len(text)

    def flush(self) -> None:
        """Nothing is held back."""


class _Writer:
    """A thread that writes the lines that wait."""

    def __init__(self, stream: Stream, characters: int) -> None:
        self._stream, self._characters = stream, characters
        self._change = threading.Condition()
        self._lines: list[str] = []
        self._waiting = 0  # characters, those in hand too
        self._ending = False
        self._unsaid = 0
        self.dropped, self.losing = 0, False
        self._thread = threading.Thread(target=self._write, name="lastword-log", daemon=True)
        self._thread.start()

    def add(self, line: str) -> None:
        with self._change:
            if self._waiting + len(line) > self._characters:
                self._lose(1)
                return
            self._lines.append(line)
            self._waiting += len(line)
            self._change.notify_all()

    def flush(self, seconds: float) -> bool:
        with self._change:
            return self._change.wait_for(lambda: self._waiting == 0, seconds)

    def end(self) -> None:
        self.flush(_LAST_SECONDS)
        with self._change:
            self._ending = True
            self._change.notify_all()

    def _lose(self, count: int) -> None:
        self.dropped += count
        self._unsaid += count
        self.losing = True

    def _write(self) -> None:
        while lines := self._next():
            unsaid = self._unsaid
            notice = [_line("dropped", {"lines": unsaid})] if unsaid else []
            try:
                self._stream.write("".join([*notice, *lines]))
                self._stream.flush()
                is_written = True
            except (OSError, ValueError):  # nobody reads, no room, closed
                is_written = False
            with self._change:
                self._waiting -= sum(map(len, lines))
                if is_written:
                    self._unsaid -= unsaid
                    self.losing = self._unsaid > 0
                else:
                    self._lose(len(lines))
                self._change.notify_all()
            time.sleep(_PAUSE_SECONDS)

    def _next(self) -> list[str]:
        """The lines that wait, as soon as any do; none where the end has come."""
        with self._change:
            self._change.wait_for(lambda: self._lines or self._ending)
            lines, self._lines = self._lines, []
            return lines


def _line(name: str, content: dict[str, Any]) -> str:
    return json.dumps({"time": _now(), "event": name} | content, default=str) + "\n"


def _now() -> str:
    seconds = time.time()
    whole = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))
    return f"{whole}.{int(seconds % 1 * 1000):03d}Z"
