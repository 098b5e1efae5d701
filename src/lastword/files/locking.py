"""Locks for one writer at a time: a file lock, or an object that its holder renews.

When a process ends, the system releases its file locks; object storage does not. There the holder
renews its object every few seconds, and one that stays the same for `LIFE` is free to be taken. The
object is created only if none exists, and the storage decides this. A holder that was unreachable
for longer may come back and write at the same time as the next one. Both write whole parts, so this
costs work but loses no records.
"""

import logging
import time
from contextlib import suppress
from pathlib import Path
from threading import Event, Thread
from uuid import uuid4

from filelock import FileLock, Timeout
from upath import UPath

from lastword.files.folder import Folder, failures, write_whole

BEAT = 8.0  # seconds between renewals
LIFE = 40.0  # seconds without a renewal after which a lock is free
LOOK = 1.0  # seconds between checks of another holder's lock

_log = logging.getLogger(__name__)


class Lease:
    """A lock on object storage, with the methods of `filelock.FileLock` that are used."""

    def __init__(self, path: UPath) -> None:
        self.path = path
        self._name, self._beats = uuid4().hex, 0
        self._end, self._renewal = Event(), Thread(target=self._renew, name="lease", daemon=True)

    def __str__(self) -> str:
        """Return the location of the lock."""
        return str(self.path)

    def acquire(self, timeout: int = -1) -> None:
        """Take the lock; if another holder renews it, wait unless `timeout` is 0.

        Raises:
            Timeout: Another holder renews it.
        """
        content, since = b"", time.monotonic()
        while not self._create():
            current = self._read()
            if current != content:
                if content and timeout == 0:
                    raise Timeout(str(self.path))
                if timeout == 0:
                    _log.warning("%s is there: seeing for %g s whether it is renewed", self, LIFE)
                content, since = current, time.monotonic()
            elif time.monotonic() - since > LIFE:
                self.path.unlink(missing_ok=True)
                continue
            time.sleep(LOOK)
        self._renewal.start()

    def release(self) -> None:
        """Release the lock."""
        self._end.set()
        self._renewal.join()
        if self._is_ours():
            self.path.unlink(missing_ok=True)

    def __enter__(self) -> "Lease":
        """Wait for the lock, and take it."""
        self.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        """Release the lock."""
        self.release()

    def _create(self) -> bool:
        try:
            self.path.fs.pipe_file(self.path.path, self._content, mode="create")
        except FileExistsError:
            return False
        return True

    def _read(self) -> bytes:
        try:  # in one request, because the object may be renewed between opening and reading
            return bytes(self.path.fs.cat_file(self.path.path))
        except FileNotFoundError:
            return b""

    def _is_ours(self) -> bool:
        return self._read().startswith(self._name.encode())

    @property
    def _content(self) -> bytes:
        return f"{self._name} {self._beats}".encode()

    def _renew(self) -> None:
        while not self._end.wait(BEAT):
            self._beats += 1
            with suppress(*failures()):  # the next renewal may succeed in time
                if self._is_ours():
                    write_whole(self.path, self._content)


Lock = FileLock | Lease


def lock(path: Folder) -> Lock:
    """Return the lock at a path, not yet taken."""
    return FileLock(path) if isinstance(path, Path) else Lease(path)
