"""Linear fits, state probes and bags of words, against plain formulas and scikit-learn."""

import warnings

import numpy as np
import pytest
from numpy.testing import assert_allclose
from sklearn.covariance import ledoit_wolf_shrinkage
from sklearn.linear_model import Ridge

from lastword.errors import InputError
from lastword.probes import bag_of_words
from lastword.probes.linear import PENALTIES, fit_class_means, leave_one_out
from lastword.probes.novelty import Likeness
from lastword.probes.state import StateBlock, can_fit, fit_beside, fit_state

CLASSES, WIDTH = 20, 30


def rows(spread: float = 1.0, width: int = WIDTH, texts: int = 4) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    truths = np.repeat(np.arange(CLASSES), texts)
    shape = rng.normal(size=(width, width))  # most variance is in uninformative directions
    return rng.normal(size=(CLASSES, width))[truths] + spread * rng.normal(
        size=(len(truths), width)
    ) @ shape, truths


def discriminants(
    asked: np.ndarray, z: np.ndarray, truths: np.ndarray, shrinkage: float, floor: float, n: int
) -> np.ndarray:
    """Return x'Am - m'Am / 2 of every class, with A the inverse of the shrunk covariance."""
    means = np.stack([z[truths == c].mean(axis=0) for c in range(CLASSES)])
    residuals = z - means[truths]
    spread = (1 - shrinkage) * residuals.T @ residuals / n + floor * np.eye(z.shape[1])
    turned = np.linalg.solve(spread, means.T)
    return np.asarray(asked @ turned - np.einsum("cd,dc->c", means, turned) / 2)


@pytest.mark.parametrize(("width", "texts"), [(WIDTH, 4), (120, 4), (WIDTH, 2)])
def test_class_means_agree_with_their_definition_without_each_text(width: int, texts: int) -> None:
    x, truths = rows(width=width, texts=texts)
    n, z = len(x), (x - x.mean(axis=0)) / x.std(axis=0)
    fitted = fit_class_means(z, truths, CLASSES)
    residuals = z - np.stack([z[truths == c].mean(axis=0) for c in range(CLASSES)])[truths]
    shrinkage = ledoit_wolf_shrinkage(residuals, assume_centered=True)
    floor = shrinkage * np.square(residuals).sum() / (n * width)
    ours = z @ fitted.weights + fitted.intercept
    theirs = discriminants(z, z, truths, shrinkage, floor, n)
    # Ours have the scale of a ridge's targets: one slope and one shift for all classes.
    differences = [scores[:, :1] - scores[:, 1:] for scores in (ours, theirs)]
    slope = (differences[0] * differences[1]).sum() / np.square(differences[1]).sum()
    np.testing.assert_allclose(differences[0], slope * differences[1], atol=1e-8)
    without = fitted.without
    for i in (0, 5, 17):
        rest = np.arange(n) != i
        one = discriminants(z[[i]], z[rest], truths[rest], shrinkage, floor, n)
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


def planted(count: int = 40, width: int = 12, seed: int = 0, depth: int = 1):
    """Return texts of three classes that differ only in one depth's second pooling."""
    rng = np.random.default_rng(seed)
    truths = np.arange(count) % 3
    states = rng.standard_normal((count, 3, 2, width)).astype(np.float32)
    states[:, depth, 1] += 3 * np.eye(3, width)[truths].astype(np.float32)
    return states, [f"class {t}" for t in truths]


def test_the_depth_and_pooling_that_separate_the_classes_are_chosen():
    states, labels = planted()
    fit = fit_state(states, labels, layers=[4, 7, 9])
    assert fit.probe.blocks == (StateBlock(7, "last"),) and fit.probe.name == "probe@7"
    new, truths = planted(seed=1)
    p = fit.probe.probabilities(fit.probe.scores(new[:, 1, 1]), fit.probe.classes)
    assert_allclose(p.sum(axis=1), 1)
    right = np.array(fit.probe.classes)[p.argmax(axis=1)] == np.array(truths)
    assert right.mean() > 0.8 > fit.right[0].max()


