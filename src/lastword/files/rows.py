"""Rows of a file, each with its place: JSON lines, a JSON array, CSV, TSV, Excel or Parquet."""

import codecs
import io
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lastword.errors import InputError
from lastword.files.cells import unique_names
from lastword.files.delimited import delimited
from lastword.files.encoding import decode
from lastword.files.strict_json import from_json
from lastword.files.workbook import workbook

STANDARD_INPUT = Path("-")
LINE_BYTES = 2**24  # of JSON, far more than an item that a model can read
_DELIMITERS = {".csv": ",", ".tsv": "\t"}
_EXCEL = ".xlsx"
_FORM = "a JSON list or one JSON object per line"
_UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
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


def read_rows(
    path: Path, say: Callable[[str], None] = lambda line: None, encoding: str | None = None
) -> list[Row]:
    """Return every row of a file, by its ending; what is no table or Parquet is JSON, `-` is stdin.

    Blank lines are passed over, and a byte-order mark. A cell of a table is text, or None. A
    line of JSON beyond 16 MiB is an error of its own, and never all in memory.

    Args:
        path: The file.
        say: Gets what was guessed of a table, and what of it is not read.
        encoding: Of its text; UTF-8, or UTF-16 with a byte-order mark, if left out.

    Raises:
        InputError: The file cannot be read, or two of its columns have one name.
    """
    ending = path.suffix.lower()
    try:
        if ending == ".parquet":
            return [Row(f"row {n}", value) for n, value in enumerate(_parquet(path), start=1)]
        if ending == _EXCEL:
            return [Row(f"row {n}", value) for n, value in workbook(path, say)]
        with _opened(path) as file:
            usual = _DELIMITERS.get(ending)
            if usual is None:
                return list(_json(file, encoding))
            rows = enumerate(delimited(file.read(), usual, say, encoding), start=1)
            return [Row(f"row {n}", value, error) for n, (value, error) in rows]
    except (OSError, ValueError, RecursionError, MemoryError) as error:
        reason = getattr(error, "strerror", None) or error or type(error).__name__
        raise InputError(f"cannot read {path}: {' '.join(str(reason).split())}") from error


def is_table(path: Path) -> bool:
    """Return True if all that a row of the file holds is text."""
    return path.suffix.lower() in (*_DELIMITERS, _EXCEL)


def id_column(columns: Sequence[str]) -> str | None:
    """Return the column of a row's id: `id`, else one whose name ends so, as `Ticket-ID` does."""
    exact = [name for name in columns if name.strip().casefold() == "id"]
    return next((name for name in (*exact, *columns) if _ID.search(name.strip())), None)


def _opened(path: Path) -> AbstractContextManager[Any]:
    return nullcontext(sys.stdin.buffer) if path == STANDARD_INPUT else path.open("rb")


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
    begun = False
    for n, line in enumerate(_lines(file), start=1):
        if n == 1 and (encoding is not None or line.startswith(_UTF16)):
            text, _ = decode(line + file.read(), encoding)
            yield from _json(io.BytesIO(text.encode()), None)
            return
        if n == 1:
            line = line.removeprefix(codecs.BOM_UTF8)
        if not begun and line.lstrip().startswith(b"["):
            yield from _array(line + file.read())
            return
        begun = begun or not line.isspace()
        if len(line) > LINE_BYTES:
            yield Row(f"line {n}", error=f"longer than {LINE_BYTES // 2**20} MiB; shorten it")
        elif line.strip():
            yield _line(f"line {n}", line)


def _lines(file: io.BufferedIOBase) -> Iterator[bytes]:
    """Yield lines as they stand; of one that is too long only what shows it, the rest skipped."""
    # readline, not a text file's: U+2028 and its like may stand inside a JSON string.
    while line := file.readline(LINE_BYTES + 1):
        yield line
        while len(line) > LINE_BYTES and not line.endswith(b"\n"):
            line = file.readline(LINE_BYTES + 1)


def _array(raw: bytes) -> Iterator[Row]:
    values = from_json(decode(raw)[0])
    for n, value in enumerate(values, start=1):
        yield Row(f"row {n}", value)


def _line(place: str, line: bytes) -> Row:
    try:
        return Row(place, from_json(line.decode().strip()))
    except UnicodeDecodeError as error:
        byte = f"byte {error.start + 1} (0x{line[error.start]:02X})"
        return Row(place, error=f"{byte} is not valid UTF-8")
    except (ValueError, RecursionError) as error:
        return Row(place, error=f"not JSON: {error}")


def read_objects(
    path: Path, say: Callable[[str], None] = lambda line: None
) -> list[dict[str, Any]]:
    """Return the rows of a table or of a JSON file, each as an object.

    Raises:
        InputError: Unreadable, or something in it is not an object.
    """
    return values_of(require_rows(read_rows(path, say), path), path)


def values_of(rows: Sequence[Row], path: Path) -> list[dict[str, Any]]:
    """Return the objects of rows that can all be read.

    Raises:
        InputError: The first row that cannot be read.
    """
    if bad := [row for row in rows if row.error is not None]:
        raise InputError(f"cannot read {path}: {bad[0].place}: {bad[0].error}")
    return [row.value for row in rows]


def require_rows(rows: Sequence[Row], path: Path) -> list[Row]:
    """Return rows of which each is an object or has an error, and one at least is an object.

    Raises:
        InputError: There is no row, or none that can be read.
    """
    if not rows:
        expected = "a header and rows" if is_table(path) else _FORM
        raise InputError(f"{path} has no rows; expected {expected}")
    rows = [_object(row) for row in rows]
    if all(row.error is not None for row in rows):
        what = f"cannot read {path}: {rows[0].place}: {rows[0].error}"
        forms = f"Expected {_FORM}; tables end in .csv, .tsv, .xlsx or .parquet"
        raise InputError(what if is_table(path) else f"{what}. {forms}")
    return rows


def _object(row: Row) -> Row:
    if row.error is not None or isinstance(row.value, dict):
        return row
    return Row(row.place, error=f"it is {type(row.value).__name__}, expected an object")
