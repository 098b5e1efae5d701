"""Intervals and exact tests of differences, and their results in words (docs/benchmarks.md).

Cells that share items or models are not independent. Intervals and tests over cells describe how
stable a mean is over this grid, not how it would differ on another one.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import Float

from lastword.records.cells import Cell, mean
from lastword.records.metrics import PerItem, fixed_and_broken
from lastword.trust.groups import changed_groups
from lastword.trust.paired import ROUNDING, coin_tail, folded, mcnemar
from lastword.trust.testing import holm

Values = Float[np.ndarray, " values"]
Finding = Literal["helps", "gains", "hurts", "unclear", "unlabelled"]

LEVEL = 0.95
ITEM_RESAMPLES = 10_000
CELL_RESAMPLES = 200_000
LEAST_CELLS = 5  # an interval over fewer is little more than their minimum and maximum
_CHUNK = 250_000  # draws at a time, which stay in the processor's cache
MOST_DRAWN = 20_000  # maximum number of values that are drawn; the mean of more is normal


@dataclass(frozen=True)
class Interval:
    """A confidence interval; both ends are nan without values."""

    low: float
    high: float


@dataclass(frozen=True)
class GridStatistics:
    """The deltas of all cells together.

    The interval is nan for fewer than `LEAST_CELLS`; the exact sign test is one-sided.
    """

    cells: int
    mean: float
    interval: Interval
    sign_p: float
    negative: int


@dataclass(frozen=True)
class Judgement:
    """The verdict on one cell, with its uncertainty.

    Attributes:
        interval_mc1: The paired bootstrap interval of delta MC1 over groups of items.
        won: Number of groups of items (copies, pairs) with more fixed than broken.
        p: p-value of McNemar's exact test over groups, two-sided.
        p_holm: p after Holm's correction over the cells judged together.
        finding: `unclear` unless p_holm is below 0.05. Then `hurts`, or `helps` if the gain beats
            the cell's controls, or else `gains`. `unlabelled` if no item counts.
        objection: The reason not to count a gain as help; empty if there is none.
    """

    model: str
    benchmark: str
    items: int
    failed: int
    delta_mc1: float
    interval_mc1: Interval
    delta_mc2: float
    interval_mc2: Interval
    fixed: int
    broken: int
    won: int
    lost: int
    p: float
    p_holm: float
    finding: Finding
    objection: str = ""

    @property
    def sentence(self) -> str:
        """The judgement in words."""
        if self.finding == "unlabelled":
            return "No answered item has both a truthful and a false candidate: nothing to judge."
        verdict = {
            "helps": "correction helps",
            "gains": f"correction gains, {self.objection}",
            "hurts": "correction hurts",
            "unclear": "correction is not shown to help or to hurt",
        }[self.finding]
        count = "this one item" if self.items == 1 else f"these {self.items} items"
        low, high = 100 * self.interval_mc1.low, 100 * self.interval_mc1.high
        ungrouped = (self.won, self.lost) == (self.fixed, self.broken)
        grouped = "" if ungrouped else f"over groups, {self.won} against {self.lost}, "
        answers = "answer" if self.fixed == 1 else "answers"
        holm = "" if self.p_holm == self.p else f", {self.p_holm:.3g} by Holm"
        return (
            f"On {count} {verdict}: MC1 {100 * self.delta_mc1:+.2f} points (95% interval {low:+.2f}"
            f" to {high:+.2f}), {self.fixed} {answers} fixed and {self.broken} broken "
            f"(McNemar {grouped}p = {self.p:.3g}{holm})."
        )


def bootstrap_mean(values: Values, resamples: int = ITEM_RESAMPLES) -> Interval:
    """Return the percentile interval of the mean by the nonparametric bootstrap (fixed seed)."""
    if not values.size:
        return Interval(float("nan"), float("nan"))
    middle = mean(values)
    if np.ptp(values) == 0:
        return Interval(middle, middle)
    if values.size > MOST_DRAWN:
        half = 1.959964 * float(values.std()) / math.sqrt(values.size)
        return Interval(middle - half, middle + half)
    # Not scipy.stats.bootstrap: its import takes a second.
    rng, chunk = np.random.default_rng(0), max(1, _CHUNK // values.size)
    sizes = [min(chunk, resamples - at) for at in range(0, resamples, chunk)]
    draws = (rng.integers(0, values.size, (size, values.size)) for size in sizes)
    means = np.concatenate([values[draw].mean(axis=1) for draw in draws])
    low, high = np.quantile(means, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Interval(float(low), float(high))


def sign_test(deltas: Values) -> float:
    """Return the p-value of the exact one-sided sign test: at least this many positive deltas.

    Deltas of exactly 0 are left out; nan if none is left.
    """
    signs = deltas[np.abs(deltas) > ROUNDING] > 0
    if not signs.size:
        return float("nan")
    return coin_tail(int((~signs).sum()), signs.size)


def over_cells(deltas: Values) -> GridStatistics:
    """Return mean, interval and sign test over the deltas of cells, without those that are nan."""
    values = deltas[~np.isnan(deltas)]
    enough = values if values.size >= LEAST_CELLS else values[:0]
    return GridStatistics(
        cells=values.size,
        mean=mean(values),
        interval=bootstrap_mean(enough, CELL_RESAMPLES),
        sign_p=sign_test(values),
        negative=int((values < -ROUNDING).sum()),
    )


_UNCONTROLLED = "and nothing that never reads the question was held against it"


def judge(
    cells: Sequence[Cell], objections: Sequence[str] = (), others: Sequence[float] = ()
) -> list[Judgement]:
    """Return a judgement of every cell, with Holm's correction over cells with items to judge.

    Each cell has a reason not to count its gain as help, or an empty text; without `objections` no
    cell gets `helps`. `others` are p-values of the same report, which share Holm's correction.
    """
    gains = [cell.gains("mc1") for cell in cells]
    groups = [folded(g, changed_groups(cell, g)) for cell, g in zip(cells, gains, strict=True)]
    p = [mcnemar(*fixed_and_broken(each)) if each.size else math.nan for each in groups]
    adjusted = holm(np.array([*p, *others]))[: len(p)].tolist()
    reasons = objections or [_UNCONTROLLED] * len(cells)
    rows = zip(cells, gains, groups, p, adjusted, reasons, strict=True)
    return [_judged(*row) for row in rows]


def _judged(
    cell: Cell, gain: PerItem, by_group: Values, p: float, p_holm: float, objection: str
) -> Judgement:
    finding = verdict(mean(gain), p_holm, objection)
    (fixed, broken), (won, lost) = fixed_and_broken(gain), fixed_and_broken(by_group)
    return Judgement(
        model=cell.model,
        benchmark=cell.benchmark,
        items=gain.size,
        failed=cell.failed,
        delta_mc1=mean(gain),
        interval_mc1=bootstrap_mean(by_group),
        delta_mc2=mean(cell.gains("mc2")),
        interval_mc2=bootstrap_mean(cell.gains("mc2")),
        fixed=fixed,
        broken=broken,
        won=won,
        lost=lost,
        p=p,
        p_holm=p_holm,
        finding=finding,
        objection=objection if finding == "gains" else "",
    )


def verdict_lines(judgement: Judgement, controls: str) -> list[str]:
    """Return the verdict on a cell as text lines, followed by its controls if there are any."""
    line = f"{judgement.model} on {judgement.benchmark}: {judgement.sentence}"
    return [line, f"  {controls}"] if controls else [line]


def verdict(gain: float, p: float, objection: str) -> Finding:
    """Return the finding for a cell, from its gain in MC1 and p after Holm (docs/statistics.md)."""
    if np.isnan(p):
        return "unlabelled"
    if not p < 1 - LEVEL:
        return "unclear"
    if gain < 0:
        return "hurts"
    return "gains" if objection else "helps"