def test_the_order_of_labels_does_not_change_the_probe():
    states, labels = planted()
    order = np.random.default_rng(3).permutation(len(labels))
    one, other = fit_state(states, labels), fit_state(states[order], [labels[i] for i in order])
    for name in ("mean", "scale", "weights", "intercept", "temperature"):
        assert_allclose(getattr(one.probe, name), getattr(other.probe, name), rtol=1e-5, atol=1e-8)
    assert_allclose(one.scores[order], other.scores, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize(("labels", "value"), [("aaaa", 0), ("abcd", 0), ("aabb", np.nan)])
def test_invalid_labels_and_states_are_refused(labels, value):
    with pytest.raises(InputError):
        fit_state(np.full((4, 1, 1, 3), value, np.float32), list(labels))
    assert can_fit([*labels]) == (labels == "aabb")


@pytest.mark.parametrize(("classes", "single"), [(3, 1), (25, 1), (25, 18)])
def test_the_only_text_of_a_class_is_fitted_but_not_judged(classes, single):
    rng = np.random.default_rng(0)
    centres = 4 * rng.normal(size=(classes, 40))
    truths = np.array([*range(classes), *2 * [*range(classes - single)]])

    def near(truths):
        return centres[truths] + rng.normal(size=(len(truths), 40))

    names = [f"{truth:02d}" for truth in truths]
    fit = fit_state(near(truths)[:, None, None], names, poolings=("mean",))
    right, judged = fit.scores.argmax(axis=1) == truths, truths < classes - single
    assert fit.right[0, 0] == right[judged].mean() > 0.8 and not right[~judged].any()
    new = np.tile(np.arange(classes), 4)
    assert (fit.probe.scores(near(new)).argmax(axis=1) == new).mean() > 0.9


@pytest.mark.parametrize("width", [5, 60])
def test_the_distance_of_a_labelled_text_excludes_it(width):
    from sklearn.covariance import ledoit_wolf_shrinkage

    rng = np.random.default_rng(0)
    z = rng.standard_normal((30, width)) * np.linspace(0.2, 3, width)
    z -= z.mean(axis=0)
    shrinkage = ledoit_wolf_shrinkage(z, assume_centered=True)
    floor = shrinkage * np.square(z).sum() / z.size
    far = []
    for i in range(len(z)):
        rest = np.delete(z, i, axis=0)
        centred = rest - rest.mean(axis=0)
        covariance = (1 - shrinkage) * centred.T @ centred / len(rest) + floor * np.eye(width)
        off = z[i] - rest.mean(axis=0)
        far.append(off @ np.linalg.solve(covariance, off))
    likeness = Likeness.of(z)
    assert_allclose(likeness.distances, np.sort(far), rtol=1e-6)
    p = likeness.p_values(np.array([np.zeros(width), np.full(width, 50.0)]))
    assert p[0] == 1 and p[1] == 1 / 31


def test_p_values_of_similar_texts_are_uniform():
    rng = np.random.default_rng(1)
    shares = []
    for _ in range(50):
        z = rng.standard_normal((60, 20))
        mean = z[:40].mean(axis=0)
        p = Likeness.of(z[:40] - mean).p_values(z[40:] - mean)
        shares.append((p <= 0.2).mean())
    assert abs(np.mean(shares) - 0.2) < 0.03


@pytest.mark.parametrize("alone", [["sea"], ["sea", "sky", "sun", "ice", "fog", "dew", "elm"]])
def test_a_class_with_one_text_is_fitted_without_a_warning(alone):
    texts = [f"the {word} number {i}" for word in ("fox", "dog") for i in range(4)]
    labels = [text.split()[1] for text in texts]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        words = bag_of_words([*texts, *(f"a {word}" for word in alone)], [*labels, *alone])
    assert [*words.predict([*texts, "a sea"])] == [*labels, "sea"]
    assert words.best_score_ == 1.0 and words.n_splits_ == 4
    grams = words.best_estimator_[0].transformer_list[1][1].vocabulary_
    assert "fox" in grams and {len(gram) for gram in grams} == {3, 4, 5}
    # The smallest class of two or more texts sets the number of folds.
    few = bag_of_words(texts[:6], labels[:6])
    assert few.n_splits_ == 2
