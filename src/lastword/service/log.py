"""Structured logs: one JSON object per line on stderr, without texts of requests.

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
_EXIT_SECONDS = 1.0  # for waiting lines when the process ends


class Log:
    """Writes events to a stream, by default stderr."""

    dropped = 0

    def __init__(self, stream: TextIO | None = None) -> None:
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
        stamp = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        known = {key: value for key, value in fields.items() if value is not None}
        line = json.dumps({"time": stamp, "event": name} | known, default=str)
        try:
            self._lines.put_nowait(f"{line}\n")
        except queue.Full:
            self.dropped += 1

    def failure(self, error: BaseException, **fields: Json) -> None:
        """Write an unexpected error with its traceback, but no message: it may quote a request."""
        frames = traceback.extract_tb(error.__traceback__)
        places = [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in frames]
        self.event("failure", error=type(error).__name__, trace=places, **fields)

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
