"""Does the evidence come from the question? The rule beside itself, run blind (method, section 14).

A method can gain by liking how a candidate is worded. The blind trajectory reads the same
candidates at the same depths with the question left out of the template; what the same rule, run
whole on that, adds to the blind base needs no question.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from lastword.evaluation.ablation import Variant, decide
from lastword.evaluation.readings import NAMES, Readings, read
from lastword.evaluation.statistics import Interval, bootstrap_mean
from lastword.records.cells import Cell, mean
from lastword.records.columns import Lists, Matrices, PerItem, Places
from lastword.records.metrics import mc1_by_depth
from lastword.rule.operators import OPERATORS
from lastword.theta import Theta

PerDepth = Float[np.ndarray, " depths"]


@dataclass(frozen=True)
class Gain:
    """What the rule, or one of its operators, adds to MC1 with the question and without.

    Attributes:
        name: `TRACE`, or the operator that answers.
        sighted: Mean gain over the base, question read, in [-1, 1].
        blind: Mean gain of the same rule over the blind base, in [-1, 1].
        interval: Paired bootstrap interval over items of the gain that needs the question.
    """

    name: str
    sighted: float
    blind: float
    interval: Interval

    @property
    def needs(self) -> float:
        """Gain that needs the question: what the blind rule does not gain too."""
        return self.sighted - self.blind


@dataclass(frozen=True, eq=False)
class Dependence:
    """One cell with the question and without, over its MC1 items that were read both ways.

    Attributes:
        model: The model's name.
        benchmark: The benchmark's name.
        items: How many items were read both ways.
        sighted: MC1 of S at every depth, in [0, 1] [depths].
        blind: MC1 of the blind S at every depth, in [0, 1] [depths].
        gains: TRACE first, then the operators that answer; these add up to it.
    """

    model: str
    benchmark: str
    items: int
    sighted: PerDepth
    blind: PerDepth
    gains: tuple[Gain, ...]

    @property
    def depth(self) -> int:
        """L, where the base is read."""
        return len(self.sighted) - 1


def dependence(
    cell: Cell, theta: Theta, *, sighted: Readings | None = None, seed: int = 0
) -> Dependence | None:
    """The cell's rule beside itself without the question; None where nothing was read blind.

    Args:
        cell: The cell, of `lastword eval --blind all`; the rule is run without a certificate.
        theta: Theta of the run.
        sighted: What was read of the cell with the question; None reads it here.
        seed: Of the intervals.

    Raises:
        RecordError: The run did not read every depth and T.
    """
    second = cell.items.get("blind_t_scores")
    if second is None or not second.notna().any():
        return None
    sighted, blind = sighted or read(cell, theta), read(cell, theta, blind=True)
    both = np.flatnonzero(sighted.counts_mc1 & ~np.isnan(blind.d_eff))
    if not both.size:
        return None
    return Dependence(
        model=cell.model,
        benchmark=cell.benchmark,
        items=both.size,
        sighted=by_depth(cell, "trajectory", both),
        blind=by_depth(cell, "blind_trajectory", both),
        gains=_paired(_added(sighted, theta, both), _added(blind, theta, both), seed),
    )


def by_depth(cell: Cell, trajectory: str, items: Places) -> PerDepth:
    """Mean MC1 of S at every depth, over some of the items that count for it.

    Args:
        cell: The cell.
        trajectory: The column of S.
        items: Their places.
    """
    which = np.zeros(len(cell.items), dtype=bool)
    which[items] = True
    truthful = Lists.of(cell.items["truthful"])
    total = np.zeros(())
    for places, frame in cell.slices(trajectory):
        whole = Matrices.of(frame[trajectory])
        for some in whole.alike(np.flatnonzero(which[places])):
            truths = truthful.stack(places[some]).astype(bool)
            total = total + mc1_by_depth(whole.stack(some), truths).sum(axis=0)
    curve: PerDepth = total / len(items)
    return curve


def _added(readings: Readings, theta: Theta, items: Places) -> dict[str, PerItem]:
    """What each operator, and all of them, add to the MC1 of some items."""
    operators = decide(readings, Variant(theta)).operators[items]
    fires = {name: operators == place for place, name in enumerate(NAMES) if name != "base"}
    gains = {
        name: np.where(fires[name], readings.gains(place, theta.eta)[0][items], 0.0)
        for place, name in enumerate(NAMES)
        if name != "base"
    }
    total = np.sum(list(gains.values()), axis=0)
    return {"TRACE": total} | {name: gain for name, gain in gains.items() if fires[name].any()}


def _paired(sighted: dict[str, PerItem], blind: dict[str, PerItem], seed: int) -> tuple[Gain, ...]:
    never = np.zeros_like(sighted["TRACE"])
    names = [n for n in ("TRACE", *OPERATORS) if n != "base" and (n in sighted or n in blind)]
    pairs = [(name, sighted.get(name, never), blind.get(name, never)) for name in names]
    return tuple(_gain(name, own, other, seed) for name, own, other in pairs)


def _gain(name: str, sighted: PerItem, blind: PerItem, seed: int) -> Gain:
    interval = bootstrap_mean(sighted - blind, seed=seed)
    return Gain(name, mean(sighted), mean(blind), interval)
