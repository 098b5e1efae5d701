"""Paired comparisons of two answers to the same items: gains by group and McNemar's test."""

import numpy as np
from jaxtyping import Float
from scipy.special import bdtr

from lastword.records.metrics import fixed_and_broken
from lastword.records.ragged import PerItem
from lastword.trust.record_groups import Groups

Values = Float[np.ndarray, " values"]

# A delta below zero by less than this is the rounding of a mean, not a regression.
ROUNDING = 1e-12


def mcnemar(fixed: int, broken: int) -> float:
    """Return the two-sided p-value of McNemar's exact test of fixed against broken answers.

    With credits shared at ties, an answer is fixed where its MC1 rose and broken where it fell.
    """
    return min(1.0, 2 * coin_tail(min(fixed, broken), fixed + broken))


def coin_tail(most: int, coins: int) -> float:
    """Return the chance of at most so many heads; by symmetry, of at most so many tails."""
    return float(bdtr(most, coins, 0.5))  # scipy.stats has it too, and takes a second to import


def folded(gains: PerItem, groups: Groups) -> Values:
    """Return the gains of groups, scaled so that their mean is the mean over items.

    Args:
        gains: Of every item.
        groups: Number of each item's group, from 0 on.
    """
    sums = np.bincount(groups, gains)
    sums[np.abs(sums) < ROUNDING] = 0.0  # what cancels is neither won nor lost
    weighted: Values = sums * (len(sums) / max(len(gains), 1))
    return weighted


def paired(gains: PerItem, groups: Groups) -> tuple[int, int, float]:
    """Return items won, items lost, and McNemar's exact p over groups of them.

    Args:
        gains: Of every item; nan where one of the two did not answer, which leaves.
        groups: Number of each item's group, from 0 on.

    Returns:
        Won, lost, and p; p is nan where nothing is left.
    """
    there = ~np.isnan(gains)
    won, lost = fixed_and_broken(gains[there])
    p = mcnemar(*fixed_and_broken(folded(gains[there], groups[there])))
    return won, lost, p if there.any() else float("nan")
