"""Every variant of the rule, decided again from records alone (method, section 11).

An item's geometry is derived once (`readings`). A variant is then a `Variant`, and deciding a cell
under it is a few array operations over all of its items.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
from jaxtyping import Float, Int

from lastword.errors import InputError
from lastword.evaluation.readings import (
    BASE,
    DECISIVE,
    EARLY,
    MIX,
    NAMES,
    OVERRIDING,
    Padded,
    Readings,
)
from lastword.evaluation.statistics import ROUNDING
from lastword.records.cells import mean
from lastword.theta import Theta

QUESTION_GATE = "Question gate (ours)"
# Less than this between two candidates is rounding, in nats (method, section 9): where both prompts
# end alike depth 0 reads the same twice.
_MOVED = 1e-4

GRIDS: Mapping[str, tuple[float, ...]] = MappingProxyType(
    {
        "tau_dim": (1.0, 1.0005, 1.001, 1.0015, 1.005, 1.01, 1.05, 1.1, 1.25),
        "eta": tuple(k / 4 for k in range(9)),
        "tau_logr": tuple(k / 4 for k in range(9)),
        "tau_H": tuple(round(0.05 * k, 2) for k in range(20)),
        "gamma": tuple(k / 4 - 3 for k in range(13)),
    }
)


@dataclass(frozen=True)
class Variant:
    """Algorithm 1 with at most one component replaced.

    Attributes:
        theta: Thresholds and eta.
        candidate_space: Which items take method, section 4: those that d_eff sends there, all
            (n = 2 too, with the three gates), or none.
        dropped: Operators whose items fall to the base.
        invariant: Read instead of every model's I(M); None reads I(M).
        question_gate: True if an override stands only where the question moved its answer up
            against the base's, at the depth that decides (method, section 14; ours).
    """

    theta: Theta = field(default_factory=Theta)
    candidate_space: Literal["routed", "always", "never"] = "routed"
    dropped: frozenset[str] = frozenset()
    invariant: float | None = None
    question_gate: bool = False


@dataclass(frozen=True, eq=False)
class Answers:
    """The answers of a variant on one cell.

    Attributes:
        operators: Places in the table of operators [items].
        scores: u, -inf beyond an item's candidates [items, candidates].
    """

    operators: Int[np.ndarray, " items"]
    scores: Padded

    @property
    def index(self) -> Int[np.ndarray, " items"]:
        """The corrected choice of every item; the lowest place on ties."""
        choice: Int[np.ndarray, " items"] = self.scores.argmax(axis=1)
        return choice


@dataclass(frozen=True, eq=False)
class Effect:
    """One variant over all cells, as differences from the base in [-1, 1].

    Attributes:
        label: What was replaced.
        deltas_mc1: Mean delta MC1 of each cell, nan where none counts [cells].
        deltas_mc2: Mean delta MC2 of each cell, nan where none counts [cells].
        value: The swept constant's value; None outside a sweep.
    """

    label: str
    deltas_mc1: Float[np.ndarray, " cells"]
    deltas_mc2: Float[np.ndarray, " cells"]
    value: float | None = None

    @property
    def delta_mc1(self) -> float:
        """Unweighted mean over the cells that have one."""
        return mean(self.deltas_mc1[~np.isnan(self.deltas_mc1)])

    @property
    def delta_mc2(self) -> float:
        """Unweighted mean over the cells that have one."""
        return mean(self.deltas_mc2[~np.isnan(self.deltas_mc2)])

    @property
    def negative_mc1(self) -> int:
        """Cells whose unrounded delta MC1 is below 0."""
        return int((self.deltas_mc1 < -ROUNDING).sum())

    @property
    def negative_mc2(self) -> int:
        """Cells whose unrounded delta MC2 is below 0."""
        return int((self.deltas_mc2 < -ROUNDING).sum())


@dataclass(frozen=True)
class Sweep:
    """One constant of the outer rule moved over a grid.

    Attributes:
        parameter: Its name in Theta.
        published: Its value in the Theta of the runs.
        effects: One a value of the grid, ascending.
    """

    parameter: str
    published: float
    effects: tuple[Effect, ...]


def decide(readings: Readings, variant: Variant) -> Answers:
    """Algorithm 1 under `variant` for all items of a cell."""
    r, operators = readings, _operators(readings, variant)
    u = np.select(
        [(operators == place)[:, None] for place in OVERRIDING],
        [r.scores(place, variant.theta.eta) for place in OVERRIDING],
        r.base,
    )
    answers = Answers(operators, np.where(r.present, u, -np.inf))
    return _gated(r, answers) if variant.question_gate else answers


def deltas(readings: Readings, variant: Variant) -> tuple[float, float]:
    """Mean delta MC1 and delta MC2 of a cell under `variant`; nan where no item counts.

    The question gate has none where nothing was read blind.
    """
    r = readings
    if variant.question_gate and not r.read_blind:
        return np.nan, np.nan
    if variant.question_gate:
        operators = decide(r, variant).operators
    else:
        operators = _operators(r, variant)
    gains = [r.gains(place, variant.theta.eta) for place in OVERRIDING]
    fires = [operators == place for place in OVERRIDING]
    first, second = (np.select(fires, [gain[i] for gain in gains], 0.0) for i in range(2))
    return mean(first[r.counts_mc1]), mean(second[r.counts_mc2])


def necessity(cells: Sequence[Readings], theta: Theta) -> list[Effect]:
    """The rule and the eight rows of the necessity table, in the paper's order.

    Where cells were read blind a row of our own follows, the question gate, over those.
    """
    rule = Variant(theta)
    variants = {
        "TRACE" if theta == Theta() else "TRACE (as run)": rule,
        "Force every item into multi-directional arm": replace(rule, candidate_space="always"),
        "Force every item into scalar arm": replace(rule, candidate_space="never"),
        "Drop signed mixing": replace(rule, dropped=frozenset({"mix"})),
        "Drop earliest-state recovery": replace(rule, dropped=frozenset({"early"})),
        "Drop both scalar operators": replace(rule, dropped=frozenset({"mix", "early"})),
        "Drop multi-directional arm": replace(rule, dropped=frozenset({"decisive"})),
        "Force signed mixing on every model": replace(rule, invariant=np.inf),
        "Force fallback on every model": replace(rule, invariant=0.0),
    }
    if any(cell.read_blind for cell in cells):
        variants[QUESTION_GATE] = replace(rule, question_gate=True)
    return [_effect(label, cells, variant) for label, variant in variants.items()]


def sweep(
    cells: Sequence[Readings], theta: Theta, parameter: str, values: Sequence[float] | None = None
) -> Sweep:
    """One constant moved over `values`, the rest as in `theta` (method, section 11).

    At tau_dim = 1 binary items are decided as at 1.0005: their d_eff is 1 exactly. The paper's
    regressions at that point are rounding noise and are not reproduced (method, section 12).

    Raises:
        InputError: `parameter` is not one of the five.
    """
    if parameter not in GRIDS:
        raise InputError(f"cannot sweep {parameter}; one of {', '.join(GRIDS)}")
    grid = sorted(GRIDS[parameter] if values is None else values)
    effects = [
        _effect(f"{parameter} = {value:g}", cells, Variant(_with(theta, parameter, value)), value)
        for value in grid
    ]
    return Sweep(parameter, float(getattr(theta, parameter)), tuple(effects))


def _with(theta: Theta, parameter: str, value: float) -> Theta:
    changed: dict[str, Any] = {parameter: value}
    return replace(theta, **changed)


def _effect(
    label: str, cells: Sequence[Readings], variant: Variant, value: float | None = None
) -> Effect:
    pairs = np.array([deltas(cell, variant) for cell in cells], dtype=float).reshape(-1, 2)
    return Effect(label, pairs[:, 0], pairs[:, 1], value)


def _operators(r: Readings, variant: Variant) -> Int[np.ndarray, " items"]:
    """Return the operator that answers each item, as places in the table of operators."""
    theta = variant.theta
    invariant = (
        r.invariant if variant.invariant is None else np.full_like(r.d_eff, variant.invariant)
    )
    by_d_eff = {"routed": theta.tau_dim, "always": -np.inf, "never": np.inf}
    spatial = r.d_eff > by_d_eff[variant.candidate_space]
    gates = r.changes & (r.log_ratio > theta.tau_logr) & (r.entropy > theta.tau_H)
    mixes = invariant > theta.tau_I
    # A mix with eta = 0 is the base: lambda = 0 (method, section 6).
    sharper = (r.sharper > 0) & (theta.eta > 0)
    fires = [spatial & gates, ~spatial & mixes & sharper]
    fires += [~spatial & ~mixes & (r.confidence < theta.gamma)]
    allowed = [
        fire & (NAMES[place] not in variant.dropped)
        for fire, place in zip(fires, OVERRIDING, strict=True)
    ]
    return np.select(allowed, [DECISIVE, MIX, EARLY], BASE)


def _gated(r: Readings, answers: Answers) -> Answers:
    """The answers whose overrides the question itself moved up; the base's for the others."""
    base = np.where(r.present, r.base, -np.inf)
    new, old, item = answers.index, base.argmax(axis=1), np.arange(len(base))
    rises = np.select(
        [(answers.operators == place)[:, None] for place in OVERRIDING],
        [r.moved[place] for place in OVERRIDING],
    )
    stands = (new == old) | (rises[item, new] - rises[item, old] > _MOVED)  # nan does not stand
    operators = np.where(stands, answers.operators, BASE)
    return Answers(operators, np.where(stands[:, None], answers.scores, base))
