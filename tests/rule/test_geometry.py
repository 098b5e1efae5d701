"""Geometry: Proposition 1 and Theorem 1 as properties, ties, and the reference beside it."""

import math

import numpy as np
import pytest
import reference
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from lastword.errors import UnsupportedModelError
from lastword.rule.geometry import (
    Trajectory,
    decisive_layer,
    decisiveness,
    effective_dimension,
    effective_dimensions,
    entropies,
    log_margin_ratio,
    margin,
    margins,
    normalised_entropy,
    tied_first,
)
from lastword.theta import Theta

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


@PROPERTY
@given(trajectories(coarse, least=3))
def test_dimension_is_one_exactly_where_the_rank_is(window):
    X = centred(window)
    one = np.linalg.matrix_rank(X, tol=1e-9) <= 1
    assert math.isclose(effective_dimension(window), 1.0, abs_tol=1e-9) == one


@PROPERTY
@given(trajectories(least=2, most=2))
def test_two_candidates_have_exactly_one_dimension(window):
    assert effective_dimension(window) == 1.0


def test_the_dimension_of_two_candidates_is_set_and_not_rounded():
    # Worked out, a third of these would miss 1 by their last bits, half of them from above.
    windows = np.random.default_rng(0).normal(-4, 3, (200, 2, 5))
    assert (effective_dimensions(windows) == 1).all()


def test_a_trajectory_at_its_end_has_the_last_depth_alone():
    S = Trajectory.at_end(np.array([-1.0, -2.0]), 4)
    assert (S.depth, S.has([4]), S.has([3])) == (4, True, False)
    assert S.base.tolist() == [-1.0, -2.0]


def test_equal_eigenvalues_give_the_whole_rank():
    for n in range(3, 8):
        # The simplex: every candidate leads once, so that all n - 1 directions weigh the same.
        assert effective_dimension(np.eye(n)) == pytest.approx(n - 1, rel=1e-12)


def test_a_known_three_by_three():
    # Columns (1,0,-1), (1,-2,1), 0 are orthogonal and centred: eigenvalues 2 and 6, 64 / 40.
    window = np.array([[1.0, 1, 5], [0, -2, 5], [-1, 1, 5]])
    assert effective_dimension(window) == pytest.approx(1.6, rel=1e-14)


@pytest.mark.parametrize("window", [np.full((4, 3), -2.5), np.tile([-1.0, -7.0], (5, 1))])
def test_a_window_that_does_not_move_has_dimension_one(window):
    assert effective_dimension(window) == 1.0


@PROPERTY
@given(trajectories(least=3), st.randoms(use_true_random=False))
def test_dimension_ignores_order_of_candidates_depths_and_a_shift(window, random):
    rows, columns = list(range(len(window))), list(range(window.shape[1]))
    random.shuffle(rows)
    random.shuffle(columns)
    shift = np.array([random.randint(-5, 5) for _ in columns], dtype=float)
    if np.abs(centred(window)).max() < 1e-3:
        return  # the shift's own rounding would be the signal
    moved = window[rows][:, columns] + shift
    assert effective_dimension(moved) == pytest.approx(effective_dimension(window), rel=1e-6)


@pytest.mark.parametrize("scale", [1e-120, 1e-9, 1e9, 1e120])
def test_dimension_is_scale_free_without_under_or_overflow(scale):
    window = np.random.default_rng(0).normal(size=(5, 6))
    window -= window.mean(axis=0)
    assert effective_dimension(window * scale) == pytest.approx(effective_dimension(window))


# --- Theorem 1 ---


@PROPERTY
@given(
    arrays(np.float64, 5, elements=st.integers(-4, 4).map(float)),
    arrays(np.float64, 6, elements=st.integers(-4, 4).map(float)),
    arrays(np.float64, 6, elements=scores),
)
def test_one_direction_stays_one_whatever_all_candidates_share(u, w, shared):
    # S = u w^T + 1 c^T: every depth holds the same preference, in its own strength and sign.
    X = np.outer(u - u.mean(), w)
    if not X.any():
        return
    assert effective_dimension(np.outer(u, w) + shared) == pytest.approx(1.0, abs=1e-9)


integers = st.integers(-20, 20).map(float)


@PROPERTY
@given(
    st.integers(1, 6).flatmap(lambda n: arrays(np.float64, (2, n), elements=integers)),
    st.integers(-9, 9),
    st.integers(1, 9),
    integers,
)
def test_affine_scores_collapse_to_one_lambda(pair, beta, total, gamma):
    b, t = pair
    alpha = total - beta  # alpha + beta = total > 0
    affine = alpha * b + beta * t + gamma
    mixture = (1 - beta / total) * b + (beta / total) * t
    # Integers are exact, so only the mixture rounds: its top set within 1e-9 is the affine one's.
    near = np.flatnonzero(mixture >= mixture.max() - 1e-9)
    assert list(near) == list(tied_first(affine))


