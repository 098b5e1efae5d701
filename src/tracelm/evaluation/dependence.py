"""Does the evidence come from the question? The rule beside itself, run blind (method, section 14).

A method can gain by liking how a candidate is worded. The blind trajectory reads the same
candidates at the same depths with the question left out of the template; what the same rule, run
whole on that, adds to the blind base needs no question.
"""

from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float

from tracelm.evaluation.ablation import Variant, decide, read
from tracelm.evaluation.cells import Cell, mean
from tracelm.evaluation.metrics import mc1_rows
from tracelm.evaluation.statistics import Interval, bootstrap_mean
from tracelm.rule.operators import OPERATORS
from tracelm.theta import Theta

PerDepth = Float[np.ndarray, " depths"]
PerItem = Float[np.ndarray, " items"]


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


def dependence(cell: Cell, theta: Theta, *, seed: int = 0) -> Dependence | None:
    """The cell's rule beside itself without the question; None where nothing was read blind.

    Args:
        cell: The cell, of `tracelm eval --blind all`; the rule is run without a certificate.
        theta: Theta of the run.
        seed: Of the intervals.

    Raises:
        RecordError: The run did not read every depth and T.
    """
    items = cell.mc1_items
    if "blind_trajectory" not in items or not items["blind_trajectory"].notna().any():
        return None
    items = items[items["blind_trajectory"].notna()].reset_index(drop=True)
    unread = items.assign(trajectory=items["blind_trajectory"], t_scores=items["blind_t_scores"])
    sighted, blind = replace(cell, items=items), replace(cell, items=unread)
    return Dependence(
        model=cell.model,
        benchmark=cell.benchmark,
        items=len(items),
        sighted=by_depth(sighted),
        blind=by_depth(blind),
        gains=_paired(_added(sighted, theta), _added(blind, theta), seed),
    )


def by_depth(cell: Cell) -> PerDepth:
    """Mean MC1 of S at every depth, over the items that count for it."""
    items = cell.mc1_items
    rows = [
        mc1_rows(S.T, np.broadcast_to(np.asarray(truth, dtype=bool), S.T.shape))
        for S, truth in zip(items["trajectory"], items["truthful"], strict=True)
    ]
    curve: PerDepth = np.mean(rows, axis=0)
    return curve


def _added(cell: Cell, theta: Theta) -> dict[str, PerItem]:
    """What each operator, and all of them, add to the MC1 of each item."""
    readings = read(cell, theta)
    answers = decide(readings, Variant(theta))
    base = np.where(readings.present, readings.base, -np.inf)
    gains = mc1_rows(answers.scores, readings.truthful) - mc1_rows(base, readings.truthful)
    fires = {name: answers.operators == place for place, name in enumerate(OPERATORS)}
    return {"TRACE": gains} | {name: gains * own for name, own in fires.items() if own.any()}


def _paired(sighted: dict[str, PerItem], blind: dict[str, PerItem], seed: int) -> tuple[Gain, ...]:
    never = np.zeros_like(sighted["TRACE"])
    names = [n for n in ("TRACE", *OPERATORS) if n != "base" and (n in sighted or n in blind)]
    pairs = [(name, sighted.get(name, never), blind.get(name, never)) for name in names]
    return tuple(_gain(name, own, other, seed) for name, own, other in pairs)


def _gain(name: str, sighted: PerItem, blind: PerItem, seed: int) -> Gain:
    interval = bootstrap_mean(sighted - blind, seed=seed)
    return Gain(name, mean(sighted), mean(blind), interval)
