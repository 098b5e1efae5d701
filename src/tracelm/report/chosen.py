"""The item that a reader asked for by name, and which of its records tells most."""

from difflib import get_close_matches
from typing import TYPE_CHECKING

from tracelm.errors import RecordError
from tracelm.view.portrait import Record

if TYPE_CHECKING:
    import pandas as pd

_CLOSE = 5


def named(records: "pd.DataFrame", name: str) -> "pd.DataFrame":
    """The answered records of one item, a model each.

    Args:
        records: Of all cells.
        name: BENCHMARK-ID as records name them, in any case; a question of TruthfulQA may be named
            without the metric that its item is for (`truthfulqa-42` is `truthfulqa-42/mc1`).

    Raises:
        RecordError: No such item, or no model answered it.
    """
    names = (records["benchmark"].astype(str) + "-" + records["id"].astype(str)).str.casefold()
    wanted = name.casefold()
    found = records[names == wanted]
    if found.empty:
        found = records[names == f"{wanted}/mc1"]
    if found.empty:
        close = get_close_matches(wanted, names.unique().tolist(), _CLOSE, cutoff=0)
        raise RecordError(
            f"no item {name!r}; expected BENCHMARK-ID as records name them, such as "
            f"{', '.join(close)}"
        )
    answered = found[found["error"].isna()]
    if answered.empty:
        raise RecordError(f"item {name!r} failed on every model: {found['error'].iloc[0]}")
    return answered


def telling(rows: list[Record]) -> Record:
    """The first of an item's records that TRACE repaired, best by a decisive layer."""
    return max(rows, key=_told)


def _told(record: Record) -> tuple[bool, bool, bool]:
    repaired = record["mc1_base"] == 0 and record["mc1"] == 1
    return repaired, record["operator"] == "decisive", record["index"] != record["base_index"]
