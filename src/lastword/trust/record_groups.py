"""Groups of the items of records, as defined in `trust.groups`."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Int

from lastword.records.cells import Cell
from lastword.records.metrics import PerItem, Places
from lastword.trust.groups import marks, numbers

_SHARED = ("id", "prompt", "candidates", "shared")

Groups = Int[np.ndarray, " items"]


def groups(cells: Sequence[Cell]) -> Groups:
    """Return the number of the group of each item that counts for MC1, from 0."""
    return numbers([m for n, cell in enumerate(cells) for m in _marks(cell, cell.mc1_places, n)])


def changed_groups(cell: Cell, gains: PerItem) -> Groups:
    """Return the groups of one cell's items; items without a gain or loss are groups of one.

    These items do not change a group's gain or its sign, so their texts need not be read.
    """
    changed = np.flatnonzero(gains)
    first = np.arange(len(gains))
    marked = _marks(cell, cell.mc1_places[changed], 0)
    together = numbers(marked)
    _, starts = np.unique(together, return_index=True)
    first[changed] = changed[starts[together]]
    return np.asarray(np.unique(first, return_inverse=True)[1])


def _marks(cell: Cell, places: Places, number: int) -> list[list[str]]:
    """Return the marks of some of a cell's items [places].

    Scores replace the texts of records without texts.
    """
    marked = []
    for items, table in cell.pieces(*_SHARED, items=places):
        columns = (table[name].to_pylist() for name in _SHARED)
        for place, name, prompt, candidates, shared in zip(items.tolist(), *columns, strict=True):
            text = prompt or np.array2string(np.round(cell.base_scores(place), 3))
            marked.append(list(marks(name, text, candidates, shared, number)))
    return marked
