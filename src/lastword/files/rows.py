"""Rows of a file, each with its place: JSON lines, a JSON array, CSV, TSV, Excel or Parquet."""

import codecs
import csv
import io
import json
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

from lastword.errors import InputError

STANDARD_INPUT = Path("-")
LINE_BYTES = 2**24  # of JSON, far more than an item that a model can read
SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars"}
_DELIMITERS = {".csv": ",", ".tsv": "\t"}
_EXCEL = ".xlsx"
_ENCODINGS = {"utf-8-sig": "UTF-8", "cp1252": "Windows-1252"}
_SAMPLE = 2**16  # characters by which a separator is guessed
_REST = "more fields than names in the first line"
_ID = re.compile(r"(^|[ _.-])(id|Id|ID|nr|Nr|NR)$|[a-z](I[dD]|Nr)$")


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


def read_rows(path: Path, say: Callable[[str], None] = lambda line: None) -> list[Row]:
    """Return every row of a file, by its ending; what is no table or Parquet is JSON, `-` is stdin.

    Blank lines are passed over, and a byte-order mark. A cell of a table is text, or None. A
    line of JSON beyond 16 MiB is an error, and is never held in memory whole.

    Raises:
        InputError: The file cannot be read.
    """
    ending = path.suffix.lower()
    try:
        if ending == ".parquet":
            return [Row(f"row {n}", value) for n, value in enumerate(_parquet(path), start=1)]
        if ending == _EXCEL:
            return list(_excel(path, say))
        with _opened(path) as file:
            usual = _DELIMITERS.get(ending)
            return list(_json(file) if usual is None else _table(file.read(), usual, say))
    except (OSError, ValueError, RecursionError, BadZipFile) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"cannot read {path}: {' '.join(str(reason).split())}") from error


def is_table(path: Path) -> bool:
    """Return True if every value in the file is text, by the file's suffix (CSV, TSV, Excel)."""
    return path.suffix.lower() in (*_DELIMITERS, _EXCEL)


def id_column(columns: Sequence[str]) -> str | None:
    """Return the column of a row's id: `id`, else one whose name ends so, as `Ticket-ID` does."""
    exact = [name for name in columns if name.strip().casefold() == "id"]
    return next((name for name in (*exact, *columns) if _ID.search(name.strip())), None)


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


def _table(raw: bytes, usual: str, say: Callable[[str], None]) -> Iterator[Row]:
    text, encoding = _decoded(raw)
    delimiter = _delimiter(text[:_SAMPLE], usual)
    form = f"{encoding}, separated by {SEPARATORS[delimiter]}"
    if (encoding, delimiter) != ("UTF-8", usual):
        say(f"guessed: the table is {form}")
    rows = csv.DictReader(
        io.StringIO(text, newline=""), None, _REST, None, delimiter=delimiter, strict=True
    )
    try:
        for n, row in enumerate(rows, start=1):
            error = f"{_REST} (read as {form})" if _REST in row else None
            yield Row(f"row {n}", None if error else row, error)
    except csv.Error as error:
        raise ValueError(f"line {rows.line_num}: {error} (read as {form})") from error


def _decoded(raw: bytes) -> tuple[str, str]:
    """Return the text of a table, and its encoding for people."""
    if raw.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return raw.decode("utf-16"), "UTF-16"
    for encoding, name in _ENCODINGS.items():
        with suppress(UnicodeDecodeError):
            text = raw.decode(encoding)
            if "\0" not in text:
                return text, name
    raise ValueError(
        "it is neither UTF-8 nor Windows-1252, nor UTF-16 that says so: save it as UTF-8"
    )


def _delimiter(text: str, usual: str) -> str:
    """Return the separator that the first line has; of several, what `csv.Sniffer` finds."""
    first = text.lstrip("\r\n").partition("\n")[0]
    there = [mark for mark in SEPARATORS if mark in first]
    if len(there) > 1:
        with suppress(csv.Error):
            return csv.Sniffer().sniff(text, "".join(there)).delimiter
    return usual if usual in there or not there else there[0]


def _excel(path: Path, say: Callable[[str], None]) -> Iterator[Row]:
    """Yield the rows of a workbook's first sheet; rows without any text are passed over."""
    try:
        import pandas as pd

        with pd.ExcelFile(path, engine="openpyxl") as book:
            frame = pd.read_excel(book, dtype=str, na_filter=False)
            sheets = book.sheet_names
    except ImportError as error:
        raise ValueError(
            f"{error.name or 'openpyxl'} is missing: pip install 'lastword[xlsx]'"
        ) from error
    if len(sheets) > 1:
        say(f"guessed: the table is the sheet {sheets[0]}, the first of {len(sheets)}")
    for n, row in enumerate(frame.to_dict("records"), start=1):
        if any(row.values()):
            yield Row(f"row {n}", row)


def read_objects(
    path: Path, say: Callable[[str], None] = lambda line: None
) -> list[dict[str, Any]]:
    """Return the rows of a table or of a JSON file, each as an object.

    Raises:
        InputError: Unreadable, or something in it is not an object.
    """
    rows = read_rows(path, say)
    if not rows:
        raise InputError(f"{path} has no rows; expected a JSON list or one JSON object a line")
    for row in rows:
        if row.error is not None:
            raise InputError(f"cannot read {path}: {row.place}: {row.error}")
        if not isinstance(row.value, dict):
            kind = type(row.value).__name__
            raise InputError(f"{path}: {row.place} is {kind}, expected an object")
    return [row.value for row in rows]
