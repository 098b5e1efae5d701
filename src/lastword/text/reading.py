"""Items from a file, with an error for each bad row, and a summary of such errors."""

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from lastword.errors import InputError, ItemError
from lastword.files.rows import Row, is_table, read_rows
from lastword.files.wording import counted
from lastword.text.items import Item

_CANDIDATE = re.compile(r"candidate([ _]\w+|\d+)")  # a column of a table
_SHOWN = 6  # maximum number of errors in a summary


def read_items(
    path: str | Path,
    *,
    say: Callable[[str], None] = lambda line: None,
    encoding: str | None = None,
) -> list[Item | ItemError]:
    """Return each row of a file as an item, or as an error with its place.

    An item without an id gets its place as id. In CSV and TSV, `candidates` is a JSON list, or each
    candidate has a column (`candidate_1`, `candidate_2`, ...). Empty cells are ignored. The
    arguments are those of `read_rows`.
    """
    path = Path(path)
    table = is_table(path)
    return [_item(row, table) for row in read_rows(path, say, encoding)]


def require_items(parsed: Iterable[Item | ItemError], path: str | Path) -> list[Item]:
    """Return all items; an InputError has the first bad rows."""
    parsed = list(parsed)
    errors = [p for p in parsed if isinstance(p, ItemError)]
    if errors:
        raise InputError(f"{path}: {counted(len(errors), 'invalid row')}: {summarise(errors)}")
    if not parsed:
        raise InputError(f"{path} has no items; expected one JSON object per line, or rows")
    return [p for p in parsed if isinstance(p, Item)]


def summarise(errors: Sequence[ItemError]) -> str:
    """Return the first errors in one line, and the number of the others."""
    rest = [f"and {len(errors) - _SHOWN} more"] if len(errors) > _SHOWN else []
    return "; ".join([*map(str, errors[:_SHOWN]), *rest])


def _item(row: Row, table: bool) -> Item | ItemError:
    if row.error is not None:
        return ItemError(row.error, row.place)
    try:
        value = _decoded(row.value) if table else row.value
        return Item.from_dict(value, id=row.place)
    except ItemError as error:
        named = error.item not in (None, row.place)
        return ItemError(error.reason, error.item or row.place, row.place if named else None)


def _decoded(row: Mapping[str, str | None]) -> dict[str, Any]:
    """Return the row of a table as a JSON object."""
    value: dict[str, Any] = {name: cell for name, cell in row.items() if cell}
    candidates = [value.pop(name) for name in list(value) if _CANDIDATE.fullmatch(name)]
    for name in ("candidates", "truthful"):
        if name in value:
            value[name] = _list(name, value[name])
    return ({"candidates": candidates} if candidates else {}) | value


def _list(name: str, cell: str) -> Any:
    try:
        return json.loads(cell)
    except (ValueError, RecursionError) as error:
        raise ItemError(f'{name} is not valid JSON; write a list such as ["a", "b"]') from error
