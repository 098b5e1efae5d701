"""Tests of a share, its bound, and Holm's correction for many tests."""

from typing import Any

import numpy as np
from jaxtyping import Float

Values = Float[np.ndarray, " values"]

_ROUNDING = 1e-9  # a count that went through a mean comes back this close to a whole number


def at_least(rate: float, mean: Any, size: Any, exact: bool) -> np.ndarray:
    """Return the p-value of H0: independent values in [0, 1] are `rate` or more on average.

    Exact for values that are 0 or 1: P(Bin(n, rate) <= n mean). Otherwise Hoeffding-Bentkus
    (Bates 2021): min(exp(-n kl(mean, rate)), e P(Bin(n, rate) <= ceil(n mean))).

    Args:
        rate: What is held against the values.
        mean: Of the values seen, a number or an array.
        size: How many were seen, likewise.
        exact: Whether every value is 0 or 1.
    """
    from scipy.special import rel_entr
    from scipy.stats import binom

    mean, size = np.asarray(mean, float), np.asarray(size)
    total = np.ceil(mean * size - _ROUNDING)
    tail = np.asarray(binom.cdf(total, size, rate))
    if exact:
        return tail
    low = np.minimum(mean, rate)
    divergence = rel_entr(low, rate) + rel_entr(1 - low, 1 - rate)
    hoeffding: np.ndarray = np.exp(-size * divergence)
    return np.asarray(np.minimum(np.minimum(hoeffding, np.e * tail), 1.0))


def upper_bound(mean: Any, size: Any, level: float, exact: bool) -> float:
    """Return the largest rate that `at_least` does not reject."""
    if size == 0:
        return 1.0
    if exact:
        return clopper_pearson(np.ceil(mean * size - _ROUNDING), size, level)[1]
    low, high = min(float(mean), 1.0), 1.0
    for _ in range(50):
        middle = (low + high) / 2
        falls = at_least(middle, mean, size, False) <= level
        low, high = (low, middle) if falls else (middle, high)
    return high


def clopper_pearson(count: Any, size: Any, tail: float) -> tuple[float, float]:
    """Return the exact bounds of a rate, each wrong with probability at most `tail`.

    Args:
        count: How many of `size` values are 1. Tied answers may count as fractions.
        size: Above 0.
        tail: The level of each bound.
    """
    from scipy.stats import beta

    rest = size - count
    low = 0.0 if count <= 0 else float(beta.ppf(tail, count, rest + 1))
    high = 1.0 if rest <= 0 else float(beta.ppf(1 - tail, count + 1, rest))
    return low, high


def holm(p_values: Values) -> Values:
    """Return Holm's step-down correction; nan stays nan and is not counted.

    p~_(k) = max over j <= k of min(1, (m - j + 1) p_(j)), the p ascending.

    The smallest of four has to stand against all four, the next against the three that are left:

        p             0.01   0.02   0.03   0.5
        times         4      3      2      1
        product       0.04   0.06   0.06   0.5
        largest yet   0.04   0.06   0.06   0.5     so at 0.05 the first alone is rejected

    0.015 in the second place would give 0.045, and the third, 0.06, would still stop there.
    """
    adjusted = np.full_like(p_values, np.nan)
    places = np.flatnonzero(~np.isnan(p_values))
    order = places[np.argsort(p_values[places], kind="stable")]
    factors = np.arange(len(order), 0, -1)
    adjusted[order] = np.minimum(1.0, np.maximum.accumulate(factors * p_values[order]))
    return adjusted
