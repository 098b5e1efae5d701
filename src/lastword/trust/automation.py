"""Automation: which share of texts is answered at which error, and which is left to a person.

An answer is given if its confidence is at least a threshold (docs/statistics.md). This is selective
classification (Geifman and El-Yaniv 2017), with exact tests as in Learn-then-Test (Angelopoulos
2021). The thresholds form a ladder from the strictest to the loosest. Each rung is tested for the
hypothesis that more than `error` of the answers at or above it are wrong, and the first that fails
ends the tests. So each rung is tested at the full level (a fixed sequence). The ladder is fixed
before a label that tests it is seen, and nothing may be fitted to these labels.
"""

import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float

from lastword.errors import InputError
from lastword.trust.evidence import group_means
from lastword.trust.groups import Groups
from lastword.trust.testing import at_least, upper_bound

ERRORS = (0.05, 0.1, 0.2)  # error rates at which estimates are shown
STEPS, PERCENTS = 20, 100  # rungs of a ladder, and points of a curve
MOST = 5000  # labels beyond which a promise counts as out of reach
_TAIL = 0.025  # probability below, and above, the interval of an estimate

Confidence = Float[np.ndarray, " items"]
Texts = Float[np.ndarray, " texts"]
Wrong = Bool[np.ndarray, " items"]


@dataclass(frozen=True)
class Errors:
    """Wrong answers among labelled items; `rate` is the mean over groups of their share."""

    items: int
    groups: int
    rate: float

    @classmethod
    def of(cls, wrong: Wrong, groups: Groups) -> "Errors":
        """Count the wrong answers of items."""
        means = group_means(groups, wrong.astype(float))
        return cls(len(wrong), len(means), float(means.mean()) if len(means) else 0.0)

    def check(self) -> None:
        """Raise InputError if the counts do not fit together."""
        if not (0 <= self.groups <= self.items and 0 <= self.rate <= 1):
            raise InputError("its counts do not fit together")
        wrong = self.rate * self.items
        if self.exact and abs(wrong - round(wrong)) > 1e-6:
            raise InputError("its counts do not fit together: items that stand by themselves")

    @property
    def exact(self) -> bool:
        """True if every item is a group by itself."""
        return self.items == self.groups

    def p(self, error: float) -> float:
        """Return the p-value of the hypothesis that more than `error` of such answers are wrong."""
        return float(at_least(error, self.rate, self.groups, self.exact))

    def at_most(self, level: float) -> float:
        """Return the upper bound of the error rate at a level."""
        return float(upper_bound(self.rate, self.groups, level, self.exact))


@dataclass(frozen=True)
class Rung:
    """A minimum confidence of given answers: their share of all texts, and their errors."""

    threshold: float
    share: float
    errors: Errors


@dataclass(frozen=True)
class Automation:
    """The claim that at most a share of the given answers is wrong, with the tests that prove it.

    Attributes:
        error: Maximum share of wrong answers among those given.
        rungs: The rungs that were tested, from the highest threshold down.
        answerers: Number of ways to answer that the same labels chose from; each has an equal part
            of delta. 1 if the way to answer was fixed before these labels were seen.
        look: Number of this look at the labels, from 1; each has half of the remaining delta. 0 for
            only one.
    """

    error: float
    rungs: tuple[Rung, ...]
    answerers: int = 1
    look: int = 0

    def check(self) -> None:
        """Raise InputError if numbers contradict each other."""
        if not 0 < self.error < 1 or self.answerers < 1 or self.look < 0:
            raise InputError("its error rate, answerers or look are out of range")
        thresholds = [rung.threshold for rung in self.rungs]
        if thresholds != sorted(thresholds, reverse=True):
            raise InputError("its thresholds are not in the order of the tests")
        for rung in self.rungs:
            rung.errors.check()

    def level(self, delta: float) -> float:
        """Return the level of each test."""
        return float(delta / self.answerers / 2**self.look)

    def rung(self, delta: float) -> Rung | None:
        """Return the loosest rung that is proven; None if none is."""
        level = self.level(delta)
        passed = [*takewhile(lambda rung: rung.errors.p(self.error) <= level, self.rungs)]
        return passed[-1] if passed else None


@dataclass(frozen=True)
class Estimate:
    """The largest share of texts of whose answers at most `error` were wrong; it proves nothing.

    `low` is the largest share whose errors are significantly below `error`, `high` the largest
    whose errors are not significantly above it, at 2.5%. The threshold is None if the share is 0.
    """

    error: float
    share: float
    low: float
    high: float
    threshold: float | None


class Ladder(NamedTuple):
    """Thresholds fixed before the labels that test them are seen, from the strictest down.

    `expected` is the share of texts that is expected to be proven.
    """

    thresholds: tuple[float, ...]
    expected: float


def quantiles(confidence: Texts, count: int = STEPS) -> list[float]:
    """Return the thresholds at which 1/count, 2/count, ... of texts are answered, descending."""
    if not len(confidence):
        return []
    shares = np.arange(1, count + 1) / count
    thresholds = np.quantile(confidence, 1 - shares, method="higher")
    return [float(tau) for tau in np.unique(thresholds)[::-1]]


def rungs(
    confidence: Confidence,
    wrong: Wrong,
    groups: Groups,
    thresholds: Iterable[float],
    pool: Texts | None = None,
) -> list[Rung]:
    """Return the errors of labelled items at or above each threshold.

    `pool` is the confidence of all texts, for the shares; by default that of the labelled items.
    """
    steps = []
    for tau in thresholds:
        over = confidence >= tau
        share = float(((confidence if pool is None else pool) >= tau).mean())
        steps.append(Rung(tau, share, Errors.of(wrong[over], groups[over])))
    return steps


