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
from lastword.records.ragged import Lists, Matrices
from lastword.records.readings import NAMES, Readings, read
from lastword.records.variant import Variant, decide
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
    """Check that the record of each item of a cell follows from its trajectory.

    Raises:
        RecordError: A record does not; the message has the first such item and the contradiction.
    """
    _require(cell, column(cell.items, "invariant") == invariant, "I(M) is not the run's")
    _check_stored(cell, theta, invariant, depth)
    _check_blind(cell)
    readings = read(cell, theta)
    _check_decided(cell, readings, theta)


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
    """Check that trajectories and T are whole and finite, and gates use the run's constants."""
    thresholds = {name: getattr(theta, of) for name, of in _THRESHOLDS.items()}
    for items, frame in cell.slices("trajectory", "t_scores", "gates"):
        S, t = Matrices.of(frame["trajectory"]), Lists.of(frame["t_scores"])
        numbers, rows = S.numbers, np.maximum(S.rows, 1)
        _require(cell, (S.rows > 0) & (numbers.lengths % rows == 0), "no trajectory", items)
        widths = numbers.lengths // rows
        _require(
            cell, widths == depth + 1, f"its trajectory does not have {depth + 1} depths", items
        )
        _require(cell, t.lengths == S.rows, "the scores of T are missing", items)
        # Prefix sums count the finite numbers of all trajectories without a loop over items.
        finite = np.append(0, np.isfinite(numbers.values).cumsum())
        whole = finite[numbers.starts + numbers.lengths] - finite[numbers.starts] == numbers.lengths
        _require(cell, whole, "its trajectory has a value that is not finite", items)
        _require(
            cell, np.isfinite(t.each(lambda u: u.sum(axis=1))), "a score of T is not finite", items
        )
        holds = [_follows(json.loads(gates), thresholds, invariant) for gates in frame["gates"]]
        _require(cell, np.array(holds), "its gates have other constants than the run", items)


def _check_blind(cell: Cell) -> None:
    """Check that blind readings are consistent; the rule does not use them, so nothing else can.

    The blind scores are the last depth of the blind trajectory. Items with the same candidates
    after the same blind prompt, or the same content-free prompts, have equal scores.
    """
    firsts: dict[str, dict[tuple[Any, ...], np.ndarray]] = {"blind": {}, "content-free": {}}
    names = ("candidates", "blind_scores", "blind_trajectory", "content_free_scores")
    for items, frame in cell.slices(*names):
        for place, row in zip(items.tolist(), frame.to_dict("records"), strict=True):
            here, where = np.array([True]), np.array([place])
            blind, free = (_numbers(row.get(n)) for n in ("blind_scores", "content_free_scores"))
            if blind is not None and row.get("blind_trajectory") is not None:
                last = np.array([candidate[-1] for candidate in row["blind_trajectory"]])
                here = np.array([_close(blind, last)])
                _require(cell, here, "blind scores are not the last blind depth", where)
            if blind is None or free is None:
                continue
            # Records do not store the prompts. Items with equal scores of one kind have the same
            # frame, so their scores of the other kind have to be equal too.
            texts = tuple(row["candidates"])
            for name, frame_of, scores in (("content-free", blind, free), ("blind", free, blind)):
                key = (texts, tuple(np.round(frame_of, 3).ravel().tolist()))
                first = firsts[name].setdefault(key, scores)
                here = np.array([_close(first, scores)])
                _require(cell, here, f"{name} scores are not those of the same frame", where)


def _numbers(value: Any) -> np.ndarray | None:
    """Return a number or a list of numbers as an array; None if there is none."""
    return None if value is None else np.array([np.asarray(row, dtype=float) for row in value])


def _close(one: np.ndarray, other: np.ndarray) -> bool:
    """Return True if two readings agree within the rounding that batching causes."""
    return one.shape == other.shape and bool(np.allclose(one, other, rtol=0, atol=10 * _NATS))


def _follows(gates: Mapping[str, Any], thresholds: Mapping[str, float], invariant: float) -> bool:
    """Return True if an item's gates used these thresholds and this I(M)."""
    rule_gates = {name: gate for name, gate in gates.items() if name in thresholds}
    read = gates.get("invariant", {}).get("value", invariant) in (invariant, None)
    return read and all(gate["threshold"] == thresholds[name] for name, gate in rule_gates.items())


def _check_decided(cell: Cell, r: Readings, theta: Theta) -> None:
    """Compare the recorded answers with the rule applied to the recorded readings."""
    items, answers = cell.items, decide(r, Variant(theta))
    for some, frame in cell.slices("d_eff"):
        equal = np.isclose(column(frame, "d_eff"), r.d_eff[some], rtol=_D_EFF, equal_nan=True)
        _require(cell, equal, "d_eff is not the trajectory's", some)
    base = np.where(r.present, r.base, -np.inf)
    for what, expected, stored in (
        ("base_scores are not the last depth", r.base, "base_scores"),
        ("scores are not the rule's", np.where(r.present, answers.scores, 0.0), "scores"),
    ):
        scores = Lists.of(items[stored])
        _require(cell, scores.lengths == r.present.sum(axis=1), f"{what}, by number")
        close = np.isclose(scores.padded(expected.shape[1]), expected, rtol=0, atol=_NATS)
        _require(cell, (close | ~r.present).all(axis=1), what)
    operators = np.array(NAMES)[answers.operators]
    _require(cell, items["operator"].to_numpy(str) == operators, "operator is not the rule's")
    _require(cell, column(items, "index") == answers.index, "the answer is not the rule's")
    _require(cell, column(items, "base_index") == base.argmax(axis=1), "the base is another")
    for name, u in (("mc1_base", base), ("mc1", answers.scores)):
        stored_mc1 = column(items, name)
        places = np.flatnonzero(r.counts_mc1)
        equal = mc1_rows(u[places], r.truthful[places])
        _require(cell, np.isclose(stored_mc1[places], equal), f"{name} is another", places)
