"""Every variant of the rule, decided again from records alone (method, section 11).

An item's geometry is derived once (`readings`). A variant is then a `Variant`, and deciding a cell
under it is a few array operations over all of its items.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np
from jaxtyping import Float

from lastword.errors import InputError
from lastword.evaluation.statistics import ROUNDING
from lastword.records.cells import mean, mean_known
from lastword.records.readings import OVERRIDING, Readings
from lastword.records.variant import Variant, decide, operators_of
from lastword.theta import Theta

QUESTION_GATE = "Question gate (ours)"
GRIDS: Mapping[str, tuple[float, ...]] = MappingProxyType(
    {
        "tau_dim": (1.0, 1.0005, 1.001, 1.0015, 1.005, 1.01, 1.05, 1.1, 1.25),
        "eta": tuple(k / 4 for k in range(9)),
        "tau_logr": tuple(k / 4 for k in range(9)),
        "tau_H": tuple(round(0.05 * k, 2) for k in range(20)),
        "gamma": tuple(k / 4 - 3 for k in range(13)),
    }
)


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
        return mean_known(self.deltas_mc1)

    @property
    def delta_mc2(self) -> float:
        """Unweighted mean over the cells that have one."""
        return mean_known(self.deltas_mc2)

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


def deltas(readings: Readings, variant: Variant) -> tuple[float, float]:
    """Mean delta MC1 and delta MC2 of a cell under `variant`; nan where no item counts.

    The question gate has none where nothing was read blind.
    """
    r = readings
    if variant.question_gate and not r.read_blind:
        return np.nan, np.nan
    operators = decide(r, variant).operators if variant.question_gate else operators_of(r, variant)
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


def sweep(cells: Sequence[Readings], theta: Theta, parameter: str) -> Sweep:
    """One constant moved over its grid, the rest as in `theta` (method, section 11).

    At tau_dim = 1 binary items are decided as at 1.0005: their d_eff is 1 exactly. The paper's
    regressions at that point are rounding noise and are not reproduced (method, section 12).

    Raises:
        InputError: `parameter` is not one of the five.
    """
    if parameter not in GRIDS:
        raise InputError(f"cannot sweep {parameter}; one of {', '.join(GRIDS)}")
    thetas = {v: replace(theta, **{parameter: v}) for v in GRIDS[parameter]}  # type: ignore[arg-type]
    effects = [
        _effect(f"{parameter} = {value:g}", cells, Variant(own), value)
        for value, own in thetas.items()
    ]
    return Sweep(parameter, float(getattr(theta, parameter)), tuple(effects))


def _effect(
    label: str, cells: Sequence[Readings], variant: Variant, value: float | None = None
) -> Effect:
    pairs = np.array([deltas(cell, variant) for cell in cells], dtype=float).reshape(-1, 2)
    return Effect(label, pairs[:, 0], pairs[:, 1], value)
