"""Trajectory probes: recovery of an informative feature, order invariance, and the optimum."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from lastword.errors import InputError
from lastword.probes.logit import conditional_logit, log_loss
from lastword.probes.trajectory import features_of, fit_trajectory


def planted(count: int = 60, seed: int = 0):
    """Return items of 3 to 5 options whose correct one differs only in feature 2."""
    rng = np.random.default_rng(seed)
    items, truths = [], []
    for _ in range(count):
        x = rng.standard_normal((int(rng.integers(3, 6)), 6))
        truth = int(rng.integers(len(x)))
        x[truth, 2] += 3
        items.append(x)
        truths.append(truth)
    return items, truths


def test_the_informative_feature_is_found_whatever_the_order():
    items, truths = planted()
    names, order = [*map(str, range(len(items)))], np.random.default_rng(0).permutation(len(items))
    probe = fit_trajectory(items, truths, names)
    other = fit_trajectory(*([each[i] for i in order] for each in (items, truths, names)))
    assert_allclose(probe.weights, other.weights, rtol=1e-7)
    assert probe.temperature == pytest.approx(other.temperature)
    assert np.abs(probe.weights).argmax() == 2
    new, rights = planted(seed=1)
    answers = [int(probe.scores(x).argmax()) for x in new]
    assert np.mean(np.array(answers) == rights) > 0.8
    with pytest.raises(InputError):
        fit_trajectory(*planted(count=3))


@pytest.mark.parametrize(("options", "sure", "penalty"), [(4, 0, 2.0), (77, 9, 0.1)])
def test_the_gradient_at_the_weights_is_zero(options, sure, penalty):
    """Also with many options that are nearly certain."""
    rng = np.random.default_rng(0)
    truths = rng.integers(1, options, size=200)
    x, target = rng.standard_normal((200, options, 2)), np.eye(options)[truths]
    x[np.arange(200), truths] += np.stack([rng.choice([0, sure], 200), np.ones(200)], axis=1)
    present = np.ones((200, options), bool)
    present[::3, 0] = False
    x[~present] = 0
    w = conditional_logit(x, present, target, penalty)
    p = np.exp(x @ w) * present
    p /= p.sum(axis=1, keepdims=True)
    assert_allclose(np.einsum("io,iof->f", target - p, x), penalty * w, atol=1e-6)
    # A weight of two is equivalent to repeating the item.
    each = rng.choice([1, 2], 200)
    weighted = conditional_logit(x, present, target, penalty, each.astype(float))
    twice = np.repeat(np.arange(200), each)
    repeated = conditional_logit(x[twice], present[twice], target[twice], penalty)
    assert_allclose(weighted, repeated, atol=1e-7)
    scores = np.where(present, x @ w, -np.inf)
    loss = log_loss(scores, target, each / each.mean())
    assert loss == pytest.approx(log_loss(scores[twice], target[twice]))


def test_features_are_all_depths_with_and_without_input_t_and_lengths():
    from lastword import Item, Tracer

    tracer = Tracer.demo()
    item = Item("Which goods come from Baevwick?", ("clay lamps", "green wool"), blind_prompt="A:")
    (whole,) = tracer.correct_many([item], read="all", blind="all")
    features = features_of(whole, [2, 3])
    depths = tracer.profile.depth + 1
    assert features.shape == (2, 2 * depths + 5)
    assert_allclose(features[:, depths - 1], whole.blind_scores)
    assert_allclose(features[:, depths + 2 : depths + 4], np.log([[2, 10], [3, 10]]))
    assert_allclose(features[:, -2], whole.base_scores)
    (part,) = tracer.correct_many([item])
    with pytest.raises(InputError):
        features_of(part, [2, 3])