def curve(confidence: Confidence, wrong: Wrong, groups: Groups) -> list[Rung]:
    """Return share against error for cross-fitted answers to labelled items, in steps of 1%."""
    return rungs(confidence, wrong, groups, quantiles(confidence, PERCENTS))


def estimate(steps: Sequence[Rung], error: float) -> Estimate:
    """Return the share of texts that can be answered at an error rate, with its interval.

    The interval inverts exact tests at each point of the curve: Clopper-Pearson's for single items,
    Hoeffding-Bentkus for groups. It ignores that the best of many points is chosen.
    """

    def largest(holds: Callable[[Errors], bool]) -> Rung:
        kept = (step for step in steps if holds(step.errors))
        return max(kept, key=lambda step: step.share, default=Rung(math.nan, 0.0, Errors(0, 0, 0)))

    def more(one: Errors) -> float:
        """Return the p-value of the hypothesis that at most `error` are wrong."""
        return float(at_least(1 - error, 1 - one.rate, one.groups, one.exact))

    best = largest(lambda one: one.rate <= error)
    low = largest(lambda one: one.p(error) <= _TAIL)
    high = largest(lambda one: more(one) > _TAIL)
    threshold = best.threshold if best.share else None
    return Estimate(error, best.share, low.share, high.share, threshold)


def estimates(steps: Sequence[Rung]) -> list[Estimate]:
    """Return the estimates at 5, 10 and 20% error; none without a curve."""
    return [estimate(steps, error) for error in ERRORS] if steps else []


def plan(
    steps: Sequence[Rung], pool: Texts, *, rows: int, error: float, level: float, drawn: bool = True
) -> Ladder:
    """Return the ladder with the largest expected share of texts that is proven.

    For share g, a = wrong + 1/2 and b = right + 1/2 among the g most confident of the labels that
    fitted. Rung g passes with the probability of a beta-binomial (m; a, b) at the critical number
    of errors of m labels, where m = rows g / G if labels are drawn among the G most confident
    texts. The ladder from i to G is expected to prove sum over rungs t of (t - previous) times the
    minimum over s <= t of P(rung s passes).

    `steps` are the curve of cross-fitted answers to the labels that fitted, `rows` the number of
    labels that will test. They are drawn from a pool; if not, they are a random half, and G is 1.

    Raises:
        InputError: There are no texts, or no labels to draw.
    """
    if not len(pool) or rows < 1:
        raise InputError("a ladder needs texts without a label, and labels to draw")
    shares = np.arange(1, STEPS + 1) / STEPS
    wrong, right = _counts(steps, shares)
    best = (0.0, 0, STEPS - 1)
    for last in range(STEPS) if drawn else [STEPS - 1]:
        here = shares[: last + 1]
        most = min(rows, int(len(pool) * here[-1] + 1e-9)) if drawn else rows
        labels = np.floor(most * here / here[-1])
        passes = _chance(labels, wrong[: last + 1], right[: last + 1], error, level)
        for first in range(last + 1):
            gained = np.diff(here[first:], prepend=0.0)
            expected = float(gained @ np.minimum.accumulate(passes[first:]))
            best = max(best, (expected, first, last))
    expected, first, last = best
    thresholds = np.quantile(pool, 1 - shares[first : last + 1], method="higher")
    return Ladder(tuple(np.unique(thresholds)[::-1].tolist()), expected)


def labels_to_prove(steps: Sequence[Rung], error: float, level: float) -> int | None:
    """Return the number of fresh labels that would probably prove half of the estimated share.

    They are drawn among the texts that would be answered. None: the estimate is 0, or `MOST` labels
    are not enough.
    """
    share = estimate(steps, error).share

    def enough(rows: int) -> bool:
        pool = np.zeros(STEPS * rows)  # enough texts; their thresholds are not needed
        return plan(steps, pool, rows=rows, error=error, level=level).expected >= share / 2

    sizes = np.unique(np.geomspace(20, MOST, 40).astype(int)).tolist() if share else []
    place = bisect_left(sizes, True, key=enough)
    return sizes[place] if place < len(sizes) else None


def _counts(steps: Sequence[Rung], shares: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    # The strictest point of the curve that answers at least this share.
    errors = [next(step.errors for step in steps if step.share >= g - 1e-9) for g in shares]
    wrong = np.array([one.rate * one.groups for one in errors])
    return wrong, np.array([one.groups for one in errors]) - wrong


def _chance(
    labels: np.ndarray, wrong: np.ndarray, right: np.ndarray, error: float, level: float
) -> np.ndarray:
    from scipy.stats import betabinom, binom

    critical = binom.ppf(level, labels, error)
    critical -= binom.cdf(critical, labels, error) > level
    chance = betabinom.cdf(critical, labels, wrong + 0.5, right + 0.5)
    return np.where((critical >= 0) & (labels > 0), chance, 0.0)


def until_failure(steps: Iterable[Rung], error: float, level: float) -> tuple[Rung, ...]:
    """Return the rungs that are tested, the first that fails included."""
    tested = []
    for step in steps:
        tested.append(step)
        if step.errors.p(error) > level:
            break
    return tuple(tested)


def climb(steps: Iterable[Rung], error: float, level: float) -> tuple[Rung, ...]:
    """Return the rungs that are tested if no labels have planned a ladder, the strictest first.

    Rungs that so few groups reach that a single wrong answer fails are left out. This does not
    depend on the truths.
    """
    from scipy.stats import binom

    sizes = np.arange(1, math.ceil(10 * -math.log(level) / error))
    least = sizes[(binom.cdf(1, sizes, error) <= level).argmax()]
    return until_failure((one for one in steps if one.errors.groups >= least), error, level)
