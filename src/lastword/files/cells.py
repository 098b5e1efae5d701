"""Cells of a table as text."""

import csv
import io
import json
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from lastword.errors import InputError

# The beginning of a formula, or of one with the apostrophes of `csv_line`.
_FORMULA = re.compile(r"'*[ \u00a0\ufeff]*[=+\-@\t\r\n]")
_WHOLE = re.compile(r"^([+-]?)0*(\d+)(\.0+)?$")  # a whole number: 1, 01 or 1.0
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")


def cell_text(value: Any) -> str:
    """Return a cell as text: a missing value is empty, and a whole number has no decimal point."""
    if isinstance(value, str):
        return value
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError as error:
            raise InputError("the cell holds bytes that are not UTF-8") from error
    value = plain(value)
    if value is None:
        return ""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool | int | float | list | tuple | Mapping):
        return json.dumps(value, ensure_ascii=False, default=cell_text)
    return str(value)


def plain(value: Any) -> Any:
    """Return a value of numpy, pandas or torch as a plain Python value; None for a missing one."""
    if hasattr(value, "tolist"):
        dtype = str(getattr(value, "dtype", ""))
        if dtype.endswith("64[ns]"):  # of times in nanoseconds, numpy returns plain integers
            value = value.astype(dtype.replace("[ns]", "[us]"))
        value = value.tolist()
    try:
        return None if value is None or value != value else value  # nan differs from itself
    except (TypeError, ValueError):  # pandas' NA, which is neither; an array inside a list
        return value if isinstance(value, list | tuple | Mapping) else None


def spelling(label: str) -> str:
    """Return a label without differences of case, spaces and Unicode form, and 1 for 1.0 or 01."""
    visible = (c for c in label if unicodedata.category(c) != "Cf")
    # Only forms of full width are replaced: others, such as the ² of m², differ in meaning.
    narrow = (
        unicodedata.normalize("NFKC", c) if unicodedata.east_asian_width(c) == "F" else c
        for c in visible
    )
    text = " ".join(unicodedata.normalize("NFC", "".join(narrow)).split()).casefold()
    return _WHOLE.sub(r"\1\2", text)


def text_fault(text: str) -> str | None:
    """Return why a model cannot read a text, and what to do; None if it can."""
    if "\0" in text:
        return "contains a NUL character; remove it"
    try:
        text.encode()
    except UnicodeEncodeError:
        return "contains a lone surrogate, which is not valid text; remove it"
    return None


def csv_line(cells: Iterable[Any]) -> str:
    """Return a line of CSV without formulas and control characters.

    Text that begins like a formula, also after blanks, gets a `'` in front, which `read_cell` takes
    off again. Control characters are replaced by U+FFFD.
    """
    out = io.StringIO()
    # The writer quotes the characters of its line terminator: with this one, carriage returns too.
    csv.writer(out, lineterminator="\r\n").writerow([_inert(cell) for cell in cells])
    return out.getvalue()[:-2] + "\n"


def _inert(cell: Any) -> Any:
    if not isinstance(cell, str):
        return cell
    cell = visible(cell)
    return f"'{cell}" if _FORMULA.match(cell) else cell


def visible(text: str) -> str:
    """Return a text with U+FFFD for control characters."""
    return _CONTROL.sub("\ufffd", text)


def read_cell(cell: str) -> str:
    """Return a cell without the apostrophe that `csv_line` puts before a formula."""
    return cell[1:] if cell.startswith("'") and _FORMULA.match(cell) else cell


def restored(label: str, options: Sequence[str]) -> str:
    """Return the option that a spreadsheet rewrote as a label, such as `010` as `10`.

    The label itself if it is an option, or if no option or several are equal to it as numbers, or
    but for case and spaces.
    """
    if label in options:
        return label
    equal = [option for option in options if _value(option) == _value(label)]
    return equal[0] if len(equal) == 1 else label


def _value(label: str) -> float | str:
    try:
        return float(label)
    except ValueError:
        return spelling(label)


def unique_names(names: Sequence[Any]) -> list[str]:
    """Return names of columns as text, blank ones by position; ValueError if two are equal."""
    texts = [cell_text(n) for n in names]
    texts = [text if text.strip() else f"column {n}" for n, text in enumerate(texts, start=1)]
    for name, count in Counter(texts).most_common(1):
        if count > 1:
            places = [str(n) for n, text in enumerate(texts, start=1) if text == name]
            raise ValueError(
                f"the columns {' and '.join(places)} are both named {name!r}: rename one of them"
            )
    return texts
