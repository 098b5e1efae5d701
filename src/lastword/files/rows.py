"""Rows of a file, each with its place: JSON lines, a JSON array, CSV, TSV, Excel or Parquet."""

import codecs
import io
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lastword.errors import InputError
from lastword.files.cells import spelling, unique_names
from lastword.files.delimited import delimited
from lastword.files.encoding import SAMPLE, UTF16, decode, refuse_other, refuse_utf16
from lastword.files.strict_json import from_json
from lastword.files.workbook import workbook

STANDARD_INPUT = Path("-")
LINE_BYTES = 2**24  # maximum length of a line of JSON; far more than a model can read
_DELIMITERS = {".csv": ",", ".tsv": "\t"}
_EXCEL = ".xlsx"
_FORM = "a JSON list or one JSON object per line"
_ID = re.compile(r"(^|[ _.-])(id|Id|ID|nr|Nr|NR)$|[a-z](I[dD]|Nr)$")


@dataclass(frozen=True)
class Row:
    """One row.

    Attributes:
        place: Its place for messages, such as `line 3` or `row 3`, counted from 1.
        value: The decoded value; an object in most files.
        error: The reason why it cannot be decoded; None if it can.
    """

    place: str
    value: Any = None
    error: str | None = None


def read_rows(
    path: Path, say: Callable[[str], None] = lambda line: None, encoding: str | None = None
) -> list[Row]:
    """Return the rows of a table, a Parquet file or, by default, JSON.

    Blank lines and a byte-order mark are skipped. The cell of a table is a text or None. A line of
    JSON beyond 16 MiB becomes an error, and is never completely in memory. A line that is not UTF-8
    becomes an error if most of the file is.

    Args:
        path: The file; its ending determines the format, and `-` is standard input.
        say: Function that gets messages about guesses, and about contents that are not read.
        encoding: Encoding of the file; UTF-8, or UTF-16 with a byte-order mark, if left out.

    Raises:
        InputError: The file cannot be read, or two of its columns have one name.
    """
    ending = path.suffix.lower()
    try:
        if ending == ".parquet":
            return [Row(f"row {n}", value) for n, value in enumerate(_parquet(path), start=1)]
        if ending == _EXCEL:
            return [Row(f"row {n}", value) for n, value in workbook(path, say)]
        standard = path == STANDARD_INPUT
        source: Any = nullcontext(sys.stdin.buffer) if standard else path.open("rb")
        with source as file:
            usual = _DELIMITERS.get(ending)
            if usual is None:
                return list(_json(file, encoding))
            rows = enumerate(delimited(file.read(), usual, say, encoding), start=1)
            return [Row(f"row {n}", value, error) for n, (value, error) in rows]
    except (OSError, ValueError, RecursionError, MemoryError) as error:
        reason = getattr(error, "strerror", None) or error or type(error).__name__
        raise InputError(f"cannot read {path}: {' '.join(str(reason).split())}") from error


def stream_rows(path: Path) -> Iterator[Row]:
    """Yield the rows of a file; those of standard input as they come.

    Raises:
        InputError: As `read_rows`.
    """
    if path != STANDARD_INPUT:
        yield from read_rows(path)
        return
    source: Any = sys.stdin.buffer
    try:
        yield from _json(source, None)
    except (OSError, ValueError) as error:
        raise InputError(f"cannot read {path}: {' '.join(str(error).split())}") from error


def is_table(path: Path) -> bool:
    """Return True if all values in the file are texts."""
    return path.suffix.lower() in (*_DELIMITERS, _EXCEL)


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


def _json(file: io.BufferedIOBase, encoding: str | None) -> Iterator[Row]:
    # `begun` is True from the first line that is not blank: only that one may open an array.
    begun, sample = False, bytearray()
    for n, line in enumerate(_lines(file), start=1):
        if n == 1 and (encoding is not None or line.startswith(UTF16)):
            text, _ = decode(line + file.read(), encoding)
            yield from _json(io.BytesIO(text.encode()), None)
            return
        if n == 1:
            refuse_utf16(line)
            line = line.removeprefix(codecs.BOM_UTF8)
        if not begun and line.lstrip().startswith(b"["):
            values = from_json(decode(line + file.read())[0])
            yield from (Row(f"row {n}", value) for n, value in enumerate(values, start=1))
            return
        begun = begun or not line.isspace()
        if len(line) > LINE_BYTES:
            yield Row(f"line {n}", error=f"longer than {LINE_BYTES // 2**20} MiB; shorten it")
        elif line.strip():
            yield _line(f"line {n}", line)
        if len(sample) < SAMPLE:  # an empty line for every line of ASCII keeps the lines' numbers
            sample += b"\n" if line.isascii() or len(line) > LINE_BYTES else line
    refuse_other(bytes(sample))


def _lines(file: io.BufferedIOBase) -> Iterator[bytes]:
    """Yield the lines; a line that is too long is cut, but not to an allowed length."""
    # The file is binary, because a text file also splits at U+2028, which JSON strings may contain.
    while line := file.readline(LINE_BYTES + 1):
        yield line
        while len(line) > LINE_BYTES and not line.endswith(b"\n"):
            line = file.readline(LINE_BYTES + 1)


def _line(place: str, line: bytes) -> Row:
    try:
        return Row(place, from_json(line.decode().strip()))
    except UnicodeDecodeError as error:
        byte = f"byte {error.start + 1} (0x{line[error.start]:02X})"
        return Row(place, error=f"{byte} is not valid UTF-8")
    except (ValueError, RecursionError) as error:
        return Row(place, error=f"not JSON: {error}")


def read_objects(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a table or of a JSON file, each as an object.

    Raises:
        InputError: It cannot be read, or a row is not an object.
    """
    return values_of(require_rows(read_rows(path), path), path)


def values_of(rows: Sequence[Row], path: Path) -> list[dict[str, Any]]:
    """Return the values of rows without errors.

    Raises:
        InputError: A row has an error.
    """
    if bad := [row for row in rows if row.error is not None]:
        raise InputError(f"cannot read {path}: {bad[0].place}: {bad[0].error}")
    return [row.value for row in rows]


def require_rows(rows: Sequence[Row], path: Path) -> list[Row]:
    """Return the rows, in which other values than objects become errors.

    Raises:
        InputError: There is no row, or all of them have errors.
    """
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
