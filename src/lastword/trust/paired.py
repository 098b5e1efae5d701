"""Paired comparisons of two answers to the same items: gains by group and McNemar's test."""

import numpy as np
from jaxtyping import Float
from scipy.special import bdtr

from lastword.records.metrics import PerItem, fixed_and_broken
from lastword.trust.groups import Groups

Values = Float[np.ndarray, " values"]

# A difference of means that is smaller than this is a rounding error.
ROUNDING = 1e-12


def mcnemar(fixed: int, broken: int) -> float:
    """Return the two-sided p-value of McNemar's exact test of fixed against broken answers.

    Ties share credit: an answer is fixed if its MC1 rose, and broken if it fell.
    """
    return min(1.0, 2 * coin_tail(min(fixed, broken), fixed + broken))


def coin_tail(most: int, coins: int) -> float:
    """Return the probability of at most `most` heads in some tosses of a fair coin."""
    return float(bdtr(most, coins, 0.5))  # scipy.stats has it too, and takes a second to import


def folded(gains: PerItem, groups: Groups) -> Values:
    """Return the gains of groups, scaled so that their mean is the mean over items."""
    sums = np.bincount(groups, gains)
    sums[np.abs(sums) < ROUNDING] = 0.0  # gains and losses that cancel
    return np.asarray(sums * (len(sums) / max(len(gains), 1)))


def paired(gains: PerItem, groups: Groups) -> tuple[int, int, float]:
    """Return the numbers of items won and lost, and McNemar's exact p-value over their groups.

    Items with nan are left out; the p-value is nan if none is left.
    """
    defined = ~np.isnan(gains)
    won, lost = fixed_and_broken(gains[defined])
    p = mcnemar(*fixed_and_broken(folded(gains[defined], groups[defined])))
    return won, lost, p if defined.any() else float("nan")


def random_flips(
    base: PerItem, elsewhere: PerItem, overrides: int, draws: int
) -> tuple[Values, Values]:
    """Draw as many random overrides, and return the MC1 that they fix and break, by draw.

    An override is right with the probability of `elsewhere`, the share of truths among an item's
    other candidates. The seed is fixed.
    """
    # Equal items are exchangeable: it is enough to draw how many of each kind are overridden
    # (hypergeometric), and how many of these overrides are right (binomial).
    kinds, sizes = np.unique(np.stack([base, elsewhere], axis=1), axis=0, return_counts=True)
    rng = np.random.default_rng(0)
    drawn = rng.multivariate_hypergeometric(sizes, overrides, draws)
    right = rng.binomial(drawn, kinds[:, 1])
    return right @ (1 - kinds[:, 0]), (drawn - right) @ kinds[:, 0]
