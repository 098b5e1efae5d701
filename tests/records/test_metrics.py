"""Metrics against naive definitions, and their edge cases."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lastword.errors import InputError
from lastword.records.metrics import calibration_error, mc1, mc2, mc3, pair_accuracy

# Multiples of 1/16: ties are frequent, sums are exact.
SCORE = st.integers(-800, 0).map(lambda k: k / 16)
ITEM = st.lists(st.tuples(SCORE, st.booleans()), min_size=2, max_size=12).filter(
    lambda item: len({truth for _, truth in item}) == 2
)


@given(ITEM)
def test_metrics_equal_their_definitions(item):
    scores, truth = zip(*item, strict=True)
    best = max(scores)
    tied = [t for s, t in item if s == best]
    mass = sum(math.exp(s - best) for s in scores)
    true_mass = sum(math.exp(s - best) for s, t in item if t)
    above = [all(s > other for other, f in item if not f) for s, t in item if t]
    assert mc1(scores, truth) == sum(tied) / len(tied)
    assert mc2(scores, truth) == pytest.approx(true_mass / mass, abs=1e-12)
    assert mc3(scores, truth) == sum(above) / len(above)


def test_a_pair_counts_only_if_both_items_are_right():
    ids = ["pair/1/a", "pair/2/a", "pair/1/b", "pair/2/b", "pair/3/a", "plain/1", "pair/4/b"]
    assert pair_accuracy(ids, [1, 1, 1, 0, 1, 0, 1]) == 0.5
    assert pair_accuracy(ids[:3:2], [1.0, 0.5]) == 0  # a tie is not a right answer
    assert math.isnan(pair_accuracy(ids[4:], [1, 1, 1]))


# Edges of bins, where inclusive and exclusive bounds differ.
CONFIDENCE = st.floats(0, 1) | st.sampled_from(np.linspace(0, 1, 16).tolist())


@given(st.lists(st.tuples(CONFIDENCE, st.booleans()), min_size=1, max_size=60))
def test_ece_equals_its_definition(pairs):
    total = 0.0
    for k in range(15):
        low, high = np.linspace(0, 1, 16)[k : k + 2]
        inside = [(p, c) for p, c in pairs if low < p <= high or (k == 0 and p == 0)]
        if inside:
            gap = np.mean([c for _, c in inside]) - np.mean([p for p, _ in inside])
            total += len(inside) / len(pairs) * abs(gap)
    assert calibration_error(*zip(*pairs, strict=True)) == pytest.approx(total, abs=1e-9)


def test_undefined_values_and_refusals():
    assert mc2([-2000.0, -2001.0], [True, False]) == pytest.approx(1 / (1 + math.exp(-1)))
    assert mc2([-np.inf, -3.0], [True, False]) == 0
    for truth in ([True, True], [False, False]):
        assert all(math.isnan(metric([-1.0, -2.0], truth)) for metric in (mc1, mc2, mc3))
    assert calibration_error([0.95, math.nan], [1, 1]) == pytest.approx(0.05)
    assert math.isnan(calibration_error([], []))
    for scores in ([-1.0], [-1.0, math.nan], [-1.0, math.inf], [-math.inf] * 2):
        with pytest.raises(InputError):
            mc1(scores, [True, False])
