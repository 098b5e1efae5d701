"""Recheck: records are not believed; what they decided is decided again from their trajectories.

Swapped labels cannot be seen. Whatever else is edited disagrees with something: a depth that is
missing or no number, d_eff and the gates with the trajectory, an answer with the rule.
"""

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from lastword.errors import RecordError
from lastword.evaluation.ablation import Variant, decide
from lastword.evaluation.readings import NAMES, Readings, read
from lastword.records.cells import Cell, column
from lastword.records.columns import Lists, Matrices
from lastword.records.metrics import mc1_rows
from lastword.theta import Theta

_ROUNDING = 1e-9  # of d_eff and of scores in nats, computed one by one and many at once
# The constant that a gate is held against, where Theta has it.
_THRESHOLDS = {
    "log_margin_ratio": "tau_logr",
    "entropy": "tau_H",
    "confidence": "gamma",
    "invariant": "tau_I",
}


def recheck(cell: Cell, theta: Theta, invariant: float) -> None:
    """Refuse a cell of which an item's record does not follow from its trajectory.

    Args:
        cell: The cell; trajectories and gates are read from the disk.
        theta: What its `run.json` says.
        invariant: I(M), likewise.

    Raises:
        RecordError: The first item that disagrees, and in what.
    """
    _require(cell, column(cell.items, "invariant") == invariant, "I(M) is not the run's")
    _check_stored(cell, theta, invariant)
    readings = read(cell, theta)
    _check_decided(cell, readings, theta)


def _require(cell: Cell, holds: np.ndarray, what: str, items: np.ndarray | None = None) -> None:
    """Name the first of the items where something does not hold."""
    if holds.all():
        return
    place = int(np.flatnonzero(~holds)[0])
    name = cell.items["id"].iloc[place if items is None else items[place]]
    raise RecordError(
        f"{cell.model} on {cell.benchmark}, item {name}: {what}; records that were edited certify "
        "nothing: run `lastword eval` anew"
    )


def _check_stored(cell: Cell, theta: Theta, invariant: float) -> None:
    """Trajectories whole and finite, T beside them, and gates held against the run's constants."""
    depths: int | None = None
    own = {name: getattr(theta, of) for name, of in _THRESHOLDS.items()}
    for items, frame in cell.slices("trajectory", "t_scores", "gates"):
        S, t = Matrices.of(frame["trajectory"]), Lists.of(frame["t_scores"])
        _require(
            cell, (S.rows > 0) & (S.sizes % np.maximum(S.rows, 1) == 0), "no trajectory", items
        )
        widths = S.sizes // S.rows
        depths = int(widths[0]) if depths is None else depths
        _require(cell, widths == depths, f"depths are missing, others have {depths}", items)
        _require(cell, t.lengths == S.rows, "the scores of T are missing", items)
        finite = np.isfinite(np.append(S.values, 0.0)).cumsum()
        whole = finite[S.starts + S.sizes - 1] - finite[S.starts] == S.sizes - 1
        whole &= np.isfinite(S.values[S.starts])
        _require(cell, whole, "a depth of its trajectory is no number", items)
        _require(cell, np.isfinite(t.each(lambda u: u.sum(axis=1))), "T is no number", items)
        holds = [_follows(json.loads(gates), own, invariant) for gates in frame["gates"]]
        _require(cell, np.array(holds), "its gates have other constants than the run", items)


def _follows(gates: Mapping[str, Any], own: Mapping[str, float], invariant: float) -> bool:
    """Whether an item's gates were held against these constants, and I(M) is this."""
    own_gates = {name: gate for name, gate in gates.items() if name in own}
    read = gates.get("invariant", {}).get("value", invariant) in (invariant, None)
    return read and all(gate["threshold"] == own[name] for name, gate in own_gates.items())


def _check_decided(cell: Cell, r: Readings, theta: Theta) -> None:
    """What was answered against the rule on what was read."""
    items, answers = cell.items, decide(r, Variant(theta))
    for some, frame in cell.slices("d_eff"):
        again = np.isclose(column(frame, "d_eff"), r.d_eff[some], rtol=_ROUNDING, equal_nan=True)
        _require(cell, again, "d_eff is not the trajectory's", some)
    base = np.where(r.present, r.base, -np.inf)
    for what, own, stored in (
        ("base_scores are not the last depth", r.base, "base_scores"),
        ("scores are not the rule's", np.where(r.present, answers.scores, 0.0), "scores"),
    ):
        scores = Lists.of(items[stored])
        _require(cell, scores.lengths == r.present.sum(axis=1), f"{what}, by number")
        close = np.isclose(scores.padded(own.shape[1]), own, rtol=_ROUNDING, atol=_ROUNDING)
        _require(cell, (close | ~r.present).all(axis=1), what)
    operators = np.array(NAMES)[answers.operators]
    _require(cell, items["operator"].to_numpy(str) == operators, "operator is not the rule's")
    _require(cell, column(items, "index") == answers.index, "the answer is not the rule's")
    _require(cell, column(items, "base_index") == base.argmax(axis=1), "the base is another")
    for name, u in (("mc1_base", base), ("mc1", answers.scores)):
        stored_mc1 = column(items, name)
        places = np.flatnonzero(r.counts_mc1)
        again = mc1_rows(u[places], r.truthful[places])
        _require(cell, np.isclose(stored_mc1[places], again), f"{name} is another", places)
