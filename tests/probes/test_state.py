"""State probes: leave-one-out, order of texts, selected depth and pooling, and likeness."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from lastword.errors import InputError
from lastword.probes.novelty import Likeness
from lastword.probes.state import StateBlock, can_fit, fit_state


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
