"""Rows of CSV and TSV, as programs and spreadsheets write them."""

import csv
import io
import re
from collections.abc import Callable, Iterator
from contextlib import suppress

from lastword.files.cells import unique_names
from lastword.files.encoding import decode

SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars"}
CELL_CHARACTERS = 2**24  # far more than a model can read
_SAMPLE = 2**16  # characters for guessing the separator
# Excel's declaration of the separator, before the header. Saving the file again adds separators.
_SEP = re.compile(r'\s*"?sep=(.)"?\1*[ \t]*(\r\n|\r|\n)', re.IGNORECASE)


def delimited(
    raw: bytes, usual: str, say: Callable[[str], None], encoding: str | None = None
) -> Iterator[tuple[dict[str, str | None] | None, str | None]]:
    """Yield each row as its cells by column, or as None with its error.

    Raises:
        ValueError: The text cannot be decoded, two columns have one name, or quotes do not match.
    """
    text, name = decode(raw, encoding)
    text = text.lstrip("\ufeff")  # a file that was exported twice has two byte-order marks
    declared = _SEP.match(text)
    body = text[declared.end() :] if declared else text
    delimiter = declared[1] if declared else _delimiter(body[:_SAMPLE], usual)
    form = f"{name}, separated by {SEPARATORS.get(delimiter, repr(delimiter))}"
    if not declared and encoding is None and (name, delimiter) != ("UTF-8", usual):
        say(f"guessed: the table is {form}")
    skipped = len(declared[0].splitlines()) if declared else 0
    # This limit is global to the process, so that ours is applied in `_row`.
    csv.field_size_limit(2**31 - 1)
    # Line ends are kept as they are, because cells in quotes may contain them.
    reader = csv.reader(io.StringIO(body, newline=""), delimiter=delimiter, strict=True)
    names, begin = list[str](), 1
    try:
        for row in reader:
            begin = reader.line_num + 1  # of the next row
            if row and names:
                yield _row(names, row, form)
            elif row:
                names = unique_names(row)
    except csv.Error as error:
        # A quote that is never closed takes in the lines after it, up to the end of the file.
        place = f"line {skipped + begin}"
        if reader.line_num > begin:
            what = f"{place}: a quote in this row is never closed; close it, or double it"
        else:
            what = f"{place}: {error}; inside quotes, double each quote"
        raise ValueError(f"{what} (read as {form})") from error


def _row(
    names: list[str], row: list[str], form: str
) -> tuple[dict[str, str | None] | None, str | None]:
    if len(row) > len(names):
        return None, f"more fields than names in the first line (read as {form})"
    if any(len(cell) > CELL_CHARACTERS for cell in row):
        return None, f"a cell is longer than {CELL_CHARACTERS:,} characters; shorten it"
    missing = [None] * (len(names) - len(row))
    return dict(zip(names, [*row, *missing], strict=True)), None


def _delimiter(text: str, usual: str) -> str:
    """Return the separator in the first line; if there are several, `csv.Sniffer` decides."""
    first = text.lstrip("\r\n").partition("\n")[0]
    present = [mark for mark in SEPARATORS if mark in first]
    if len(present) > 1:
        with suppress(csv.Error):
            return csv.Sniffer().sniff(text, "".join(present)).delimiter
    return usual if usual in present or not present else present[0]
