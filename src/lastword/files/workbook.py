"""The first sheet of an Excel workbook, read row by row."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

from lastword.files.cells import cell_text, read_cell, unique_names


def workbook(path: Path, say: Callable[[str], None]) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield each row with text, numbered from the row of names; ValueError if there is none.

    The first row with text has the names; cells to the right of them are ignored.
    """
    from openpyxl import load_workbook

    try:
        with path.open("rb") as file:  # openpyxl may leave a file open that it opens itself
            first, *others = load_workbook(file, read_only=True, data_only=True).worksheets
            if others:
                count = len(others) + 1
                say(f"guessed: the table is the sheet {first.title}, the first of {count}")
            yield from _rows(first)
    except (ValueError, OSError, MemoryError):
        raise
    except BadZipFile as error:
        raise ValueError(f"it is not an Excel workbook: {error}") from error
    except Exception as error:  # openpyxl may raise any error for malformed XML
        raise ValueError(
            f"it is not an Excel workbook, or a damaged one ({type(error).__name__}: {error}): "
            "save it again, or as CSV"
        ) from error


def _rows(sheet: Any) -> Iterator[tuple[int, dict[str, str]]]:
    sheet.reset_dimensions()  # the size in the file may be wrong
    start, names = 0, list[str]()
    for n, row in enumerate(sheet.iter_rows(), start=1):
        texts = [_text(cell.value, cell.data_type) for cell in row]
        if not any(text.strip() for text in texts):
            continue
        if names:
            cells = (texts + [""] * len(names))[: len(names)]
            if any(cells):
                yield n - start, dict(zip(names, cells, strict=True))
        else:
            # The names reach up to the last that is not blank.
            width = max(place for place, text in enumerate(texts, start=1) if text.strip())
            start, names = n, unique_names(texts[:width])
    if not names:
        raise ValueError(f"its first sheet, {sheet.title}, is empty: put the table there")


def _text(value: Any, kind: str) -> str:
    """Return a cell as text; an error such as #N/A is empty."""
    from openpyxl.utils.escape import unescape

    if kind == "e":
        return ""
    text = str(value) if isinstance(value, bool) else cell_text(value)
    return read_cell(str(unescape(text)))
