"""Files that are written completely or not at all."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO
from uuid import uuid4

from lastword.files.system import sync_folder


@contextmanager
def open_whole(path: Path) -> Iterator[BinaryIO]:
    """Open a file for writing that replaces `path` when the block ends.

    If the block or the disk fails, `path` stays as it was. A killed process leaves a temporary file
    beside it, named `.NAME.*.tmp`.
    """
    temporary = path.with_name(f".{path.name}.{uuid4().hex[:8]}.tmp")  # one per writer
    try:
        with open(temporary, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    sync_folder(path.parent)


def write_whole(path: Path, content: bytes) -> None:
    """Write a file completely or not at all."""
    with open_whole(path) as file:
        file.write(content)


def write_text(path: Path, text: str) -> None:
    """Write a UTF-8 file, as `write_whole`."""
    write_whole(path, text.encode())
