"""Linear fits of labelled rows, each with its leave-one-out scores (docs/statistics.md).

The fit is a ridge regression on targets of +1 and -1. With many classes, class means with one
shrunk covariance (Ledoit and Wolf) are tried as well. If rows have several blocks, each block is
divided by the root of its width, so that a wide block does not outweigh a narrow one.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

# Penalties of the ridge per feature. Features have a variance of 1, so these range from almost no
# shrinkage to almost only the classes' frequencies.
PENALTIES = 10.0 ** np.arange(-3, 2.1, 0.5)
MANY = 20  # minimum number of classes for which class means are tried

Rows = Float[np.ndarray, "texts width"]
Table = Float[np.ndarray, "texts classes"]
Truths = Int[np.ndarray, " texts"]
Weights = Float[np.ndarray, " texts"]


class LinearMap(NamedTuple):
    """The map (x - mean) / scale @ weights + intercept, with the standardised rows of the fit."""

    mean: Float[np.ndarray, " width"]
    scale: Float[np.ndarray, " width"]
    weights: Float[np.ndarray, "width classes"]
    intercept: Float[np.ndarray, " classes"]
    rows: Rows


class LeaveOneOut(NamedTuple):
    """The best kind of fit by leave-one-out.

    Attributes:
        scores: Scores of each text by the fit without it [texts, classes].
        right: Accuracy of these scores, in [0, 1], over the texts of recurring classes.
        fit: Function that returns the map fitted to all rows.
        penalty: The ridge's penalty; None for class means.
    """

    scores: Table
    right: float
    fit: Callable[[], LinearMap]
    penalty: float | None = None


def leave_one_out(
    x: Rows,
    truths: Truths,
    classes: int,
    widths: Sequence[int] = (),
    weights: Weights | None = None,
) -> LeaveOneOut:
    """Return the leave-one-out scores of the ridge's best penalty, or of class means.

    `widths` are those of the blocks of a row, and `weights` those of the rows, in the fit and in
    its accuracy; class means always weigh all classes equally.
    """
    from sklearn.linear_model import Ridge, RidgeCV

    mean, scale = _standards(x, widths)
    z, targets = (x - mean) / scale, _targets(truths, classes)
    penalties = PENALTIES * (len(widths) or z.shape[1])
    # With a scorer its `cv_results_` are the exact leave-one-out predictions; the choice is ours.
    ridges = RidgeCV(penalties, scoring=lambda *_, **__: 0.0, store_cv_results=True)
    answers = ridges.fit(z, targets, sample_weight=weights).cv_results_  # [..., penalties]
    errors = np.square(answers - targets[:, :, None])
    if weights is not None:
        errors *= weights[:, None, None]
    best = int(errors[recurring(truths)].mean(axis=(0, 1)).argmin())
    penalty, scores = float(penalties[best]), answers[:, :, best]

    # The standardised rows are computed again: one fit of many layers is used.
    def ridge() -> LinearMap:
        z = (x - mean) / scale
        fitted = Ridge(penalty).fit(z, targets, sample_weight=weights)
        return LinearMap(mean, scale, np.ascontiguousarray(fitted.coef_.T), fitted.intercept_, z)

    def class_means() -> LinearMap:
        z = (x - mean) / scale
        return LinearMap(mean, scale, *fit_class_means(z, truths, classes)[:2], z)

    right = share_right(scores, truths, weights)
    if classes >= MANY:
        means = fit_class_means(z, truths, classes)
        of_means = share_right(means.without, truths, weights)
        if of_means > right and means.slope > 0:
            return LeaveOneOut(means.without, of_means, class_means)
    return LeaveOneOut(scores, right, ridge, penalty)


def recurring(labels: Truths | Sequence[str]) -> Bool[np.ndarray, " texts"]:
    """Return True for each row whose class, by name or by number, has another row.

    A leave-one-out score of a class's only row says nothing about the probe, and chooses nothing.
    """
    _, places, counts = np.unique(labels, return_inverse=True, return_counts=True)
    return np.asarray(counts[places] > 1)


def share_right(scores: Table, truths: Truths, weights: Weights | None) -> float:
    """Return the weighted share of rows of recurring classes whose highest score is right."""
    judged = recurring(truths)
    right = scores[judged].argmax(axis=1) == truths[judged]
    return float(np.average(right, weights=None if weights is None else weights[judged]))


def _standards(x: Rows, widths: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """Return the mean and the scale of each feature [width].

    The scale is the standard deviation, but at least a thousandth of the block's largest one. With
    several blocks it is multiplied by the root of the block's width.
    """
    scale = x.std(axis=0, dtype=np.float64)
    for block in np.split(scale, np.cumsum(widths)[:-1]) if widths else [scale]:
        block[:] = np.maximum(block, block.max() / 1000 or 1.0)
        block *= np.sqrt(len(block)) if widths else 1.0
    return x.mean(axis=0, dtype=np.float64), scale


def _targets(truths: Truths, classes: int) -> Table:
    return np.asarray(2.0 * np.eye(classes)[truths] - 1.0)


class ClassMeans(NamedTuple):
    """Linear discriminants with equal priors, on the scale of a ridge's targets.

    Attributes:
        without: Leave-one-out scores [texts, classes]. A text is left out of its class mean and of
            the covariance, but not of the amount of shrinkage. The class of a single text gets its
            lowest score.
        slope: From discriminant to score. A map with a slope of 0 or less is of no use.
    """

    weights: Float[np.ndarray, "width classes"]
    intercept: Float[np.ndarray, " classes"]
    without: Table
    slope: float


def fit_class_means(z: Rows, truths: Truths, classes: int) -> ClassMeans:
    """Fit centred rows with at least one per class."""
    from sklearn.covariance import ledoit_wolf_shrinkage

    n, counts = len(z), np.bincount(truths, minlength=classes)
    u, singular, directions = np.linalg.svd(z, full_matrices=False)
    # Coordinates in the span of the rows, which contains all means and residuals: there are far
    # fewer rows than features.
    x = u * singular
    means = np.stack([x[truths == c].mean(axis=0) for c in range(classes)])
    residuals = x - means[truths]
    # With fewer rows than features, or equal rows, the inverse needs a floor.
    shrinkage = ledoit_wolf_shrinkage(residuals @ directions, assume_centered=True)
    shrinkage = float(np.clip(shrinkage, 1e-3, 1.0))
    floor = max(shrinkage * float(np.square(residuals).sum()) / (n * z.shape[1]), 1e-12)
    spread = (1 - shrinkage) * residuals.T @ residuals / n
    inverse = np.linalg.inv(spread + floor * np.eye(len(spread)))
    without = _without_each(x, means, truths, counts[truths], inverse, (1 - shrinkage) / n)
    # A line through the leave-one-out scores brings them to the ridge's targets of +1 and -1, so
    # that thresholds mean the same for both kinds of fit.
    judged = recurring(truths)
    line, targets = without[judged].ravel(), _targets(truths, classes)[judged].ravel()
    slope, shift = np.polyfit(line, targets, 1) if np.ptp(line) else (0.0, 0.0)
    weights = np.ascontiguousarray(slope * directions.T @ (inverse @ means.T))
    intercept = shift - slope * _row_products(means, means @ inverse) / 2
    return ClassMeans(weights, intercept, slope * without + shift, float(slope))


def _without_each(
    x: Rows,
    means: np.ndarray,
    truths: Truths,
    size: Int[np.ndarray, " texts"],
    inverse: np.ndarray,
    share: float,
) -> Table:
    """Return each text's discriminants by the fit without it [texts, classes].

    `size` is the number of texts of its class, `inverse` that of the shrunk covariance, and `share`
    the weight of one text in it.
    """
    # Without text i of class k, with residual r, the mean of k moves by -r / (n_k - 1), and the
    # covariance loses share n_k / (n_k - 1) r r'. That is a rank-one update of the inverse A
    # (Sherman and Morrison) to A + gain (Ar)(Ar)', so no fit is repeated.
    residuals, rows = x - means[truths], np.arange(len(x))
    others = np.maximum(size - 1, 1)  # r is 0 for the only text of a class
    moved = means[truths] - residuals / others[:, None]
    turned, lost = residuals @ inverse, share * size / others
    gain = lost / np.maximum(1 - lost * _row_products(turned, residuals), 1e-12)
    # The discriminant of x and the mean m is x'Am - m'Am / 2: products of all means, with the
    # class's own mean replaced.
    metric = np.tile(_row_products(means, means @ inverse), (len(x), 1))
    ahead, along = x @ inverse @ means.T, turned @ means.T
    for products, own in (
        (metric, _row_products(moved, moved @ inverse)),
        (ahead, _row_products(moved @ inverse, x)),
        (along, _row_products(moved, turned)),
    ):
        products[rows, truths] = own
    without = ahead + (gain * _row_products(turned, x))[:, None] * along
    without -= (metric + gain[:, None] * along**2) / 2
    alone = size == 1
    without[alone, truths[alone]] = without[alone].min(axis=1)
    return np.asarray(without)


def _row_products(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.asarray(np.einsum("ir,ir->i", a, b))
