"""The one way in which a file that must not be half there is written."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO
from uuid import uuid4


@contextmanager
def open_whole(path: Path) -> Iterator[BinaryIO]:
    """Open a file to write, which stands at `path` once the block ends, also after a crash.

    Where the block or the disk fails, `path` is as it was. What a killed process leaves beside it
    is called `.NAME.*.tmp`.

    Raises:
        OSError: The disk is full or refuses.
    """
    temporary = path.with_name(f".{path.name}.{uuid4().hex[:8]}.tmp")  # each writer has its own
    try:
        with open(temporary, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    if os.name == "nt":  # a folder cannot be opened there; the rename is journalled
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
