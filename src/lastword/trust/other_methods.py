"""Scores of labelled items by other methods, and by controls; from records alone.

A certificate chooses among methods by the answers that each would have given. The
controls never read the question, and take the same test: if one of them passes, the
certificate does not show that the question was used.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from lastword.errors import RecordError
from lastword.records.cells import Cell
from lastword.records.derived import derive, facts_of
from lastword.records.metrics import Rows
from lastword.rule.geometry import Trajectory
from lastword.trust.policy import BATCH, GATED, TRACE

if TYPE_CHECKING:
    from lastword.methods.contract import Method

Means = Mapping[str, tuple[float, ...]]

MODEL = "the model"
# Each control, and the one that ranks the candidates in the opposite order.
WORDINGS, BLIND = ("longest", "shortest"), ("question-blind", "anti-blind")


def allowed(cell: Cell, methods: Sequence[str]) -> tuple[str, ...]:
    """Return the methods whose input all items have, in their order."""

    def holds(name: str) -> bool:
        tables = (table for _, table in cell.pieces(name, items=cell.mc1_places))
        return not any(table[name].null_count for table in tables)

    needs = {
        GATED: lambda: holds("blind_trajectory"),
        "pmi": lambda: holds("blind_scores"),
        "contextual": lambda: holds("content_free_scores"),
        BATCH: lambda: bool(means(cell)),
    }
    return tuple(m for m in methods if needs.get(m.partition("@")[0], lambda: True)())


def resolved(cell: Cell, names: Sequence[str], batch_means: Means) -> "dict[str, Method]":
    """Return the methods except TRACE; batch calibration gets the means of the items.

    Raises:
        RecordError: The records lack the input of a method.
    """
    if unread := [name for name in names if name not in allowed(cell, names)]:
        raise RecordError(
            f"these records do not have the scores that {unread[0]} needs; run `lastword eval` "
            "with --blind all, or leave it out of --methods"
        )
    others = [name for name in names if name != TRACE]
    if not others:  # the import needs torch, which is not always installed
        return {}
    from lastword.methods import resolve
    from lastword.methods.batch_calibrated import batch_calibrated

    facts = facts_of(cell.info)
    return {
        name: m if m.fit is None else batch_calibrated(facts, batch_means)
        for name, m in resolve(others, facts).items()
    }


def means(cell: Cell) -> Means:
    """Return the mean of softmax(b) of each label set that enough items share."""
    from lastword.methods.batch_calibrated import means_of
    from lastword.methods.contract import ItemReadings

    def base_scores() -> "Iterator[ItemReadings]":
        for items, table in cell.pieces("candidates"):
            texts = table["candidates"].to_pylist()
            for place, candidates in zip(items.tolist(), texts, strict=True):
                S = Trajectory(cell.base_scores(place)[:, None])
                yield ItemReadings(tuple(candidates), np.zeros(0, np.int64), S)

    return means_of(base_scores())


def scores(cell: Cell, methods: "Mapping[str, Method]") -> dict[str, Rows]:
    """Return the scores of the items that count for MC1 by the model, methods and controls.

    They are padded with -inf. Where a method does not apply, it has the model's scores.
    """
    base, blind = cell.scores["base_scores"], cell.scores["blind_scores"]
    columns = {MODEL: base, TRACE: cell.scores["scores"]}
    columns |= {name: np.where(np.isnan(u), base, u) for name, u in derive(cell, methods).items()}
    for name, opposite, u in ((*WORDINGS, cell.characters), (*BLIND, blind)):
        if not np.isnan(u[cell.mc1_places]).any():
            columns |= {name: u, opposite: cell.least_first(u)}
    return {name: u[cell.mc1_places] for name, u in columns.items()}