@PROPERTY
@given(st.floats(-1e6, 1e6, allow_nan=False))
def test_the_counterexample_of_three_candidates(lam):
    b, t, q = np.array([3.0, 2, 1]), np.array([2.0, 3, 1]), np.array([1.0, 1, 5])
    mixture = (1 - lam) * b + lam * t
    assert 2 not in tied_first(mixture)
    assert list(tied_first(q)) == [2]
    window = np.stack([b, q], axis=1)
    assert np.linalg.matrix_rank(centred(window)) == 2
    assert effective_dimension(window) > Theta().tau_dim


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


@PROPERTY
@given(trajectories(least=2), st.randoms(use_true_random=False))
def test_permuting_candidates_changes_no_statistic(trajectory, random):
    rows = list(range(len(trajectory)))
    random.shuffle(rows)
    assert np.array_equal(margins(trajectory[rows]), margins(trajectory))
    assert np.allclose(entropies(trajectory[rows]), entropies(trajectory), atol=1e-12)


def test_a_tie_at_the_top_has_no_margin_and_names_everyone():
    tied = np.array([-1.0, -3.0, -1.0, -2.0])
    assert margin(tied) == 0.0
    assert list(tied_first(tied)) == [0, 2]


def test_one_candidate_has_an_infinite_margin():
    assert margin(np.array([-2.0])) == math.inf


def test_probabilities_of_zero_add_nothing_to_the_entropy():
    assert entropies(np.array([[0.0], [-5000.0], [-9000.0]])) == pytest.approx([0.0])
    assert normalised_entropy(np.array([-4.0, -4.0, -4.0])) == pytest.approx(1.0)


def test_the_decisive_layer_is_the_sharpest_and_the_lowest_of_ties():
    flat, sharp = np.array([-1.0, -1.0, -1.0]), np.array([-0.5, -4.0, -4.0])
    columns = [sharp * 2, flat, sharp, flat, sharp]  # depth 0 is sharpest and never counts
    trajectory = np.stack(columns, axis=1)
    assert decisive_layer(trajectory, 0.1) == 2
    assert decisive_layer(np.stack([sharp, flat, flat], axis=1), 0.1) == 1
    assert decisive_layer(np.stack([flat, flat, sharp], axis=1), 0.1) == 2  # L is included
    expected = (4.0 - 0.5) / (reference.entropy(sharp) + 0.1)
    assert decisiveness(trajectory, 0.1)[2] == pytest.approx(expected)


def test_a_window_of_ties_fails_the_margin_gate_with_minus_infinity():
    window = np.full((3, 4), -1.0)
    assert log_margin_ratio(window, np.array([-1.0, -2.0, -3.0]), 1e-12) == -math.inf


def test_a_last_depth_of_ties_is_held_by_the_floor():
    window = np.array([[-1.0], [-2.0], [-9.0]])
    ratio = log_margin_ratio(window, np.full(3, -1.0), 1e-12)
    assert ratio == pytest.approx(math.log(1e12))


# --- the window and the scorer's depths (method, sections 3 and 5) ---


def test_the_window_of_26_blocks_is_13_to_24():
    assert list(Theta().window(26)) == list(range(13, 25))


@PROPERTY
@given(st.integers(3, 400))
def test_depths_agree_with_the_reference(L):
    theta = Theta()
    assert list(theta.window(L)) == reference.window(theta, L)
    assert theta.window(L).stop == L - 1  # 1 - 1/L in integers, never floating floor
    assert Theta(rho_plus=1 - 1 / L).window(L) == theta.window(L)
    assert list(theta.anchor_depths(L)) == reference.depths_of(theta.scorer.anchors, L)
    assert list(theta.feature_depths(L)) == reference.depths_of(theta.scorer.features, L)


def test_a_fraction_meant_as_a_whole_depth_is_that_depth():
    assert Theta().anchor_depths(26) == (7, 15, 22, 26)  # 0.2692 * 26 = 6.9992
    assert Theta().feature_depths(26) == (13, 18, 22, 26)


def test_depths_of_a_shallow_model_collide():
    assert Theta().anchor_depths(3) == (1, 2, 3)


@pytest.mark.parametrize("L", [1, 2])
def test_a_window_that_is_empty_is_refused(L):
    with pytest.raises(UnsupportedModelError, match=rf"{L} blocks.*at least 3"):
        Theta().window(L)
