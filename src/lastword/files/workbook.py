"""The first sheet of an Excel workbook, read row by row within limits."""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any
from xml.parsers import expat
from zipfile import BadZipFile, ZipFile

from lastword.files.cells import cell_text, unique_names
from lastword.files.wording import counted

_BYTES = 2**28  # maximum size unpacked; a million rows of short texts take half of that
_COLUMNS, _LINES, _CELLS = 1024, 2**20, 2**14  # cells of a row: the limit of Excel
_SHOWN = 3
_CELL = re.compile("([A-Za-z]{1,3})[0-9]+")  # a cell's name, with the letters of its column
_ESCAPED = re.compile("_x(00[01][0-9A-Fa-f])_")  # Excel's form of control characters


def workbook(path: Path, say: Callable[[str], None]) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield each row with text, with its number after the row of names.

    The first row with text has the names; cells to the right of them are ignored.

    Raises:
        ValueError: Not a workbook, damaged, beyond the limits, or two columns of one name.
    """
    try:
        with path.open("rb") as file:  # openpyxl may leave a file open that it opens itself
            yield from _sheet(file, say)
    except (ValueError, OSError, MemoryError):
        raise
    except BadZipFile as error:
        raise ValueError(f"it is not an Excel workbook: {error}") from error
    except Exception as error:  # openpyxl may raise any error for malformed XML
        raise ValueError(
            f"it is not an Excel workbook, or a damaged one ({type(error).__name__}: {error}): "
            "save it again, or as CSV"
        ) from error


def _sheet(file: IO[bytes], say: Callable[[str], None]) -> Iterator[tuple[int, dict[str, str]]]:
    from openpyxl import load_workbook

    with ZipFile(file) as archive:
        # A small file may unpack to any size.
        size = sum(part.file_size for part in archive.infolist())
        if size > _BYTES:
            raise ValueError(
                f"it unpacks to {size >> 20:,} MiB, and at most {_BYTES >> 20} are read: save it "
                "as CSV"
            )
        # Without worksheets, openpyxl may fail at a sheet that is only a chart.
        some = b"worksheet+xml" in archive.read("[Content_Types].xml")
    sheets = load_workbook(file, read_only=True, data_only=True).worksheets if some else []
    if not sheets:
        raise ValueError("it has no sheet with cells: put the table into one")
    with ZipFile(file) as archive, archive.open(sheets[0]._worksheet_path) as sheet:
        _check_order(sheet, sheets[0].title)
    if len(sheets) > 1:
        say(f"guessed: the table is the sheet {sheets[0].title}, the first of {len(sheets)}")
    yield from _rows(sheets[0], file, say)


def _rows(
    sheet: Any, file: IO[bytes], say: Callable[[str], None]
) -> Iterator[tuple[int, dict[str, str]]]:
    sheet.reset_dimensions()  # the size in the file may be wrong
    rows = enumerate(_bounded(sheet.iter_rows(max_col=_COLUMNS + 1)), start=1)
    start, names = next(((n, texts) for n, row in rows if (texts := _names(row))), (0, []))
    if not names:
        raise ValueError(f"its first sheet, {sheet.title}, is empty: put the table there")
    if len(names) > _COLUMNS:
        raise ValueError(f"it has more than {_COLUMNS:,} columns: save it as CSV")
    empty, right, width = list[tuple[int, int]](), 0, len(names)
    first = ""  # of the cells to the right
    before: Sequence[Any] = ()
    for n, row in rows:
        if row is before:  # openpyxl fills gaps with the same object
            continue
        before = row
        stray = [cell.coordinate for cell in row[width:] if cell.value is not None]
        first, right = first or "".join(stray[:1]), right + len(stray)
        values = [_text(cell.value, cell.data_type) for cell in row[:width]]
        if any(values):
            empty += [(n, c) for c, value in enumerate(values, start=1) if not value]
            yield n - start, dict(zip(names, values, strict=True))
    if right:
        say(
            f"left out: {counted(right, 'cell')} to the right of the last name in row {start}, "
            f"the first in {first}"
        )
    if empty and (places := _without_value(file, empty)):
        shown = ", ".join(places[:_SHOWN]) + (", ..." if len(places) > _SHOWN else "")
        say(
            f"{counted(len(places), 'formula cell')} without a stored value read as empty "
            f"({shown}): open the workbook in a spreadsheet program, and save it"
        )


def _check_order(sheet: IO[bytes], name: str) -> None:
    """Refuse rows out of order and repeated cells, which openpyxl drops, and rows of any length.

    Refuse numbers of rows and names of cells that are none, too.
    """
    last, cells = 0, set[str | int]()

    def begin(tag: str, attributes: dict[str, str]) -> None:
        nonlocal last
        fault = None
        if (kind := tag.rpartition(":")[2]) == "row":
            before, number = last, attributes.get("r", str(last + 1))
            with suppress(ValueError, OverflowError):  # programs also write 7.0 or 7E0
                last = int(float(number)) if float(number) % 1 == 0 else before
            fault = f"row {number:.40} follows row {before}" if last <= before else None
            cells.clear()
        elif kind == "c":
            place = attributes.get("r")
            match = _CELL.fullmatch(place or "A1")
            cell = match[1] if match and place else len(cells)
            if match is None:
                fault = f"row {last} has a cell with the name {place!r:.40}"
            elif cell in cells or len(cells) == _CELLS:
                fault = f"row {last} has a cell twice, or more than {_CELLS:,} cells"
            cells.add(cell)
        if fault is not None:
            raise ValueError(
                f"in {name}, {fault}: save it again in a spreadsheet program, or as CSV"
            )

    parser = expat.ParserCreate()
    parser.StartElementHandler = begin
    parser.ParseFile(sheet)


def _bounded(rows: Iterable[Sequence[Any]]) -> Iterator[Sequence[Any]]:
    """Yield rows up to a spreadsheet's limit, because a file may give a row any number."""
    for n, row in enumerate(rows):
        if n == _LINES:
            raise ValueError(f"its first sheet has more than {_LINES:,} rows: save it as CSV")
        yield row


def _names(row: Sequence[Any]) -> list[str]:
    """Return the names in a row, up to the last that is not blank."""
    texts = [_text(cell.value, cell.data_type) for cell in row]
    width = max((place for place, text in enumerate(texts, start=1) if text.strip()), default=0)
    return unique_names(texts[:width])


def _text(value: Any, kind: str) -> str:
    """Return a cell as text; an error such as #N/A is empty."""
    if kind == "e":
        return ""
    text = str(value) if isinstance(value, bool) else cell_text(value)
    return _ESCAPED.sub(lambda match: chr(int(match[1], 16)), text)


def _without_value(file: IO[bytes], empty: Sequence[tuple[int, int]]) -> list[str]:
    """Return the formulas among empty cells, by names such as B3."""
    from openpyxl import load_workbook
    from openpyxl.utils import get_column_letter

    cells, width = set(empty), max(column for _, column in empty)
    sheet = load_workbook(file, read_only=True).worksheets[0]
    sheet.reset_dimensions()
    return [
        f"{get_column_letter(c)}{r}"
        for r, row in enumerate(_bounded(sheet.iter_rows(max_col=width)), start=1)
        for c, cell in enumerate(row, start=1)
        if cell.data_type in ("f", "e") and (r, c) in cells
    ]
