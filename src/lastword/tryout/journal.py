"""The journal of labels: an append-only file of JSON lines, each synced to disk when written.

    {"schema": 1, "question": "4f0c...", "rows": {"17": "9a41...", "3": "c0de..."}}
    {"round": 1, "row": "17", "text": "9a41...", "label": "billing", "time": 1790000000.0}
    {"round": 1, "row": "3", "text": "c0de...", "label": null, "time": 1790000004.1}
    {"round": 1, "undo": "3", "time": 1790000006.0}

The first line has the question and the rows of round one. A null label means a skipped row. Rounds
after the first are the looks of the second round.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lastword.errors import InputError
from lastword.files.strict_json import from_json, to_json
from lastword.files.system import BINARY
from lastword.files.writing import write_text
from lastword.model.weights.identity import text_digest

FILE, SCHEMA = "labels.jsonl", 1


class Journal:
    """A file of labels.

    Args:
        path: The file; it is created if it does not exist.
        header: The first line of a new file.

    Attributes:
        header: The first line.
        entries: The other lines, in order. A partial last line, left by a killed process, is
            removed.

    Raises:
        InputError: The file cannot be read or written, or a line is damaged.
    """

    def __init__(self, path: Path, header: dict[str, Any]) -> None:
        try:
            if not path.exists():
                write_text(path, to_json({"schema": SCHEMA} | header) + "\n")
            self._file = os.open(path, os.O_RDWR | os.O_APPEND | BINARY)
            content = path.read_bytes()
            self._size = content.rfind(b"\n") + 1
            # `add` never returned for a partial line, so nobody relies on it.
            os.ftruncate(self._file, self._size)
        except OSError as error:
            raise InputError(f"cannot write {path}: {error.strerror or error}") from error
        self.header, *self.entries = _lines(path, content[: self._size])

    def add(self, entry: dict[str, Any]) -> None:
        """Append a line, and return once it is on the disk.

        Raises:
            OSError: The disk is full or fails. The file is unchanged then.
        """
        line = (to_json(entry) + "\n").encode()
        try:
            rest = memoryview(line)
            while rest:
                rest = rest[os.write(self._file, rest) :]
            os.fsync(self._file)
        except OSError:
            os.ftruncate(self._file, self._size)
            raise
        self._size += len(line)
        self.entries.append(entry)

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)


def row_digest(text: str) -> str:
    """Return the digest of a row's text in the journal: 16 hexadecimal digits of its SHA-256."""
    return text_digest(text)[:16]


def _lines(path: Path, content: bytes) -> Iterator[dict[str, Any]]:
    lines = content.splitlines() or [b""]
    for number, line in enumerate(lines, start=1):
        try:
            value = from_json(line.decode())
        except ValueError:
            value = None
        if not isinstance(value, dict) or (number == 1 and value.get("schema") != SCHEMA):
            raise InputError(
                f"{path}, line {number} is damaged. Restore the file, or choose another folder "
                "with --out"
            )
        yield value
