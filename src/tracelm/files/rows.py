"""Rows of a file, each with its place: JSON lines, a JSON array, CSV, TSV or Parquet."""

import csv
import io
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tracelm.errors import InputError

STANDARD_INPUT = Path("-")
_DELIMITERS = {".csv": ",", ".tsv": "\t"}
_REST = "more fields than names"


@dataclass(frozen=True)
class Row:
    """One row.

    Attributes:
        place: Where it stands, for people: `line 3`, `row 3`, counted from 1.
        value: What it decodes to; an object in most files.
        error: Why it decodes to nothing; None where it does.
    """

    place: str
    value: Any = None
    error: str | None = None


def read_rows(path: Path) -> list[Row]:
    """Every row of a file, by its ending; what is no table or Parquet is JSON, and `-` is stdin.

    Blank lines are passed over, and a byte-order mark. A cell of CSV and TSV is text, or None.

    Raises:
        InputError: The file cannot be read.
    """
    try:
        if path.suffix.lower() == ".parquet":
            import pyarrow.parquet as pq

            rows = pq.read_table(path).to_pylist()
            return [Row(f"row {n}", value) for n, value in enumerate(rows, start=1)]
        text = _text(path)
        delimiter = _DELIMITERS.get(path.suffix.lower())
        return list(_json(text) if delimiter is None else _table(text, delimiter))
    except (OSError, ValueError, RecursionError, csv.Error) as error:
        raise InputError(f"cannot read {path}: {error}") from error


def is_table(path: Path) -> bool:
    """Whether all that a row of the file holds is text."""
    return path.suffix.lower() in _DELIMITERS


def _text(path: Path) -> str:
    raw = sys.stdin.buffer.read() if path == STANDARD_INPUT else path.read_bytes()
    return raw.decode("utf-8-sig")


def _json(text: str) -> Iterator[Row]:
    if text.lstrip().startswith("["):
        for n, value in enumerate(json.loads(text), start=1):
            yield Row(f"row {n}", value)
        return
    # split("\n"), not splitlines(): U+2028 and its like may stand inside a JSON string.
    for n, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            yield _line(f"line {n}", line)


def _line(place: str, line: str) -> Row:
    try:
        return Row(place, json.loads(line))
    except (ValueError, RecursionError) as error:
        return Row(place, error=f"not JSON: {error}")


def _table(text: str, delimiter: str) -> Iterator[Row]:
    lines = io.StringIO(text, newline="")
    rows = csv.DictReader(lines, delimiter=delimiter, restkey=_REST, strict=True)
    for n, row in enumerate(rows, start=1):
        error = f"{_REST} in the first line" if _REST in row else None
        yield Row(f"row {n}", None if error else row, error)
