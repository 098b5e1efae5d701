"""Items from a file: every row as an item or as the error that names it, and errors told once."""

import ast
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from lastword.errors import InputError, ItemError
from lastword.files.rows import Row, is_table, read_rows
from lastword.text.items import Item

_CANDIDATE = re.compile(r"candidate([ _]\w+|\d+)")  # a column of a table
_KINDS = 6  # of errors that are told; what is more is counted
_PLACES = 3  # of each kind


def read_items(
    path: str | Path,
    *,
    separator: str = " ",
    say: Callable[[str], None] = lambda line: None,
    encoding: str | None = None,
) -> list[Item | ItemError]:
    """Return every row of a file as an Item, or as the error that names its place.

    An item without an id is named by its place, counted from 1. In CSV and TSV `candidates` is a
    JSON list, or there is a column for each (`candidate_1`, `candidate_2`, ...); an empty cell is
    nothing.

    Args:
        path: JSON lines, a JSON array, CSV, TSV, Excel or Parquet, by its ending; `-` is standard
            input.
        separator: Separator of the items that have none.
        say: Gets what was guessed of a table.
        encoding: Of the file's text; UTF-8 if left out.

    Raises:
        InputError: The file cannot be read.
    """
    path = Path(path)
    table = is_table(path)
    return [_item(row, separator, table) for row in read_rows(path, say, encoding)]


def require_items(parsed: Iterable[Item | ItemError], path: str | Path) -> list[Item]:
    """Return all items, or one error that tells what is wrong with the others.

    Raises:
        InputError: At least one row is bad, or there is none at all.
    """
    parsed = list(parsed)
    errors = [p for p in parsed if isinstance(p, ItemError)]
    if errors:
        raise InputError(f"{path}: {len(errors)} bad: {summarise(errors)}")
    if not parsed:
        raise InputError(f"{path} has no items; expected one JSON object a line, or rows")
    return [p for p in parsed if isinstance(p, Item)]


def summarise(errors: Sequence[ItemError]) -> str:
    """Return errors in one line: those that differ in numbers alone once, with the first places."""
    kinds: dict[str, list[ItemError]] = {}
    for error in errors:
        kinds.setdefault(re.sub(r"\d+", "#", error.reason), []).append(error)
    lines = [_line(alike) for alike in kinds.values()][:_KINDS]
    more = len(kinds) - len(lines)
    return "; ".join([*lines, *([f"and {more} other kinds"] if more else [])])


def _line(alike: Sequence[ItemError]) -> str:
    first = alike[0]
    if len(alike) == 1:
        return str(first)
    places = ", ".join(_place(error) for error in alike[:_PLACES])
    rest = ", ..." if len(alike) > _PLACES else ""
    return f"{first.reason} ({len(alike)} items: {places}{rest})"


def _place(error: ItemError) -> str:
    """Return `line 3: item q7` of `item line 3: item q7: no candidates`."""
    return str(error).removesuffix(error.reason).removesuffix(": ").removeprefix("item ")


def _item(row: Row, separator: str, table: bool) -> Item | ItemError:
    if row.error is not None:
        return ItemError(row.error, row.place)
    try:
        value = _decoded(row.value) if table else row.value
        return Item.from_dict(value, id=row.place, separator=separator)
    except ItemError as error:
        if error.item == row.place:
            return error
        at_place = ItemError(str(error), row.place)
        # The place is for people, the id for whoever reads the output.
        at_place.item, at_place.reason = error.item or row.place, error.reason
        return at_place


def _decoded(row: Mapping[str, str | None]) -> dict[str, Any]:
    """Return a row of text as the object that it stands for."""
    value: dict[str, Any] = {name: cell for name, cell in row.items() if cell}
    each = [value.pop(name) for name in list(value) if _CANDIDATE.fullmatch(name)]
    for name in ("candidates", "truthful"):
        if name in value:
            value[name] = _list(name, value[name])
    return ({"candidates": each} if each else {}) | value


def _list(name: str, cell: str) -> Any:
    try:
        return json.loads(cell)
    except (ValueError, RecursionError):
        pass
    try:
        return ast.literal_eval(cell)  # as Python, and so pandas, writes a list
    except (ValueError, SyntaxError, RecursionError, MemoryError) as error:
        raise ItemError(f'{name} is no JSON; write a list such as ["a", "b"]') from error
