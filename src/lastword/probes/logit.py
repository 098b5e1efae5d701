"""Conditional logit: one weight per feature, shared by all options of all items.

Option j of an item is the answer with probability softmax_j(w . x_j). The weights w maximise the
mean log-probability of an item's truths, summed over items, minus penalty |w|^2 / 2.
"""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool, Float
from scipy.special import log_softmax, softmax

from lastword.errors import InputError
from lastword.trust.calibration import fit_temperature
from lastword.trust.crossfit import Folds, Which, cross_fit, deal_folds

PENALTIES = tuple(10.0 ** np.arange(-1, 4.1, 0.5))
FOLDS = 4

Features = Float[np.ndarray, "items options features"]  # 0 in the padding
Present = Bool[np.ndarray, "items options"]
Shares = Float[np.ndarray, "items options"]  # equal shares of an item's truths, sum 1
Scores = Float[np.ndarray, "items options"]  # -inf in the padding
Weights = Float[np.ndarray, " items"]
Options = Float[np.ndarray, "_options features"]  # as many options as the item has

_STEPS = 50


def fit_logit(
    items: Sequence[Options],
    truths: Sequence[int],
    groups: Sequence[str] | None = None,
    weights: Weights | None = None,
) -> tuple[Float[np.ndarray, " features"], float, Scores]:
    """Fit a conditional logit with one ridge penalty on centred and scaled features.

    A group of items is never split over folds; by default each item is one.

    Returns:
        The weights of the features, the temperature T that minimises the log loss of the
        cross-fitted scores, and these scores.

    Raises:
        InputError: Fewer groups than folds, or features that are not finite.
    """
    names = [str(i) for i in range(len(items))] if groups is None else [*groups]
    x, present = padded(items)
    if not np.isfinite(x).all():
        raise InputError("features to fit on are finite numbers; these have NaN or infinity")
    distinct = sorted({*names})  # so that folds do not depend on the order of the items
    if len(distinct) < FOLDS:
        raise InputError(f"these weights need {FOLDS} groups of items, not {len(distinct)}")
    folds = deal_folds(names, distinct, FOLDS)
    target = np.eye(present.shape[1])[np.asarray(truths)]
    x = centred(x, present)
    scale = root_mean_square(x, present)
    x = x / scale
    penalty, scores = best_penalty(x, present, target, folds, weights)
    fitted = conditional_logit(x, present, target, penalty, weights)
    return fitted / scale, fit_temperature(scores, truths), scores


def padded(items: Sequence[Options]) -> tuple[Features, Present]:
    """Return the items' features as one array, and a mask that is False in the padding."""
    present = np.arange(max(map(len, items))) < np.array([*map(len, items)])[:, None]
    x = np.zeros((*present.shape, items[0].shape[1]))
    x[present] = np.concatenate(items)
    return x, present


def centred(x: Features, present: Present) -> Features:
    """Return the features minus their mean over the item's options; the softmax is the same."""
    mask = present[:, :, None]
    means = (x * mask).sum(axis=1, keepdims=True) / mask.sum(axis=1, keepdims=True)
    return np.where(mask, x - means, 0.0)


def root_mean_square(x: Features, present: Present) -> Float[np.ndarray, " features"]:
    """Return the root mean square of centred features over all options; 1 instead of 0."""
    size = np.sqrt(np.square(x).sum(axis=(0, 1)) / present.sum())
    return np.where(size > 0, size, 1.0)


def conditional_logit(
    x: Features,
    present: Present,
    target: Shares,
    penalty: float,
    item_weights: Weights | None = None,
) -> Float[np.ndarray, " features"]:
    """Fit the weights with Newton's method; the objective is concave."""
    each = np.ones(len(x)) if item_weights is None else item_weights
    absent, rows = np.where(present, 0.0, -np.inf), x.reshape(-1, x.shape[2])
    weights = np.zeros(x.shape[2])

    def loss(w: np.ndarray) -> float:
        data = log_loss(x @ w + absent, target, each) * len(x)
        return float(data + penalty * (w @ w) / 2)

    before = loss(weights)
    for _ in range(_STEPS):
        p = softmax(x @ weights + absent, axis=1)
        slope = (each[:, None] * (target - p)).ravel() @ rows - penalty * weights
        means = np.einsum("io,iof->if", p, x)
        curvature = rows.T @ ((each[:, None] * p).reshape(-1, 1) * rows)
        curvature -= means.T @ (each[:, None] * means)
        step = np.linalg.solve(curvature + penalty * np.eye(len(weights)), slope)
        # A full step can overshoot and diverge if the probabilities of many options are near 0
        # or 1. The tolerance is for rounding near the optimum.
        while (after := loss(weights + step)) > before + 1e-9 * abs(before):
            step = step / 2
        weights, before = weights + step, after
        if np.abs(step).max() < 1e-8:
            break
    return weights


def log_loss(scores: Scores, target: Shares, item_weights: Weights | float = 1.0) -> float:
    """Return the mean over items of the negative log-probability of a truth, in nats."""
    logs = np.where(target > 0, log_softmax(scores, axis=1), 0.0)
    return -float((item_weights * (target * logs).sum(axis=1)).mean())


def best_penalty(
    x: Features,
    present: Present,
    target: Shares,
    folds: Folds,
    item_weights: Weights | None = None,
) -> tuple[float, Scores]:
    """Return the penalty with the lowest cross-fitted log loss, and its cross-fitted scores."""
    each = np.ones(len(x)) if item_weights is None else item_weights

    def answer(rest: Which, tested: Which) -> dict[float, np.ndarray]:
        data = x[rest], present[rest], target[rest]
        fits = {penalty: conditional_logit(*data, penalty, each[rest]) for penalty in PENALTIES}
        absent = np.where(present[tested], 0.0, -np.inf)
        return {penalty: x[tested] @ weights + absent for penalty, weights in fits.items()}

    scores = cross_fit(answer, folds)
    best = min(scores, key=lambda penalty: log_loss(scores[penalty], target, each))
    return best, scores[best]
