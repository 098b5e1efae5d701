"""Class means and concatenated blocks, against plain formulas and scikit-learn."""

import numpy as np
import pytest
from sklearn.covariance import ledoit_wolf_shrinkage
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.linear_model import Ridge

from lastword.probes.linear import PENALTIES, fit_class_means, leave_one_out
from lastword.probes.state import fit_beside, fit_state

CLASSES, WIDTH = 20, 30


def rows(spread: float = 1.0, width: int = WIDTH, texts: int = 4) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    truths = np.repeat(np.arange(CLASSES), texts)
    shape = rng.normal(size=(width, width))  # most variance is in uninformative directions
    return rng.normal(size=(CLASSES, width))[truths] + spread * rng.normal(
        size=(len(truths), width)
    ) @ shape, truths


class Shrunk:
    """A covariance estimator that returns the given matrix."""

    def __init__(self, covariance: np.ndarray) -> None:
        self.covariance = covariance

    def fit(self, x: np.ndarray) -> None:
        self.covariance_ = self.covariance


def discriminant(
    z: np.ndarray, truths: np.ndarray, shrinkage: float, floor: float, n: int
) -> LinearDiscriminantAnalysis:
    means = np.stack([z[truths == c].mean(axis=0) for c in range(CLASSES)])
    residuals = z - means[truths]
    spread = (1 - shrinkage) * residuals.T @ residuals / n + floor * np.eye(z.shape[1])
    priors = np.full(CLASSES, 1 / CLASSES)
    lda = LinearDiscriminantAnalysis("lsqr", covariance_estimator=Shrunk(spread), priors=priors)
    return lda.fit(z, truths)


@pytest.mark.parametrize(("width", "texts"), [(WIDTH, 4), (120, 4), (WIDTH, 2)])
def test_class_means_agree_with_scikit_learns_discriminants_without_each_text(
    width: int, texts: int
) -> None:
    x, truths = rows(width=width, texts=texts)
    n, z = len(x), (x - x.mean(axis=0)) / x.std(axis=0)
    fitted = fit_class_means(z, truths, CLASSES)
    residuals = z - np.stack([z[truths == c].mean(axis=0) for c in range(CLASSES)])[truths]
    shrinkage = ledoit_wolf_shrinkage(residuals, assume_centered=True)
    floor = shrinkage * np.square(residuals).sum() / (n * width)
    whole = discriminant(z, truths, shrinkage, floor, n)
    ours = z @ fitted.weights + fitted.intercept
    theirs = whole.decision_function(z)
    # Ours have the scale of a ridge's targets: one slope and one shift for all classes.
    differences = [scores[:, :1] - scores[:, 1:] for scores in (ours, theirs)]
    slope = (differences[0] * differences[1]).sum() / np.square(differences[1]).sum()
    np.testing.assert_allclose(differences[0], slope * differences[1], atol=1e-8)
    without = fitted.without
    for i in (0, 5, 17):
        rest = np.arange(n) != i
        one = discriminant(z[rest], truths[rest], shrinkage, floor, n).decision_function(z[[i]])
        np.testing.assert_allclose(
            without[i, :1] - without[i, 1:], slope * (one[0, :1] - one[0, 1:]), atol=1e-8
        )


def test_class_means_are_chosen_if_more_accurate() -> None:
    x, truths = rows(spread=0.3)
    many = leave_one_out(x, truths, CLASSES)
    few = leave_one_out(x[truths < 4], truths[truths < 4], 4)
    assert many.penalty is None and many.right > 0.5
    assert few.penalty is not None


def pair() -> tuple[list[np.ndarray], list[str]]:
    """Return states of two sources and labels that combine one bit of each."""
    rng = np.random.default_rng(1)
    bits = rng.integers(2, size=(60, 2))
    sources = []
    for bit, width in zip(bits.T, (40, 8), strict=True):
        x = rng.normal(size=(60, 1, 1, width))
        x[:, 0, 0, 0] += 6 * bit
        sources.append(x)
    return sources, [f"{a}{b}" for a, b in bits]


def test_two_blocks_are_one_scaled_ridge_or_the_sum_of_two_probes() -> None:
    (x, y), labels = pair()
    one = fit_state(x, labels, poolings=("mean",))
    other = fit_state(y, labels, encoder="letters")
    blocks = x[:, 0, 0], y[:, 0, 0]
    side, added = (fit_beside(one, other, blocks, labels, (way,)) for way in ("side", "sum"))
    both, rest = np.concatenate(blocks, axis=1), np.arange(60) != 7
    z = [(block - block.mean(0)) / block.std(0) / np.sqrt(block.shape[1]) for block in blocks]
    truths = np.array([side.probe.classes.index(label) for label in labels])
    targets, scaled = 2.0 * np.eye(4)[truths] - 1, np.concatenate(z, axis=1)
    for some, scores, asked in (
        (rest, side.scores[[7]], scaled[[7]]),
        (np.full(60, True), side.probe.scores(both), scaled),
    ):
        fits = [Ridge(p).fit(scaled[some], targets[some]) for p in 2 * PENALTIES]
        assert min(np.abs(fit.predict(asked) - scores).max() for fit in fits) < 1e-8
    expected = one.probe.scores(blocks[0]) + other.probe.scores(blocks[1])
    np.testing.assert_allclose(added.probe.scores(both), expected, atol=1e-10)
    np.testing.assert_allclose(added.scores, one.scores + other.scores, atol=1e-12)
    assert side.right.max() > max(one.right.max(), other.right.max())
    best = fit_beside(one, other, blocks, labels)
    assert best.right.max() == max(added.right.max(), side.right.max())


@pytest.mark.parametrize("rare", [1.0, 3.0])
def test_leave_one_out_scores_equal_scikit_learns_refits(rare: float) -> None:
    rng = np.random.default_rng(0)
    truths = np.array([0] * 6 + [1] * 18)
    x = rng.normal(size=(24, 8)) + truths[:, None]
    weights = np.where(truths == 0, rare, 1.0)
    weights /= weights.mean()
    fit = leave_one_out(x, truths, 2, weights=None if rare == 1 else weights)
    z, targets = (x - x.mean(axis=0)) / x.std(axis=0), 2 * np.eye(2)[truths] - 1
    refits = {
        penalty: np.stack(
            [
                Ridge(penalty).fit(z[rest], targets[rest], weights[rest]).predict(z[[i]])[0]
                for i, rest in enumerate(~np.eye(24, dtype=bool))
            ]
        )
        for penalty in PENALTIES * 8
    }
    errors = {p: (weights[:, None] * (u - targets) ** 2).mean() for p, u in refits.items()}
    assert fit.penalty == pytest.approx(min(errors, key=lambda p: errors[p]))
    np.testing.assert_allclose(fit.scores, refits[fit.penalty], atol=1e-8)
    right = fit.scores.argmax(axis=1) == truths
    assert fit.right == pytest.approx((right * weights).sum() / weights.sum())
    expected = Ridge(fit.penalty).fit(z, targets, sample_weight=weights)
    np.testing.assert_allclose(fit.fit().weights, expected.coef_.T, atol=1e-10)
    # Only ratios of the classes' weights matter.
    labels, states = ["ab"[t] for t in truths], x[:, None, None]
    twice = fit_state(states, labels, poolings=("mean",), weights={"a": 2 * rare, "b": 2.0})
    np.testing.assert_allclose(twice.scores, fit.scores, atol=1e-6)
