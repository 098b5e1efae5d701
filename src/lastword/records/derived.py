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
from lastword.records.ragged import Lists, Matrices, Places
from lastword.rule.theta import Theta

if TYPE_CHECKING:
    import pandas as pd

    from lastword.methods.contract import Evidence, Facts, Method
    from lastword.rule.geometry import Scores

_TEXT = ("candidates", "candidate_tokens", "blind_tokens")
_ENDS = ("base_scores", "blind_scores", "content_free_scores")
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


def fit(cell: Cell, methods: "Mapping[str, Method]") -> "dict[str, Method]":
    """Return the methods; those that use a mean over unlabelled items are fitted to the cell."""
    return {
        name: m if m.fit is None else m.fit(e for _, e in evidence(cell, {name: m}))
        for name, m in methods.items()
    }


def derive(cell: Cell, methods: "Mapping[str, Method]") -> "dict[str, list[Scores | None]]":
    """Return every method's scores of every answered item, in the cell's order.

    Returns:
        Scores in nats [candidates] by method and item; None if a method does not apply.

    Raises:
        RecordError: A method needs whole vocabularies, which records do not have.
    """
    for name, method in methods.items():
        if method.needs.token_scorer is not None:
            raise RecordError(f"records hold no scores of {name}; write them with `compare`")
    if not methods:
        return {}
    fitted = fit(cell, methods)
    scores: dict[str, list[Scores | None]] = {n: [None] * len(cell.items) for n in methods}
    for place, one in evidence(cell, methods):
        for name, method in fitted.items():
            scores[name][place] = method.scores(one)
    return scores


def evidence(cell: Cell, methods: "Mapping[str, Method]") -> "Iterator[tuple[int, Evidence]]":
    """Yield the index of each answered item, and the readings of it that these methods need."""
    needs = [method.needs for method in methods.values()]
    depths = frozenset[int]().union(*(n.depths | n.blind for n in needs))
    whole = len(depths) > 1 or any(n.t for n in needs)
    for places, frame in cell.slices(*_TEXT, *_ENDS, *(_WHOLE if whole else ())):
        yield from _rows(places, frame, max(depths), whole=whole)


def _rows(
    places: Places, frame: "pd.DataFrame", depth: int, *, whole: bool
) -> "Iterator[tuple[int, Evidence]]":
    from lastword.methods.contract import Evidence
    from lastword.rule.geometry import Trajectory

    lists = {n: Lists.of(frame[n]) for n in (*_TEXT[1:], *_ENDS[:2], "t_scores") if n in frame}
    tables = {
        n: Matrices.of(frame[n])
        for n in ("content_free_scores", "trajectory", "blind_trajectory")
        if n in frame
    }
    for at, (place, candidates) in enumerate(zip(places, frame["candidates"], strict=True)):
        here = np.array([at])
        row: dict[str, Any] = {n: v.stack(here)[0] for n, v in lists.items() if v.lengths[at]}
        row |= {n: v.stack(here)[0] for n, v in tables.items() if v.rows[at]}
        S, blind = row.get("trajectory") if whole else None, None
        # Methods that need only the last depth get trajectories with nan before it.
        end = Trajectory.at_end(row["base_scores"], depth)
        if "blind_scores" in row:
            blind_end = Trajectory.at_end(row["blind_scores"], depth)
            blind = Trajectory(row.get("blind_trajectory", blind_end.scores))
        yield (
            int(place),
            Evidence(
                candidates=tuple(candidates),
                tokens=row["candidate_tokens"].astype(int),
                trajectory=Trajectory(end.scores if S is None else S, row.get("t_scores")),
                blind=blind,
                blind_tokens=row.get("blind_tokens"),
                content_free=row.get("content_free_scores"),
            ),
        )
