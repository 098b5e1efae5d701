"""Tests of a share, and which of many hypotheses fall with one error rate over all of them."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Bool, Float

Values = Float[np.ndarray, " values"]

_ROUNDING = 1e-9  # a count that went through a mean comes back this close to a whole number


def at_least(rate: float, mean: Any, size: Any, exact: bool) -> np.ndarray:
    """p-value of H0: values in [0, 1], drawn independently, are `rate` or more on average.

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
    """The largest rate that `at_least` does not reject; Clopper-Pearson's bound where exact."""
    if size == 0:
        return 1.0
    low, high = min(float(mean), 1.0), 1.0
    for _ in range(50):
        middle = (low + high) / 2
        falls = at_least(middle, mean, size, exact) <= level
        low, high = (low, middle) if falls else (middle, high)
    return high


def fixed_sequence(
    p_values: Float[np.ndarray, "*chains steps"], level: float
) -> Bool[np.ndarray, "*chains steps"]:
    """Fixed-sequence testing along the last axis: up to the first p above the level.

    The order must not depend on the data. Then a true hypothesis falls with probability at most
    `level`, however many there are: the first of them would have to.
    """
    fallen: np.ndarray = np.logical_and.accumulate(p_values <= level, axis=-1)
    return fallen


def graphical(
    p_values: Float[np.ndarray, "*samples hypotheses"],
    weights: Float[np.ndarray, " hypotheses"],
    edges: Float[np.ndarray, "hypotheses hypotheses"],
    level: float,
) -> Bool[np.ndarray, "*samples hypotheses"]:
    """The graphical procedure (Bretz 2009): who falls hands its share of the level on.

    A hypothesis falls where p <= w level. Then w_j += w_i g_ij, and
    g_jk = (g_jk + g_ji g_ik) / (1 - g_ji g_ij). A shortcut of closed weighted Bonferroni tests, so
    that the chance that any true one falls is at most `level` whatever their dependence.

    Args:
        p_values: Of every hypothesis, of one or of many samples.
        weights: Shares of the level at the start; their sum is at most 1.
        edges: Which part of its share each hands to which; rows add up to at most 1.
        level: Largest chance that a true hypothesis falls.
    """
    p = p_values.reshape(-1, p_values.shape[-1])
    samples = np.arange(len(p))
    w, g = np.tile(weights, (len(p), 1)), np.tile(edges, (len(p), 1, 1))
    fallen = np.zeros(p.shape, dtype=bool)
    for _ in range(p.shape[1]):
        ratio = np.where(fallen | (w == 0), np.inf, p / np.where(w == 0, 1.0, w))
        first = ratio.argmin(axis=1)
        falls = ratio[samples, first] <= level
        if not falls.any():
            break
        rows, i = samples[falls], first[falls]
        fallen[rows, i] = True
        out, into = g[rows, i], g[rows, :, i]  # g_ik [rows, k], g_ji [rows, j]
        w[rows] += w[rows, i][:, None] * out
        w[rows, i] = 0.0
        loop = 1 - into * out  # 1 - g_ji g_ij
        fresh = g[rows] + into[:, :, None] * out[:, None, :]
        safe = np.where(loop > _ROUNDING, loop, 1.0)[:, :, None]
        fresh = np.where(loop[:, :, None] > _ROUNDING, fresh / safe, 0.0)
        fresh[:, np.arange(p.shape[1]), np.arange(p.shape[1])] = 0.0
        fresh[np.arange(len(rows)), i] = 0.0
        fresh[np.arange(len(rows)), :, i] = 0.0
        g[rows] = fresh
    return fallen.reshape(p_values.shape)


def lattice(starts: Sequence[int], chains: int, steps: int) -> tuple[np.ndarray, np.ndarray]:
    """Weights and edges of chains side by side, flattened: shares go to neighbours either way.

    Args:
        starts: Places in a chain that have a share from the start.
        chains: How many chains there are.
        steps: How many hypotheses each has.
    """
    weights, count = np.zeros((chains, steps)), chains * steps
    weights[:, list(starts)] = 1 / (chains * len(starts))
    chain, step = np.divmod(np.arange(count), steps)
    apart = np.abs(step[:, None] - step), np.abs(chain[:, None] - chain)
    near = ((apart[0] == 1) & (apart[1] == 0)) | ((apart[0] == 0) & (apart[1] > 0))
    return weights.ravel(), near / near.sum(axis=1, keepdims=True)


def holm(p_values: Values) -> Values:
    """Holm's step-down correction; nan stays nan and is not counted.

    p~_(k) = max over j <= k of min(1, (m - j + 1) p_(j)), the p ascending.
    """
    adjusted = np.full_like(p_values, np.nan)
    places = np.flatnonzero(~np.isnan(p_values))
    order = places[np.argsort(p_values[places], kind="stable")]
    factors = np.arange(len(order), 0, -1)
    adjusted[order] = np.minimum(1.0, np.maximum.accumulate(factors * p_values[order]))
    return adjusted
