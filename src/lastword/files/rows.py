"""Rows of a file, each with its place: JSON lines, a JSON array, CSV, TSV or Parquet."""

import codecs
import csv
import io
import json
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lastword.errors import InputError

STANDARD_INPUT = Path("-")
LINE_BYTES = 2**24  # of JSON, far more than an item that a model can read
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

    Blank lines are passed over, and a byte-order mark. A cell of CSV and TSV is text, or None. A
    line of JSON beyond 16 MiB is an error of its own, and never all in memory.

    Raises:
        InputError: The file cannot be read.
    """
    try:
        if path.suffix.lower() == ".parquet":
            return [Row(f"row {n}", value) for n, value in enumerate(_parquet(path), start=1)]
        delimiter = _DELIMITERS.get(path.suffix.lower())
        with _opened(path) as file:
            return list(_json(file) if delimiter is None else _table(file, delimiter))
    except (OSError, ValueError, RecursionError, csv.Error) as error:
        raise InputError(f"cannot read {path}: {' '.join(str(error).split())}") from error


def is_table(path: Path) -> bool:
    """Whether all that a row of the file holds is text."""
    return path.suffix.lower() in _DELIMITERS


def _opened(path: Path) -> AbstractContextManager[Any]:
    return nullcontext(sys.stdin.buffer) if path == STANDARD_INPUT else path.open("rb")


def _parquet(path: Path) -> list[Any]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return list(pq.read_table(path).to_pylist())
    except pa.ArrowException as error:  # not all of them are ValueErrors
        raise ValueError(str(error)) from error


def _json(file: io.BufferedIOBase) -> Iterator[Row]:
    begun = False
    for n, line in enumerate(_lines(file), start=1):
        if n == 1:
            line = line.removeprefix(codecs.BOM_UTF8)
        if not begun and line.lstrip().startswith(b"["):
            yield from _array(line + file.read())
            return
        begun = begun or not line.isspace()
        if len(line) > LINE_BYTES:
            yield Row(f"line {n}", error=f"longer than {LINE_BYTES // 2**20} MiB; shorten it")
        elif text := line.decode("utf-8").strip():
            yield _line(f"line {n}", text)


def _lines(file: io.BufferedIOBase) -> Iterator[bytes]:
    """Yield lines as they stand; of one that is too long only what shows it, the rest skipped."""
    # readline, not a text file's: U+2028 and its like may stand inside a JSON string.
    while line := file.readline(LINE_BYTES + 1):
        yield line
        while len(line) > LINE_BYTES and not line.endswith(b"\n"):
            line = file.readline(LINE_BYTES + 1)


def _array(raw: bytes) -> Iterator[Row]:
    for n, value in enumerate(json.loads(raw.decode("utf-8")), start=1):
        yield Row(f"row {n}", value)


def _line(place: str, line: str) -> Row:
    try:
        return Row(place, json.loads(line))
    except (ValueError, RecursionError) as error:
        return Row(place, error=f"not JSON: {error}")


def _table(file: io.BufferedIOBase, delimiter: str) -> Iterator[Row]:
    lines = io.StringIO(file.read().decode("utf-8-sig"), newline="")
    rows = csv.DictReader(lines, delimiter=delimiter, restkey=_REST, strict=True)
    for n, row in enumerate(rows, start=1):
        error = f"{_REST} in the first line" if _REST in row else None
        yield Row(f"row {n}", None if error else row, error)
