"""Tests and bounds of a share and of a paired gain, and Holm's correction for many tests."""

from typing import Any

import numpy as np
from jaxtyping import Float, Int
from scipy.special import bdtrc, rel_entr

Values = Float[np.ndarray, " values"]

Counts = Int[np.ndarray, " tables"]

_OUTSIDE = 0.0005  # probability that the share of changed answers lies outside its interval
_SHARES = 64  # number of shares of changed answers at which a p-value is computed
_STEPS = 30  # bisections of a bound
_ROUNDING = 1e-9  # a count that went through a mean comes back this close to a whole number


def at_least(rate: float, mean: Any, size: Any, exact: bool) -> np.ndarray:
    """Return the p-value of H0: independent values in [0, 1] are `rate` or more on average.

    Exact for values that are 0 or 1: P(Bin(n, rate) <= n mean). Otherwise Hoeffding-Bentkus
    (Bates 2021): min(exp(-n kl(mean, rate)), e P(Bin(n, rate) <= ceil(n mean))).
    """
    from scipy.stats import binom

    mean, size = np.asarray(mean, float), np.asarray(size)
    total = np.ceil(mean * size - _ROUNDING)
    tail = np.asarray(binom.cdf(total, size, rate))
    if exact:
        return tail
    low = np.minimum(mean, rate)
    divergence = rel_entr(low, rate) + rel_entr(1 - low, 1 - rate)
    hoeffding = np.exp(-size * divergence)
    return np.asarray(np.minimum(np.minimum(hoeffding, np.e * tail), 1.0))


def upper_bound(mean: Any, size: Any, level: float, exact: bool) -> float:
    """Return the largest rate that `at_least` does not reject."""
    if size == 0:
        return 1.0
    if exact:
        return clopper_pearson(np.ceil(mean * size - _ROUNDING), size, level)[1]
    low, high = min(float(mean), 1.0), 1.0
    for _ in range(50):  # halves the interval down to the precision of a float
        middle = (low + high) / 2
        falls = at_least(middle, mean, size, False) <= level
        low, high = (low, middle) if falls else (middle, high)
    return high


def clopper_pearson(count: Any, size: Any, tail: float) -> tuple[float, float]:
    """Return the exact bounds of a rate, each wrong with probability at most `tail`.

    `count` values of `size` are 1; tied answers may count as fractions.
    """
    from scipy.stats import beta

    rest = size - count
    low = 0.0 if count <= 0 else float(beta.ppf(tail, count, rest + 1))
    high = 1.0 if rest <= 0 else float(beta.ppf(1 - tail, count + 1, rest))
    return low, high


def paired_p(fixed: Counts, broken: Counts, size: int, gain: float = 0.0) -> Values:
    """Return the p-value of each table for H0: a share of at most `gain` is won.

    The share that is won is P(fixed) - P(broken). The test is the unconditional one of McNemar's
    table (Suissa and Shuster 1991): p is the probability of all tables of `size` answers whose
    score is at least that of the table, not of those with as many changed answers only. H0 leaves
    the share of changed answers open, so p is the largest over the 99.95% Clopper-Pearson interval
    of that share, plus 0.0005 (Berger and Boos 1994).

    Each table has `size` answers; the gain is above -1 and below 1. For 6 fixed and 1 broken of 20
    answers p is 0.037.
    """
    from scipy.stats import binom

    scores = _score(fixed, broken, size, gain) - _ROUNDING  # equal scores differ by rounding
    changes = np.arange(size + 1)
    least = _least_fixed(scores[:, None], changes, size, gain)
    p = np.zeros(len(scores))  # as it stays if the interval excludes every share that H0 allows
    for discordant in np.unique(fixed + broken):
        low, high = clopper_pearson(discordant, size, _OUTSIDE / 2)
        # P(fixed) = (share + gain) / 2 and P(broken) = (share - gain) / 2 are not below 0.
        low = max(low, abs(gain), 1e-12)
        if low > high:
            continue
        # Steps of equal length in arcsin(sqrt(share)) are equal parts of a standard deviation.
        start, stop = np.arcsin(np.sqrt([low, high]))
        share = np.sin(np.linspace(start, stop, _SHARES)) ** 2
        rows = fixed + broken == discordant
        of_changed = np.clip((1 + gain / share) / 2, 0.0, 1.0)  # P(fixed) of a changed answer
        # Counts of changed answers whose probability is too small to move p cost no time.
        likely = binom.pmf(changes, size, np.clip(changes / size, low, high)) > 1e-30
        counts = changes[likely, None]
        enough = bdtrc(least[rows][:, likely, None] - 1.0, counts, of_changed)
        mass = binom.pmf(counts, size, share)
        p[rows] = np.einsum("rcs,cs->rs", enough, mass).max(axis=1)
    return np.minimum(p + _OUTSIDE, 1.0)


def paired_bound(fixed: int, broken: int, size: int, level: float) -> float:
    """Return the lower bound of P(fixed) - P(broken): the smallest gain not rejected.

    For 6 fixed and 1 broken of 20 it is 0.020 at level 0.05.
    """
    low, high = -1.0, (fixed - broken) / size
    for _ in range(_STEPS):
        middle = (low + high) / 2
        (p,) = paired_p(np.array([fixed]), np.array([broken]), size, middle)
        low, high = (middle, high) if p <= level else (low, middle)
    return low


def _score(fixed: Any, broken: Any, size: int, gain: float) -> np.ndarray:
    """Return Tango's score of P(fixed) - P(broken) = gain (1998); 0 if the variance is 0."""
    # Under H0 the likelihood is largest at P(broken) = q, a root of 2n q^2 + b q + c = 0.
    b = (2 * size - fixed + broken) * gain - fixed - broken
    c = -broken * gain * (1 - gain)
    q = (np.sqrt(np.maximum(b * b - 8 * size * c, 0.0)) - b) / (4 * size)
    variance = size * (2 * q + gain * (1 - gain))
    lead = np.asarray(fixed - broken - size * gain, dtype=float)
    deviation = np.sqrt(np.maximum(variance, 0.0))
    return np.asarray(np.divide(lead, deviation, out=np.zeros_like(lead), where=variance > 0))


def _least_fixed(scores: np.ndarray, changes: np.ndarray, size: int, gain: float) -> np.ndarray:
    """Return the least number fixed with at least a score, or `changes` + 1 [tables, changes]."""
    low, high = np.broadcast_arrays(np.zeros_like(scores, dtype=int), changes + 1)
    while (low < high).any():
        middle = np.minimum((low + high) // 2, changes)
        reached = _score(middle, changes - middle, size, gain) >= scores
        low, high = np.where(reached, low, middle + 1), np.where(reached, middle, high)
    return low


def holm(p_values: Values) -> Values:
    """Return Holm's step-down correction; nan stays nan and is not counted.

    p~_(k) = max over j <= k of min(1, (m - j + 1) p_(j)), the p ascending.
    """
    adjusted = np.full_like(p_values, np.nan)
    places = np.flatnonzero(~np.isnan(p_values))
    order = places[np.argsort(p_values[places], kind="stable")]
    factors = np.arange(len(order), 0, -1)
    adjusted[order] = np.minimum(1.0, np.maximum.accumulate(factors * p_values[order]))
    return adjusted
