"""Scores of labelled items by other methods, and by controls; from records alone.

A certificate chooses among methods (section 17) by the answers that each would have given. The
controls of section 15 never read the question, and take the same test: if one of them passes, the
certificate does not show that the question was used.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from lastword.errors import RecordError
from lastword.records.cells import Cell, stack_cells
from lastword.records.derived import derive, facts_of
from lastword.records.info import RunInfo
from lastword.records.metrics import Rows
from lastword.rule.geometry import Trajectory
from lastword.trust.policy import BATCH, GATED, TRACE

if TYPE_CHECKING:
    from lastword.methods.contract import ItemReadings, Method

Means = Mapping[str, tuple[float, ...]]

MODEL = "the model"
# Each control, and the one that ranks the candidates in the opposite order.
WORDINGS, BLIND = ("longest", "shortest"), ("question-blind", "anti-blind")


def allowed(cells: Sequence[Cell], methods: Sequence[str]) -> tuple[str, ...]:
    """Return the methods whose input all cells have, in their order."""
    needs = {
        GATED: lambda: _hold(cells, "blind_trajectory"),
        "pmi": lambda: _hold(cells, "blind_scores"),
        "contextual": lambda: _hold(cells, "content_free_scores"),
        BATCH: lambda: bool(means(cells)),
    }
    return tuple(m for m in methods if needs.get(m.partition("@")[0], lambda: True)())


def _hold(cells: Sequence[Cell], name: str) -> bool:
    """Return True if every item that counts for MC1 has a column."""
    return not any(
        table[name].null_count
        for cell in cells
        for _, table in cell.pieces(name, items=cell.mc1_places)
    )


def resolved(
    cells: Sequence[Cell], run: RunInfo, names: Sequence[str], batch_means: Means
) -> "dict[str, Method]":
    """Return the methods except TRACE; batch calibration gets the means of the items.

    Raises:
        RecordError: The records lack the input of a method.
    """
    if unread := [name for name in names if name not in allowed(cells, names)]:
        raise RecordError(
            f"these records do not have the scores that {unread[0]} needs; run `lastword eval` "
            "with --blind all, or leave it out of --methods"
        )
    others = [name for name in names if name != TRACE]
    if not others:  # the import needs torch, which is not always installed
        return {}
    from lastword.methods import resolve
    from lastword.methods.batch_calibrated import batch_calibrated

    facts = facts_of(run)
    return {
        name: m if m.fit is None else batch_calibrated(facts, batch_means)
        for name, m in resolve(others, facts).items()
    }


def means(cells: Iterable[Cell]) -> Means:
    """Return the mean of softmax(b) of each label set that enough items share."""
    from lastword.methods.batch_calibrated import means_of
    from lastword.methods.contract import ItemReadings

    def base_scores() -> "Iterator[ItemReadings]":
        for cell in cells:
            for items, table in cell.pieces("candidates"):
                texts = table["candidates"].to_pylist()
                for place, candidates in zip(items.tolist(), texts, strict=True):
                    S = Trajectory(cell.base_scores(place)[:, None])
                    yield ItemReadings(tuple(candidates), np.zeros(0, np.int64), S)

    return means_of(base_scores())


def scores(cells: Sequence[Cell], methods: "Mapping[str, Method]") -> dict[str, Rows]:
    """Return the scores of the items that count for MC1 by the model, methods and controls.

    They are padded with -inf. Where a method does not apply, it has the model's scores.
    """
    parts: dict[str, list[Rows]] = {}
    for cell in cells:
        base, blind = cell.scores["base_scores"], cell.scores["blind_scores"]
        own = {name: np.where(np.isnan(u), base, u) for name, u in derive(cell, methods).items()}
        columns = {MODEL: base, TRACE: cell.scores["scores"]} | own
        for name, opposite, u in ((*WORDINGS, cell.characters), (*BLIND, blind)):
            columns |= {name: u, opposite: cell.least_first(u)}
        for name, u in columns.items():
            parts.setdefault(name, []).append(u[cell.mc1_places])
    stacked = {name: stack_cells(each) for name, each in parts.items()}
    unread = [name for name in BLIND if np.isnan(stacked[name]).any()]
    return {name: u for name, u in stacked.items() if name not in unread}
