"""The item that a reader asked for by name, and which of its records tells most."""

from collections.abc import Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING

import numpy as np

from lastword.errors import RecordError
from lastword.records.cells import Cell
from lastword.records.record import Record

if TYPE_CHECKING:
    import pandas as pd

_CLOSE = 5
_LOOKED_THROUGH = 10_000  # names that a mistyped one is compared with


def named(cells: Sequence[Cell], name: str) -> "pd.DataFrame":
    """The answered records of one item, a model each.

    Args:
        cells: Of all models and benchmarks.
        name: BENCHMARK-ID as records name them, in any case; a question of TruthfulQA may be named
            without the metric that its item is for (`truthfulqa-42` is `truthfulqa-42/mc1`).

    Raises:
        RecordError: No such item, or no model answered it.
    """
    import pandas as pd

    names = [(f"{c.benchmark}-" + c.records["id"].astype(str)).str.casefold() for c in cells]
    folded = name.casefold()
    places = [np.flatnonzero(own == folded) for own in names]
    if not any(own.size for own in places):
        places = [np.flatnonzero(own == f"{folded}/mc1") for own in names]
    if not any(own.size for own in places):
        some = pd.concat(names).head(_LOOKED_THROUGH).unique().tolist()
        close = get_close_matches(folded, some, _CLOSE, cutoff=0)
        raise RecordError(
            f"no item {name!r}; expected BENCHMARK-ID as records name them, such as "
            f"{', '.join(close)}"
        )
    pairs = zip(cells, places, strict=True)
    rows = pd.concat([cell.whole(own) for cell, own in pairs if own.size])
    answers = rows[rows["error"].isna()]
    if answers.empty:
        raise RecordError(f"item {name!r} failed on every model: {rows['error'].iloc[0]}")
    return answers


def telling(rows: list[Record]) -> Record:
    """The first of an item's records that TRACE repaired, best by a decisive layer."""

    def telling(record: Record) -> tuple[bool, bool, bool]:
        answer = record.decision
        return record.gain == 1, answer.operator == "decisive", answer.corrected

    return max(rows, key=telling)
