"""Cells of a table: one text for each value that a frame or a file may hold, and no other."""

import csv
import io
import json
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from lastword.errors import InputError

_LEAD = re.compile(r"[ \u00a0\ufeff]*[=+\-@\t\r\n]")  # of what a spreadsheet would run
_WHOLE = re.compile(r"^([+-]?\d+)\.0+$")  # a whole number with a point
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")


def cell_text(value: Any) -> str:
    """Return a cell as text: a missing value is empty, and a whole number has no point.

    Raises:
        InputError: Bytes that are not UTF-8, which no text stands for.
    """
    if isinstance(value, str):
        return value
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError as error:
            raise InputError("the cell holds bytes that are not UTF-8") from error
    value = _plain(value)
    if value is None:
        return ""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool | int | float | list | tuple | Mapping):
        return json.dumps(value, ensure_ascii=False, default=cell_text)
    return str(value)


def _plain(value: Any) -> Any:
    """Return a value of numpy or pandas as Python has it, and None for what is not there."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    try:
        return None if value is None or value != value else value
    except (TypeError, ValueError):  # pandas' NA, which is neither; an array inside a list
        return value if isinstance(value, list | tuple | Mapping) else None


def spelling(label: str) -> str:
    """Return what labels that look alike share: case, spaces, Unicode form, 1 and 1.0."""
    visible = "".join(c for c in label if unicodedata.category(c) != "Cf")
    text = " ".join(unicodedata.normalize("NFC", visible).split()).casefold()
    return _WHOLE.sub(r"\1", text)


def text_fault(text: str) -> str | None:
    """Return what keeps a text from being read by a model, and what to do; None if nothing does."""
    if "\0" in text:
        return "contains a NUL character; remove it"
    try:
        text.encode()
    except UnicodeEncodeError:
        return "contains a lone surrogate, which is no text; remove it"
    return None


def csv_line(cells: Iterable[Any]) -> str:
    """Return a line of CSV that no spreadsheet runs and no terminal obeys.

    Text that begins like a formula, also after blanks, is quoted by `'`; control characters that no
    table needs are shown as U+FFFD.
    """
    out = io.StringIO()
    # The writer quotes what is in its line's end, and so a carriage return too.
    csv.writer(out, lineterminator="\r\n").writerow([inert_cell(cell) for cell in cells])
    return out.getvalue()[:-2] + "\n"


def inert_cell(cell: Any) -> Any:
    """Return a cell as `csv_line` writes it."""
    if not isinstance(cell, str):
        return cell
    cell = _CONTROL.sub("\ufffd", cell)
    return f"'{cell}" if _LEAD.match(cell) else cell


def unique_names(names: Sequence[Any]) -> list[str]:
    """Return the names of a table's columns as text; a blank one is `column 3`, by its place.

    Raises:
        ValueError: Two columns have one name.
    """
    texts = [str(cell_text(n)) for n in names]
    texts = [text if text.strip() else f"column {n}" for n, text in enumerate(texts, start=1)]
    (most, count), *_ = [*Counter(texts).most_common(1), ("", 0)]
    if count > 1:
        places = [str(n) for n, text in enumerate(texts, start=1) if text == most]
        raise ValueError(
            f"the columns {' and '.join(places)} are both named {most!r}: rename one of them"
        )
    return texts
