"""Automation: which share of texts is answered at which error, and which is left to a person.

An answer is given if its confidence is at least a threshold. The thresholds form a ladder from the
strictest to the loosest. Each rung is tested for the hypothesis that more than `error` of the
answers at or above it are wrong, and the first that fails ends the tests. So each rung is tested at
the full level (a fixed sequence). Selective classification (Geifman and El-Yaniv 2017), with exact
tests as in Learn-then-Test (Angelopoulos 2021).

    rungs = climb(confidence, wrong, groups, quantiles(confidence), error=0.1, level=0.05)
    automation = Automation(0.1, rungs)
    automation.rung(0.05)  # the loosest threshold that is proven
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import takewhile

import numpy as np
from jaxtyping import Bool, Float, Int

from lastword.errors import InputError
from lastword.trust.evidence import group_means
from lastword.trust.testing import at_least, upper_bound

SHARES = np.arange(1.0, 0.0, -0.05)  # shares of texts that are answered, one per rung
Confidence = Float[np.ndarray, " items"]


@dataclass(frozen=True)
class Errors:
    """Wrong answers among some labelled items.

    Attributes:
        items: Number of items.
        groups: Number of their groups.
        rate: Mean over the groups of the share of wrong answers; the tests use this mean.
    """

    items: int
    groups: int
    rate: float

    @classmethod
    def of(cls, wrong: Bool[np.ndarray, " items"], groups: Int[np.ndarray, " items"]) -> "Errors":
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
        return upper_bound(self.rate, self.groups, level, self.exact)


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
        look: Number of this look at the labels, from 1; each has half of the remaining delta. 0 if
            only one look is taken.
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
        return delta / self.answerers / 2**self.look

    def rung(self, delta: float) -> Rung | None:
        """Return the loosest rung that is proven; None if none is."""
        level = self.level(delta)
        passed = [*takewhile(lambda rung: rung.errors.p(self.error) <= level, self.rungs)]
        return passed[-1] if passed else None


def quantiles(confidence: Confidence) -> list[float]:
    """Return the thresholds at which 5%, 10%, ... of texts are answered, descending.

    They do not depend on the truths.
    """
    if not len(confidence):
        return []
    thresholds = np.quantile(confidence, 1 - SHARES, method="higher")
    return [float(tau) for tau in np.unique(thresholds)[::-1]]


def rungs(
    confidence: Confidence,
    wrong: Bool[np.ndarray, " items"],
    groups: Int[np.ndarray, " items"],
    thresholds: Iterable[float],
    every: Float[np.ndarray, " texts"] | None = None,
) -> list[Rung]:
    """Return the errors of labelled items at or above each threshold.

    Args:
        confidence: Confidence of each labelled item's answer.
        wrong: True where the answer is wrong [items].
        groups: Number of each item's group [items].
        thresholds: The thresholds.
        every: Confidence of all texts, for the shares; by default that of the labelled items.
    """
    steps = []
    for tau in thresholds:
        over = confidence >= tau
        share = float(((confidence if every is None else every) >= tau).mean())
        steps.append(Rung(tau, share, Errors.of(wrong[over], groups[over])))
    return steps


def climb(steps: Iterable[Rung], error: float, level: float) -> tuple[Rung, ...]:
    """Return the rungs that are tested, the first that fails included, the strictest first.

    Rungs that so few groups reach that a single wrong answer fails are left out. This does not
    depend on the truths.
    """
    least, tested = first_size(error, level), []
    for step in steps:
        if step.errors.groups >= least:
            tested.append(step)
            if step.errors.p(error) > level:
                break
    return tuple(tested)


def first_size(error: float, level: float) -> int:
    """Return the minimum number of groups with which one wrong answer passes the test."""
    from scipy.stats import binom

    sizes = np.arange(1, math.ceil(10 * -math.log(level) / error))
    return int(sizes[(binom.cdf(1, sizes, error) <= level).argmax()])
