"""Rows of a file, each with its place: JSON lines, a JSON array, CSV, TSV, Excel or Parquet."""

import csv
import io
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lastword.errors import InputError
from lastword.files.cells import read_cell, spelling, unique_names
from lastword.files.encoding import decode
from lastword.files.strict_json import from_json
from lastword.files.workbook import workbook

STANDARD_INPUT = Path("-")
SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars"}
_USUAL = {".csv": ",", ".tsv": "\t"}
_EXCEL = ".xlsx"
_FORM = "a JSON list or one JSON object per line"
_ID = re.compile(r"(^|[ _.-])(id|Id|ID|nr|Nr|NR)$|[a-z](I[dD]|Nr)$")
_SAMPLE = 2**16  # characters for guessing the separator
# Excel's declaration of the separator, before the header. Saving the file again adds separators.
_SEP = re.compile(r'\s*"?sep=(.)"?\1*[ \t]*(\r\n|\r|\n)', re.IGNORECASE)


@dataclass(frozen=True)
class Row:
    """One row: its place for messages, and its value, or why it cannot be decoded."""

    place: str
    value: Any = None
    error: str | None = None


def read_rows(
    path: Path, say: Callable[[str], None] = lambda line: None, encoding: str | None = None
) -> list[Row]:
    """Return the rows of a table, a Parquet file or, by default, JSON.

    Blank lines and a byte-order mark are skipped. The cell of a table is a text or None. The file's
    ending determines the format, and `-` is standard input. `say` gets messages about guesses.

    Raises:
        InputError: The file cannot be read, or two of its columns have one name.
    """
    ending = path.suffix.lower()
    try:
        if ending == ".parquet":
            return [Row(f"row {n}", value) for n, value in enumerate(_parquet(path), start=1)]
        if ending == _EXCEL:
            return [Row(f"row {n}", value) for n, value in workbook(path, say)]
        raw = sys.stdin.buffer.read() if path == STANDARD_INPUT else path.read_bytes()
        text, name = decode(raw, encoding)
        if (usual := _USUAL.get(ending)) is None:
            return _json(text)
        return _delimited(text, usual, say, name)
    except (OSError, ValueError, RecursionError, MemoryError) as error:
        reason = getattr(error, "strerror", None) or error or type(error).__name__
        raise InputError(f"cannot read {path}: {' '.join(str(reason).split())}") from error


def stream_rows(path: Path) -> Iterator[Row]:
    """Yield the rows of a file; those of standard input, one JSON object per line, as they come."""
    if path != STANDARD_INPUT:
        yield from read_rows(path)
        return
    for n, line in enumerate(sys.stdin.buffer, start=1):
        if line.strip():
            yield _line(f"line {n}", line)


def is_table(path: Path) -> bool:
    """Return True if all values in the file are texts."""
    return path.suffix.lower() in (*_USUAL, _EXCEL)


def id_column(columns: Sequence[str]) -> str | None:
    """Return the column of ids: `id`, else one with a name like `Ticket-ID`; None if none is."""
    exact = [name for name in columns if name.strip().casefold() == "id"]
    return next((name for name in (*exact, *columns) if _ID.search(name.strip())), None)


def guessed_name(name: str, names: Sequence[str]) -> str:
    """Return the name of a guessed column, with the columns whose names differ only in spelling."""
    others = [other for other in names if other != name and spelling(other) == spelling(name)]
    return f"{name} (not {', '.join(others)})" if others else name


def _parquet(path: Path) -> list[Any]:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ModuleNotFoundError as error:
        raise ValueError('Parquet needs pyarrow: pip install "lastword[parquet]"') from error

    try:
        table = pq.read_table(path)
        return list(table.rename_columns(unique_names(table.column_names)).to_pylist())
    except pa.ArrowException as error:  # not all of them are ValueErrors
        raise ValueError(str(error)) from error


