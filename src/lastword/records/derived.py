"""Computes scores of methods from records alone, without a model.

A record has every depth with the question and, if the run read it, without the question. Methods
that need only these do not need a second run. A mean over a cell's items (`batch-calibrated`) is
computed here, over the items that share a label set.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from lastword.errors import RecordError
from lastword.records.cells import Cell
from lastword.records.columns import Row, without_nan
from lastword.records.metrics import Rows
from lastword.rule.theta import Theta

if TYPE_CHECKING:
    from lastword.methods.contract import Facts, ItemReadings, Method

_ENDS = (
    *("candidates", "candidate_tokens", "blind_tokens"),
    *("base_scores", "blind_scores", "content_free_scores"),
)
_WHOLE = ("trajectory", "t_scores", "blind_trajectory")


def facts_of(run: Mapping[str, Any]) -> "Facts":
    """Return the facts of the model that methods need, from `run.json`."""
    from lastword.methods.contract import Facts

    theta = Theta.from_dict(run["theta"])
    return Facts(int(run["depth"]), int(run["vocabulary"]), float(run["invariant"]), theta)


def fitted_methods(names: Iterable[str], run: Mapping[str, Any]) -> "dict[str, Method]":
    """Return the methods of a run that learn from a cell's items, by name."""
    from lastword.methods import METHODS, resolve

    table_names = [name for name in names if name.partition("@")[0] in METHODS]
    corrections = resolve(table_names, facts_of(run)) if table_names else {}
    return {name: method for name, method in corrections.items() if method.fit is not None}


def derive(cell: Cell, methods: "Mapping[str, Method]") -> dict[str, Rows]:
    """Return every method's scores of every answered item, padded as a cell's scores are.

    Methods that use a mean over unlabelled items are fitted to the cell. An item to which a method
    does not apply has nan. A method that needs whole vocabularies raises RecordError.
    """
    for name, method in methods.items():
        if method.needs.token_scorer is not None:
            raise RecordError(f"records hold no scores of {name}; write them with `compare`")
    fitted = {
        name: m if m.fit is None else m.fit(one for _, one in evidence(cell, {name: m}))
        for name, m in methods.items()
    }
    scores = {name: np.where(cell.present, np.nan, -np.inf) for name in methods}
    for place, one in evidence(cell, methods) if methods else ():
        for name, method in fitted.items():
            if (u := method.scores(one)) is not None:
                scores[name][place, : len(u)] = u
    return scores


def evidence(cell: Cell, methods: "Mapping[str, Method]") -> "Iterator[tuple[int, ItemReadings]]":
    """Yield the index of each answered item, and the readings of it that these methods need."""
    needs = [method.needs for method in methods.values()]
    depths = frozenset[int]().union(*(n.depths | n.blind for n in needs))
    whole = len(depths) > 1 or any(n.t for n in needs)
    for frame in cell.frames(*_ENDS, *(_WHOLE if whole else ())):
        for place, row in zip(frame.index, frame.to_dict("records"), strict=True):
            yield int(place), _evidence(without_nan(row), max(depths))


def _evidence(row: Row, depth: int) -> "ItemReadings":
    """Return the readings in a record; depths that were not read are nan before the last one."""
    from lastword.methods.contract import ItemReadings
    from lastword.rule.geometry import Trajectory

    blind, free = row["blind_scores"], row["content_free_scores"]
    S, B = row.get("trajectory"), row.get("blind_trajectory")
    S = Trajectory.at_end(row["base_scores"], depth).scores if S is None else S
    B = Trajectory.at_end(blind, depth).scores if B is None and blind is not None else B
    return ItemReadings(
        candidates=tuple(row["candidates"]),
        tokens=row["candidate_tokens"],
        trajectory=Trajectory(S, row.get("t_scores")),
        blind=None if blind is None or B is None else Trajectory(B),
        blind_tokens=row["blind_tokens"],
        content_free=None if free is None else np.stack(free),
    )
