"""Structured logs: one JSON object per line on stderr, by default without prompts.

A thread writes the lines, so that no answer waits for a slow reader. Lines that cannot be written
are dropped and counted (`lastword_log_lines_dropped`).
"""

import atexit
import io
import json
import queue
import threading
import time
import traceback
from datetime import UTC, datetime
from typing import TextIO

from lastword.service.schema import Json

_LINES = 8192  # maximum number of waiting lines
_CHARACTERS = 2**14  # of a text in a line, so that waiting lines take bounded memory
_EXIT_SECONDS = 1.0  # for waiting lines when the process ends
_TEXTS = frozenset({"prompt", "candidates", "question", "id"})


class Log:
    """Writes events to a stream, by default stderr; with `prompts` also the texts of requests."""

    dropped = 0

    def __init__(self, stream: TextIO | None = None, *, prompts: bool = False) -> None:
        self._prompts = prompts
        self._lines = queue.Queue[str](_LINES)
        if stream is None:
            raw = io.FileIO(2, "w", closefd=False)
            stream = io.TextIOWrapper(raw, encoding="utf-8", write_through=True)
        threading.Thread(target=self._write, args=(stream,), daemon=True).start()
        atexit.register(self.flush, _EXIT_SECONDS)

    def flush(self, seconds: float) -> bool:
        """Wait until no line waits; return False after so many seconds."""
        latest = time.monotonic() + seconds
        while self._lines.unfinished_tasks and time.monotonic() < latest:
            time.sleep(0.005)
        return not self._lines.unfinished_tasks

    def event(self, name: str, **fields: Json) -> None:
        """Write a line with the time, the event's name, and its fields that are not None."""
        hidden = frozenset() if self._prompts else _TEXTS
        stamp = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        content = {"time": stamp, "event": name}
        for key, value in fields.items():
            if value is not None and key not in hidden:
                content[key] = value[:_CHARACTERS] if isinstance(value, str) else value
        try:
            self._lines.put_nowait(json.dumps(content, default=str) + "\n")
        except queue.Full:
            self.dropped += 1

    def failure(self, error: BaseException, **fields: Json) -> None:
        """Write an unexpected error with its traceback.

        The message is written only if prompts are, because it may quote a request.
        """
        frames = traceback.extract_tb(error.__traceback__)
        places = [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in frames]
        message = str(error) if self._prompts else None
        self.event("failure", error=type(error).__name__, message=message, trace=places, **fields)

    def _write(self, stream: TextIO) -> None:
        while True:
            line = self._lines.get()
            try:
                stream.write(line)
                stream.flush()
            except (OSError, ValueError):  # no reader, a full disk, a closed stream
                self.dropped += 1
            finally:
                self._lines.task_done()
