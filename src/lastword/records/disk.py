"""Disk access for records: atomic writes, locks, and errors in one line."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from lastword.errors import RecordError, RunLockedError
from lastword.files.writing import write_whole


@contextmanager
def reported(path: Path) -> Iterator[None]:
    """Convert file system errors in the block to a `RecordError` with one line."""
    try:
        yield
    except OSError as error:
        raise RecordError(
            f"cannot write {path}: {error.strerror or error}; the existing records are "
            "complete: free some space or choose another --out, and start again"
        ) from error


def write_durably(path: Path, content: bytes) -> None:
    """Write a file so that after a crash it is complete or does not exist."""
    with reported(path):
        write_whole(path, content)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the folder's lock during the block, so that no other process writes there.

    Raises:
        RunLockedError: Another process holds it.
    """
    file_lock = FileLock(folder / ".lock")
    try:
        acquired = file_lock.acquire(timeout=0)
    except Timeout as error:
        raise RunLockedError(
            f"another process writes to {folder}; wait for it, or share the work by --shard i/n"
        ) from error
    with acquired:
        yield