def _json(text: str) -> list[Row]:
    if text.lstrip().startswith("["):
        return [Row(f"row {n}", value) for n, value in enumerate(from_json(text), start=1)]
    # `splitlines` would also split at U+2028, which JSON strings may contain.
    lines = enumerate(text.split("\n"), start=1)
    return [_line(f"line {n}", line) for n, line in lines if line.strip()]


def _line(place: str, line: str | bytes) -> Row:
    try:
        return Row(place, from_json(line.strip()))
    except (ValueError, RecursionError) as error:
        return Row(place, error=f"not JSON: {error}")


def _delimited(text: str, usual: str, say: Callable[[str], None], encoding: str) -> list[Row]:
    """Return the rows of CSV or TSV, as programs and spreadsheets write them."""
    declared = _SEP.match(text)
    body = text[declared.end() :] if declared else text
    delimiter = declared[1] if declared else _delimiter(body[:_SAMPLE], usual)
    form = f"{encoding}, separated by {SEPARATORS.get(delimiter, repr(delimiter))}"
    if not declared and (encoding == "UTF-16" or delimiter != usual):
        say(f"guessed: the table is {form}")
    csv.field_size_limit(2**31 - 1)
    # Line ends are kept as they are, because cells in quotes may contain them.
    reader = csv.reader(io.StringIO(body, newline=""), delimiter=delimiter, strict=True)
    names, rows = list[str](), list[Row]()
    begin = first = 1 + (len(declared[0].splitlines()) if declared else 0)
    try:
        for cells in reader:
            begin = reader.line_num + first  # of the next row
            if cells and names:
                rows.append(_cells(f"row {len(rows) + 1}", names, cells, form))
            elif cells:
                names = unique_names(cells)
    except csv.Error as error:
        # A quote that is never closed takes in the lines after it, up to the end of the file.
        unclosed = reader.line_num + first > begin + 1
        why = "a quote in this row is never closed" if unclosed else str(error)
        raise ValueError(f"line {begin}: {why}; double each quote (read as {form})") from error
    return rows


def _cells(place: str, names: list[str], cells: list[str], form: str) -> Row:
    if len(cells) > len(names):
        return Row(place, error=f"more fields than names in the first line (read as {form})")
    missing = [None] * (len(names) - len(cells))
    return Row(place, dict(zip(names, [*map(read_cell, cells), *missing], strict=True)))


def _delimiter(text: str, usual: str) -> str:
    """Return the separator in the first line; if there are several, `csv.Sniffer` decides."""
    first = text.lstrip("\r\n").partition("\n")[0]
    present = [mark for mark in SEPARATORS if mark in first]
    if len(present) > 1:
        with suppress(csv.Error):
            return csv.Sniffer().sniff(text, "".join(present)).delimiter
    return usual if usual in present or not present else present[0]


def read_objects(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a table or of a JSON file; InputError if one has an error."""
    rows = require_rows(read_rows(path), path)
    if bad := [row for row in rows if row.error is not None]:
        raise InputError(f"cannot read {path}: {bad[0].place}: {bad[0].error}")
    return [row.value for row in rows]


def require_rows(rows: Sequence[Row], path: Path) -> list[Row]:
    """Return the rows, without other values than objects; InputError if none is left."""
    if not rows:
        expected = "a header and rows" if is_table(path) else _FORM
        raise InputError(f"{path} has no rows; expected {expected}")
    rows = [
        row
        if row.error is not None or isinstance(row.value, dict)
        else Row(row.place, error=f"it is {type(row.value).__name__}, expected an object")
        for row in rows
    ]
    if all(row.error is not None for row in rows):
        fault = f"cannot read {path}: {rows[0].place}: {rows[0].error}"
        forms = f"Expected {_FORM}; tables end in .csv, .tsv, .xlsx or .parquet"
        raise InputError(fault if is_table(path) else f"{fault}. {forms}")
    return rows
