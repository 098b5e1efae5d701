"""Linear fits of labelled rows, each with its leave-one-out scores (method, sections 19 and 22).

The fit is a ridge regression on targets of +1 and -1. With many classes, class means with one
shrunk covariance (Ledoit and Wolf) are tried as well. If rows have several blocks, each block is
divided by the root of its width, so that a wide block does not outweigh a narrow one.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

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


@dataclass(frozen=True, eq=False)
class LeaveOneOut:
    """The best kind of fit by leave-one-out.

    Attributes:
        penalty: The ridge's penalty; None for class means.
        scores: Scores of each text by the fit without it [texts, classes].
        right: Accuracy of these scores, in [0, 1], over the texts of recurring classes.
    """

    penalty: float | None
    scores: Table
    right: float


@dataclass(frozen=True, eq=False)
class LinearMap:
    """The map (x - mean) / scale @ weights + intercept, with the standardised rows of the fit."""

    mean: Float[np.ndarray, " width"]
    scale: Float[np.ndarray, " width"]
    weights: Float[np.ndarray, "width classes"]
    intercept: Float[np.ndarray, " classes"]
    rows: Rows


def leave_one_out(
    x: Rows,
    truths: Truths,
    classes: int,
    widths: Sequence[int] = (),
    weights: Weights | None = None,
) -> LeaveOneOut:
    """Return the leave-one-out scores of the ridge's best penalty, or of class means.

    Args:
        x: The rows.
        truths: The class of each row.
        classes: The number of classes.
        widths: Widths of the blocks of a row; by default one block.
        weights: Weight of each row, in the fit and in its accuracy; by default equal. Class means
            always weigh all classes equally.
    """
    from sklearn.linear_model import RidgeCV

    mean, scale = _standards(x, widths)
    z, targets = (x - mean) / scale, _targets(truths, classes)
    penalties = PENALTIES * (len(widths) or z.shape[1])
    # With a scorer its `cv_results_` are the exact leave-one-out predictions; the choice is ours.
    ridge = RidgeCV(penalties, scoring=lambda *_, **__: 0.0, store_cv_results=True)
    ridge = ridge.fit(z, targets, sample_weight=weights)
    answers = ridge.cv_results_  # [texts, classes, penalties]
    errors = np.square(answers - targets[:, :, None])
    if weights is not None:
        errors *= weights[:, None, None]
    errors = errors[recurring(truths)]
    best = int(errors.mean(axis=(0, 1)).argmin())
    ridges = _judged(float(penalties[best]), answers[:, :, best], truths, weights)
    if classes < MANY:
        return ridges
    class_means = _ClassMeans.of(z, truths, classes)
    means = _judged(None, class_means.without, truths, weights)
    return means if means.right > ridges.right and class_means.slope > 0 else ridges


def fit_linear(
    fit: LeaveOneOut,
    x: Rows,
    truths: Truths,
    classes: int,
    widths: Sequence[int] = (),
    weights: Weights | None = None,
) -> LinearMap:
    """Return the map fitted to all rows; arguments as in `leave_one_out`."""
    from sklearn.linear_model import Ridge

    mean, scale = _standards(x, widths)
    z = (x - mean) / scale
    if fit.penalty is None:
        means = _ClassMeans.of(z, truths, classes)
        return LinearMap(mean, scale, means.weights, means.intercept, z)
    ridge: Any = Ridge(fit.penalty).fit(z, _targets(truths, classes), sample_weight=weights)
    coefficients = np.ascontiguousarray(ridge.coef_.T)
    return LinearMap(mean, scale, coefficients, ridge.intercept_, z)


def _judged(
    penalty: float | None, scores: Table, truths: Truths, weights: Weights | None
) -> LeaveOneOut:
    return LeaveOneOut(penalty, scores, share_right(scores, truths, weights))


def recurring(labels: Truths | Sequence[str]) -> Bool[np.ndarray, " texts"]:
    """Return True for each row whose class, by name or by number, has another row.

    Without its only row, a class cannot be answered. The probe of all rows can answer it, so the
    leave-one-out scores of such a row say nothing about the probe, and choose nothing.
    """
    _, places, counts = np.unique(labels, return_inverse=True, return_counts=True)
    return np.asarray(counts[places] > 1)


def share_right(scores: Table, truths: Truths, weights: Weights | None) -> float:
    """Return the weighted share of rows of recurring classes whose highest score is right."""
    judged = recurring(truths)
    right = scores[judged].argmax(axis=1) == truths[judged]
    return float(right.mean() if weights is None else np.average(right, weights=weights[judged]))


def _standards(x: Rows, widths: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """Return the mean and the scale of each feature [width].

    The scale is the standard deviation, but at least a thousandth of the block's largest one. With
    several blocks it is multiplied by the root of the block's width.
    """
    deviation = x.std(axis=0, dtype=np.float64)
    blocks = np.split(deviation, np.cumsum(widths)[:-1]) if widths else [deviation]
    roots = [np.sqrt(width) for width in widths] or [1.0]
    scale = np.concatenate(
        [
            np.maximum(deviations, deviations.max() / 1000 or 1.0) * root
            for deviations, root in zip(blocks, roots, strict=True)
        ]
    )
    return x.mean(axis=0, dtype=np.float64), scale


def _targets(truths: Truths, classes: int) -> Table:
    return np.asarray(2.0 * np.eye(classes)[truths] - 1.0)


@dataclass(frozen=True, eq=False)
class _ClassMeans:
    """Linear discriminants with equal priors, on the scale of a ridge's targets.

    Attributes:
        without: Leave-one-out scores [texts, classes]. A text is left out of its class mean and of
            the covariance, but not of the amount of shrinkage. Without the only text of a class,
            that class has no mean, and gets the lowest score.
        slope: From discriminant to score. It is negative for some draws with very few texts of
            recurring classes, and 0 if all rows are equal; the map is then of no use.
    """

    weights: Float[np.ndarray, "width classes"]
    intercept: Float[np.ndarray, " classes"]
    without: Table
    slope: float

    @classmethod
    def of(cls, z: Rows, truths: Truths, classes: int) -> "_ClassMeans":
        """Fit centred rows with at least one per class."""
        from sklearn.covariance import ledoit_wolf_shrinkage

        n, counts = len(z), np.bincount(truths, minlength=classes)
        u, singular, directions = np.linalg.svd(z, full_matrices=False)
        # Coordinates in the span of the rows, which contains all means and residuals: there are
        # far fewer rows than features.
        x = u * singular
        means = np.stack([x[truths == c].mean(axis=0) for c in range(classes)])
        residuals = x - means[truths]
        shrinkage = ledoit_wolf_shrinkage(residuals @ directions, assume_centered=True)
        # With fewer rows than features, or equal rows, the inverse needs a floor.
        shrinkage = float(np.clip(shrinkage, 1e-3, 1.0))
        floor = max(shrinkage * float(np.square(residuals).sum()) / (n * z.shape[1]), 1e-12)
        spread = (1 - shrinkage) * residuals.T @ residuals / n
        inverse = np.linalg.inv(spread + floor * np.eye(len(spread)))
        without = _without_each(x, means, truths, counts[truths], inverse, 1 - shrinkage)
        # A line through the leave-one-out scores brings them to the ridge's targets of +1 and -1,
        # so that thresholds mean the same for both kinds of fit.
        judged = recurring(truths)
        line, targets = without[judged].ravel(), _targets(truths, classes)[judged].ravel()
        slope, shift = np.polyfit(line, targets, 1) if np.ptp(line) else (0.0, 0.0)
        weights = np.ascontiguousarray(slope * directions.T @ (inverse @ means.T))
        intercept = shift - slope * np.einsum("cr,rs,cs->c", means, inverse, means) / 2
        return cls(weights, intercept, slope * without + shift, float(slope))


def _without_each(
    x: Rows,
    means: np.ndarray,
    truths: Truths,
    size: Int[np.ndarray, " texts"],
    inverse: np.ndarray,
    kept: float,
) -> Table:
    """Return each text's discriminants by the fit without it [texts, classes].

    Args:
        x: The texts.
        means: Mean of each class [classes, width].
        truths: The class of each text.
        size: Number of texts of this class [texts].
        inverse: Inverse of the shrunk covariance.
        kept: Weight of the covariance in it.
    """
    # Without text i of class k, with residual r, the mean of k moves by -r / (n_k - 1), and the
    # covariance loses n_k / (n_k - 1) r r' / n. That is a rank-one update of the inverse (Sherman
    # and Morrison), so no fit is repeated.
    residuals = x - means[truths]
    others = np.maximum(size - 1, 1)  # r is 0 for the only text of a class
    left = means[truths] - residuals / others[:, None]
    lost = kept * size / (others * len(x))
    turned = residuals @ inverse
    gain = lost / np.maximum(1 - lost * np.einsum("ir,ir->i", turned, residuals), 1e-12)
    along = gain * np.einsum("ir,ir->i", turned, x)

    # The discriminant of x and the mean m is x'Am - m'Am / 2. The updated inverse is
    # A + gain (Ar)(Ar)', so only u = (Ar)'m and products with A are needed.
    def scores(metric: np.ndarray, ahead: np.ndarray, u: np.ndarray) -> np.ndarray:
        updated = metric + gain[:, None] * u**2
        return np.asarray(ahead + along[:, None] * u - updated / 2)

    metric = np.einsum("cr,rs,cs->c", means, inverse, means)
    without = scores(metric, x @ inverse @ means.T, turned @ means.T)
    moved = left @ inverse
    of_label = scores(
        np.einsum("ir,ir->i", moved, left)[:, None],
        np.einsum("ir,ir->i", moved, x)[:, None],
        np.einsum("ir,ir->i", turned, left)[:, None],
    )
    without[np.arange(len(x)), truths] = np.where(size > 1, of_label[:, 0], without.min(axis=1))
    return without
