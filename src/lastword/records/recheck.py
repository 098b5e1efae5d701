"""Recheck: recomputes the decisions of records from their trajectories, to find edited records.

Swapped labels cannot be detected. Any other edit leads to a contradiction: a depth that is missing
or not a number, d_eff or gates that do not follow from the trajectory, an answer that does not
follow from the rule.
"""

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from lastword.errors import RecordError
from lastword.records.cells import Cell, column
from lastword.records.metrics import mc1_rows
from lastword.records.readings import NAMES, AblatedRule, Readings, read
from lastword.rule.theta import Theta

# Records may be stored in float32 (dev/LOG.md): differences within the band of section 9 are
# rounding.
_NATS = 1e-4
_D_EFF = 1e-5  # relative tolerance of d_eff
# The constant of Theta that each gate is compared with.
_THRESHOLDS = {
    "log_margin_ratio": "tau_logr",
    "entropy": "tau_H",
    "confidence": "gamma",
    "invariant": "tau_I",
}


def recheck(cell: Cell, theta: Theta, invariant: float, depth: int) -> None:
    """Refuse a cell with a record that does not follow from its trajectory, and name it."""
    _require(cell, column(cell.items, "invariant") == invariant, "I(M) is not the run's")
    _check_stored(cell, theta, invariant, depth)
    _check_decided(cell, read(cell, theta), theta)


def _require(cell: Cell, holds: np.ndarray, what: str, items: np.ndarray | None = None) -> None:
    if holds.all():
        return
    place = int(np.flatnonzero(~holds)[0])
    name = cell.items["id"].iloc[place if items is None else items[place]]
    raise RecordError(
        f"{cell.model} on {cell.benchmark}, item {name}: {what}; edited records certify "
        "nothing: run `lastword eval` again"
    )


def _check_stored(cell: Cell, theta: Theta, invariant: float, depth: int) -> None:
    thresholds = {name: getattr(theta, of) for name, of in _THRESHOLDS.items()}
    t, blind = cell.scores["t_scores"], cell.scores["blind_scores"]
    read = (np.isfinite(t) == cell.present).all(axis=1)
    _require(cell, read, "a score of T is missing or not finite")
    for items, table in cell.pieces("trajectory", "blind_trajectory", "gates"):
        ends = cell.stack(items, table["blind_trajectory"])[:, :, -1:]
        same = np.isnan(ends) | np.isclose(ends, blind[items][:, :, None], rtol=0, atol=10 * _NATS)
        _require(cell, same.all(axis=(1, 2)), "blind scores are not the last blind depth", items)
        finite = np.isfinite(cell.stack(items, table["trajectory"]))
        expected = cell.present[items][:, :, None] & (np.arange(finite.shape[2]) <= depth)
        whole = (finite == expected).all(axis=(1, 2)) & (finite.shape[2] > depth)
        _require(cell, whole, f"its trajectory is not {depth + 1} finite depths", items)
        gates = map(json.loads, table["gates"].to_pylist())
        holds = [_follows(each, thresholds, invariant) for each in gates]
        _require(cell, np.array(holds), "its gates have other constants than the run", items)


def _follows(gates: Mapping[str, Any], thresholds: Mapping[str, float], invariant: float) -> bool:
    rule_gates = {name: gate for name, gate in gates.items() if name in thresholds}
    read = gates.get("invariant", {}).get("value", invariant) in (invariant, None)
    return read and all(gate["threshold"] == thresholds[name] for name, gate in rule_gates.items())


def _check_decided(cell: Cell, r: Readings, theta: Theta) -> None:
    items, (operators, scores) = cell.items, r.decide(AblatedRule(theta))
    for some, table in cell.pieces("d_eff"):
        d_eff = table["d_eff"].to_numpy().astype(float)
        equal = np.isclose(d_eff, r.d_eff[some], rtol=_D_EFF, equal_nan=True)
        _require(cell, equal, "d_eff is not the trajectory's", some)
    base = np.where(r.present, r.base, -np.inf)
    for what, expected, stored in (
        ("base_scores are not the last depth", base, "base_scores"),
        ("scores are not the rule's", scores, "scores"),
    ):
        close = np.isclose(cell.scores[stored], expected, rtol=0, atol=_NATS)
        _require(cell, close.all(axis=1), what)
    named = np.array(NAMES)[operators]
    _require(cell, items["operator"].to_numpy(str) == named, "operator is not the rule's")
    _require(cell, column(items, "index") == scores.argmax(axis=1), "the answer is not the rule's")
    _require(cell, column(items, "base_index") == base.argmax(axis=1), "the base is another")
    for name, u in (("mc1_base", base), ("mc1", scores)):
        stored_mc1 = column(items, name)
        places = np.flatnonzero(r.counts_mc1)
        equal = mc1_rows(u[places], r.truthful[places])
        _require(cell, np.isclose(stored_mc1[places], equal), f"{name} is another", places)
