"""What the model's own surest answers teach."""

import numpy as np
from scipy.special import softmax

from lastword.probes.state import fit_state
from lastword.probes.taught import teach


def planted(count=200, seed=0):
    """States that tell three classes at depth 1; the model leans to one option."""
    rng = np.random.default_rng(seed)
    truths = rng.integers(3, size=count)
    states = rng.standard_normal((count, 3, 1, 8)).astype(np.float32)
    states[np.arange(count), 1, 0, truths] += 4
    base = rng.standard_normal((count, 3)) + [2.0, 0.0, 0.0]
    base[np.arange(count), truths] += 1.5
    return states, base, truths


def test_a_student_of_the_surest_answers_is_better_than_its_teacher():
    states, base, truths = planted()
    probe = teach(states, base, ("b", "a", "c"))
    assert probe is not None and probe.depth == 1 and probe.classes == ("a", "b", "c")
    answers = np.array(probe.classes)[probe.scores(states[:, 1, 0].astype(float)).argmax(axis=1)]
    student = np.mean(answers == np.array(["b", "a", "c"])[truths])
    p = softmax(base, axis=1)
    teacher = np.mean((p - p.mean(axis=0)).argmax(axis=1) == truths)
    assert student > teacher + 0.1 and teacher > np.mean(base.argmax(axis=1) == truths)


def test_it_is_fitted_on_the_surest_half_of_each_class():
    states, base, _ = planted(40)
    p = softmax(base, axis=1)
    u = p - p.mean(axis=0)
    margin = np.sort(u, axis=1)[:, 2] - np.sort(u, axis=1)[:, 1]
    kept = []
    for place in range(3):
        own = np.flatnonzero(u.argmax(axis=1) == place)
        kept += sorted(own, key=lambda i: -margin[i])[: (len(own) + 1) // 2]
    by_hand = fit_state(states[kept], [f"o{u[i].argmax()}" for i in kept]).probe
    probe = teach(states, base, ("o0", "o1", "o2"))
    assert probe is not None
    np.testing.assert_array_equal(probe.weights, by_hand.weights)


def test_few_texts_and_one_class_teach_nothing():
    states, base, _ = planted(19)
    assert teach(states, base, ("a", "b", "c")) is None
    states, base, _ = planted(30)
    assert teach(states, np.ones_like(base), ("a", "b", "c")) is None
