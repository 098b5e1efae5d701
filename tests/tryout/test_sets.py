"""Prediction sets hold the right option as often as they say."""

from math import ceil

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import softmax

from lastword.tryout.sets import Sets, prediction_sets

ALL = 100_000  # texts of which a threshold is judged


def drawn(rng: np.random.Generator, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Probabilities of four options that are too sure of themselves, and the right places."""
    scores = rng.normal(size=(count, 4))
    truths = (scores + rng.gumbel(size=(count, 4))).argmax(axis=1)
    return softmax(3 * scores, axis=1), truths


def found(
    p: np.ndarray, truths: np.ndarray, level: float, groups: np.ndarray | None = None
) -> Sets:
    likely = list(zip(p, truths.tolist(), strict=True))
    own = np.arange(len(p)) if groups is None else groups
    return prediction_sets("probe@1", likely, own, level)


@settings(max_examples=5, deadline=None)
@given(st.integers(19, 60), st.sampled_from([0.5, 0.8, 0.9, 0.95]), st.integers(0, 2**32 - 1))
def test_sets_hold_the_right_option_at_least_as_often_as_the_level(
    count: int, level: float, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    p, truths = drawn(rng, ALL)
    whole = np.sort(p[np.arange(ALL), truths])
    draws, covered = 200, []
    for _ in range(draws):
        threshold = found(*drawn(rng, count), level).threshold
        covered.append(1 - np.searchsorted(whole, threshold) / ALL)
    # The mean over draws is ceil((n + 1) level) / (n + 1), in each draw a Beta.
    expected = ceil(round((count + 1) * level, 9)) / (count + 1)
    error = np.std(covered) / draws**0.5 + 0.5 / ALL**0.5
    assert expected >= level and abs(np.mean(covered) - expected) < 5 * error


def test_the_threshold_is_mapies() -> None:
    classification = pytest.importorskip("mapie.classification")
    from sklearn.linear_model import LogisticRegression

    given = LogisticRegression()  # of log p it gives p
    given.classes_, given.coef_, given.intercept_ = np.arange(4), np.eye(4), np.zeros(4)
    p, truths = drawn(np.random.default_rng(0), 60)
    for level in (0.5, 0.8, 0.9):
        theirs = classification.SplitConformalClassifier(
            given, confidence_level=level, conformity_score="lac", prefit=True
        )
        theirs.conformalize(np.log(p), truths)
        _, within = theirs.predict_set(np.log(p))
        sizes, ours = within[:, :, 0].sum(axis=1), found(p, truths, level)
        assert ours.size == pytest.approx(sizes.mean())
        assert ours.single == pytest.approx((sizes == 1).mean())


def test_a_group_counts_once_by_its_worst_text() -> None:
    p, truths = drawn(np.random.default_rng(1), 60)
    worst = p[np.arange(60), truths].reshape(20, 3).min(axis=1)
    ours = found(p, truths, 0.9, np.repeat(np.arange(20), 3))
    assert ours.labels == 20 and ours.threshold == np.sort(worst)[20 - 19]


def test_too_few_labels_for_the_level_are_a_line_and_no_sets() -> None:
    p, truths = drawn(np.random.default_rng(2), 9)
    assert found(p, truths, 0.9).threshold == p[np.arange(9), truths].min()
    few = found(p[:8], truths[:8], 0.9)
    assert (few.threshold, few.size) == (None, None)
    said = "No prediction sets: 90% needs 9 labels held out from a probe, and there are 8."
    assert few.words() == said
    assert Sets(0.9).words().endswith("and there are 0.")
