"""Conditional logit: one weight a feature, shared by all options of all items.

Option j of an item is the answer with probability softmax_j(w . x_j); w maximises the mean
log-probability of an item's truths, summed over items, less penalty |w|^2 / 2.
"""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool, Float, Int

Features = Float[np.ndarray, "items options features"]  # 0 beyond an item's options
Present = Bool[np.ndarray, "items options"]
Shares = Float[np.ndarray, "items options"]  # of an item's truths; they add up to 1
Scores = Float[np.ndarray, "items options"]  # -inf beyond an item's options

_STEPS = 50


def centred(x: Features, present: Present) -> Features:
    """Take the mean over an item's own options off each feature."""
    there = present[:, :, None]
    means = (x * there).sum(axis=1, keepdims=True) / there.sum(axis=1, keepdims=True)
    return np.where(there, x - means, 0.0)


def root_mean_square(x: Features, present: Present) -> Float[np.ndarray, " features"]:
    """Return the root mean square of centred features over all options; 1 for one that is 0."""
    size = np.sqrt(np.square(x).sum(axis=(0, 1)) / present.sum())
    return np.where(size > 0, size, 1.0)


def conditional_logit(
    x: Features, present: Present, target: Shares, penalty: float
) -> Float[np.ndarray, " features"]:
    """Fit the weights by Newton's method: what they maximise is concave."""
    counts = present.sum(axis=1)
    starts = np.cumsum(counts) - counts
    rows, shares = np.ascontiguousarray(x[present].T), target[present]  # one row a feature
    weights = np.zeros(len(rows))

    def loss(w: np.ndarray) -> float:
        scores = w @ rows
        logs = np.logaddexp.reduceat(scores, starts)
        return float(logs.sum() - shares @ scores + penalty * (w @ w) / 2)

    here = loss(weights)
    for _ in range(_STEPS):
        p = _softmax(weights @ rows, starts, counts)
        slope = rows @ (shares - p) - penalty * weights
        weighted = rows * p
        means = np.add.reduceat(weighted, starts, axis=1)
        curvature = weighted @ rows.T - means @ means.T
        step = np.linalg.solve(curvature + penalty * np.eye(len(weights)), slope)
        # A whole step can overshoot where many options are all but sure, and never come back.
        while (there := loss(weights + step)) > here + 1e-9 * abs(here):
            step = step / 2
        weights, here = weights + step, there
        if np.abs(step).max() < 1e-8:
            break
    return weights


def cross_fitted(
    x: Features, present: Present, target: Shares, penalty: float, folds: Int[np.ndarray, " items"]
) -> Scores:
    """Score each item's options by the weights of the other folds' items."""
    scores = np.full(present.shape, -np.inf)
    for fold in np.unique(folds):
        rest, own = folds != fold, folds == fold
        weights = conditional_logit(x[rest], present[rest], target[rest], penalty)
        scores[own] = np.where(present[own], x[own] @ weights, -np.inf)
    return scores


def log_loss(scores: Scores, target: Shares) -> float:
    """Return the mean over items of -log of the probability of a truth."""
    from scipy.special import log_softmax

    logs = log_softmax(scores, axis=1)
    return -float((target * np.where(target > 0, logs, 0.0)).sum(axis=1).mean())


def best_penalty(
    x: Features,
    present: Present,
    target: Shares,
    penalties: Sequence[float],
    folds: Int[np.ndarray, " items"],
) -> tuple[float, Scores]:
    """Return the penalty of the least cross-fitted log loss, and its cross-fitted scores."""
    tried = [(own, cross_fitted(x, present, target, own, folds)) for own in penalties]
    return min(tried, key=lambda pair: log_loss(pair[1], target))


def _softmax(scores: np.ndarray, starts: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Return the softmax over each item's options, items one after the other."""
    powers = np.exp(scores - np.repeat(np.maximum.reduceat(scores, starts), counts))
    return np.asarray(powers / np.repeat(np.add.reduceat(powers, starts), counts))
