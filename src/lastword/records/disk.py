"""The disk under the records: what stands whole, who may write, and one line where it refuses."""

from collections.abc import Iterator
from contextlib import contextmanager

from filelock import Timeout

from lastword.errors import RecordError, RunLockedError
from lastword.files import locking
from lastword.files.folder import Folder, failures, reason, write_whole
from lastword.files.locking import Lock


@contextmanager
def reported(path: Folder) -> Iterator[None]:
    """An error of the file system as a `RecordError` in one line."""
    try:
        yield
    except failures() as error:
        raise RecordError(
            f"cannot write {path}: {reason(error)}; the records that are there are "
            "whole: make room or choose another --out, and start again"
        ) from error


def write_durably(path: Folder, content: bytes) -> None:
    """A file that is there whole or not at all, also after a crash.

    Raises:
        RecordError: The disk is full or refuses.
    """
    with reported(path):
        write_whole(path, content)


def lock(folder: Folder) -> Lock:
    """The folder's lock, held; it is free soon after the process ends, however it ends.

    Raises:
        RunLockedError: Another process holds it.
    """
    own = locking.lock(folder / ".lock")
    try:
        own.acquire(timeout=0)
    except Timeout as error:
        raise RunLockedError(
            f"another process writes to {folder}; wait for it, or share the work by --shard i/n"
        ) from error
    return own


@contextmanager
def locked(folder: Folder) -> Iterator[None]:
    """A block in which nobody else writes to the folder."""
    own = lock(folder)
    try:
        yield
    finally:
        own.release()
