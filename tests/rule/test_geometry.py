"""Geometry: Proposition 1 as properties, ties, and agreement with the reference."""

import math

import numpy as np
import pytest
import reference
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from lastword.errors import UnsupportedModelError
from lastword.rule.geometry import (
    decisive_layer,
    decisiveness,
    effective_dimension,
    entropies,
    log_margin_ratio,
    margin,
    margins,
    normalised_entropy,
    tied_first,
)
from lastword.rule.theta import Theta

PROPERTY = settings(max_examples=60, derandomize=True)

scores = st.floats(-30, 0, allow_nan=False, width=32)
# Few distinct values, so that ties and low rank are common.
coarse = st.integers(-3, 0).map(float)


def trajectories(values=scores, least: int = 1, most: int = 7):
    shape = st.tuples(st.integers(least, most), st.integers(1, 9))
    return shape.flatmap(lambda s: arrays(np.float64, s, elements=values))


def centred(window: np.ndarray) -> np.ndarray:
    return window - window.mean(axis=0)


# --- Proposition 1 ---


@PROPERTY
@given(trajectories(least=3) | trajectories(coarse, least=3))
def test_dimension_lies_between_one_and_the_rank(window):
    X = centred(window)
    if np.abs(X).max() < 1e-9:
        return
    rank = np.linalg.matrix_rank(X, tol=1e-9 * np.abs(X).max())
    d_eff = effective_dimension(window)
    assert 1 - 1e-12 <= d_eff <= rank * (1 + 1e-9)
    assert rank <= len(window) - 1


def test_the_dimension_of_two_candidates_and_of_a_constant_window_is_one():
    # By the formula, rounding would move a third of these off 1, half of them above it.
    windows = np.random.default_rng(0).normal(-4, 3, (200, 2, 5))
    assert (effective_dimension(windows) == 1).all()
    assert effective_dimension(np.full((4, 3), -2.5)) == 1.0
    assert effective_dimension(np.tile([-1.0, -7.0], (5, 1))) == 1.0


@pytest.mark.parametrize("scale", [1e-120, 1e-9, 1e9, 1e120])
def test_dimension_is_scale_free_without_under_or_overflow(scale):
    window = np.random.default_rng(0).normal(size=(5, 6))
    window -= window.mean(axis=0)
    assert effective_dimension(window * scale) == pytest.approx(effective_dimension(window))


# --- margins, entropies, the decisive layer, the gates ---


@PROPERTY
@given(trajectories(least=2) | trajectories(coarse, least=2))
def test_agrees_with_the_reference(trajectory):
    m, H = margins(trajectory), entropies(trajectory)
    n = len(trajectory)
    for depth, column in enumerate(trajectory.T):
        assert m[depth] == reference.margin(column)
        assert H[depth] == pytest.approx(reference.entropy(column), abs=1e-12)
        assert -1e-12 <= H[depth] <= math.log(n) + 1e-12
        assert 0 <= normalised_entropy(column) + 1e-12 and normalised_entropy(column) <= 1 + 1e-12
    expected = reference.effective_dimension(trajectory)
    if np.abs(centred(trajectory)).max() > 1e-6:
        assert effective_dimension(trajectory) == pytest.approx(expected, rel=1e-9)


def test_ties_one_candidate_and_probabilities_of_zero():
    tied = np.array([-1.0, -3.0, -1.0, -2.0])
    assert margin(tied) == 0.0 and margin(np.array([-2.0])) == math.inf
    assert list(tied_first(tied)) == [0, 2]
    assert entropies(np.array([[0.0], [-5000.0], [-9000.0]])) == pytest.approx([0.0])
    assert normalised_entropy(np.array([-4.0, -4.0, -4.0])) == pytest.approx(1.0)
    window, tops = np.array([[-1.0], [-2.0], [-9.0]]), np.full(3, -1.0)
    assert log_margin_ratio(np.full((3, 4), -1.0), -np.arange(3.0), 1e-12) == -math.inf
    # The margin of a tied last depth is replaced by the floor.
    assert log_margin_ratio(window, tops, 1e-12) == pytest.approx(math.log(1e12))


def test_the_decisive_layer_is_the_sharpest_and_the_lowest_of_ties():
    flat, sharp = np.array([-1.0, -1.0, -1.0]), np.array([-0.5, -4.0, -4.0])
    columns = [sharp * 2, flat, sharp, flat, sharp]  # depth 0 is sharpest and never counts
    trajectory = np.stack(columns, axis=1)
    assert decisive_layer(trajectory, 0.1) == 2
    assert decisive_layer(np.stack([sharp, flat, flat], axis=1), 0.1) == 1
    assert decisive_layer(np.stack([flat, flat, sharp], axis=1), 0.1) == 2  # L is included
    expected = (4.0 - 0.5) / (reference.entropy(sharp) + 0.1)
    assert decisiveness(trajectory, 0.1)[2] == pytest.approx(expected)


# --- the window and the scorer's depths (method, sections 3 and 5) ---


@PROPERTY
@given(st.integers(3, 400))
def test_depths_agree_with_the_reference(L):
    theta = Theta()
    assert list(theta.window(L)) == reference.window(theta, L)
    assert theta.window(L).stop == L - 1  # 1 - 1/L in integers, never floating floor
    assert Theta(rho_plus=1 - 1 / L).window(L) == theta.window(L)
    assert list(theta.anchor_depths(L)) == reference.depths_of(theta.scorer.anchors, L)
    assert list(theta.feature_depths(L)) == reference.depths_of(theta.scorer.features, L)


def test_rounded_fractions_give_whole_depths_and_an_empty_window_is_refused():
    assert Theta().anchor_depths(26) == (7, 15, 22, 26)  # 0.2692 * 26 = 6.9992
    assert Theta().feature_depths(26) == (13, 18, 22, 26)
    for L in (1, 2):
        with pytest.raises(UnsupportedModelError, match=rf"{L} blocks.*at least 3"):
            Theta().window(L)
