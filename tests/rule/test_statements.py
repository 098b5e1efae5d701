"""The paper's statements in numbers, against independent float64 arithmetic."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from lastword.rule.geometry import Trajectory, effective_dimension, tied_first
from lastword.rule.operators import OPERATORS, Ruling
from lastword.rule.router import next_step
from lastword.rule.theta import Theta

PROPERTY = settings(max_examples=100, derandomize=True)

# Multiples of 1/8: their sums and products are exact.
steps = st.integers(-40, 40).map(lambda k: k / 8)
windows = st.tuples(st.integers(3, 6), st.integers(2, 7)).flatmap(
    lambda shape: arrays(np.float64, shape, elements=st.floats(-20, 0, width=32))
)


def centred(columns: np.ndarray) -> np.ndarray:
    n = len(columns)
    return (np.eye(n) - np.ones((n, n)) / n) @ columns


def leaders(scores: np.ndarray) -> list[int]:
    """Return the positions of the largest value, by comparing every pair."""
    return [i for i, score in enumerate(scores) if all(score >= other for other in scores)]


@PROPERTY
@given(windows)
def test_proposition_2_1_dimension_one_only_if_rank_one(window):
    singular = np.linalg.svd(centred(window), compute_uv=False)
    assume(singular[0] > 1e-6 and singular[1] > 1e-4 * singular[0])  # the rank is at least two
    eigenvalues = singular**2
    expected = eigenvalues.sum() ** 2 / (eigenvalues**2).sum()
    assert effective_dimension(window) == pytest.approx(expected, rel=1e-9)
    # The two largest eigenvalues alone keep it above 1.
    assert effective_dimension(window) - 1 > eigenvalues[1] / eigenvalues[0] / len(window)


@PROPERTY
@example(np.eye(4)[0], np.eye(5)[0], -np.array([[1, 1.5, 3, 4], [0.5, 4, 2, 4]]), (3.0, 1.0, 7.0))
@given(
    arrays(np.float64, 4, elements=steps),
    arrays(np.float64, 5, elements=steps),
    arrays(np.float64, (2, 4), elements=steps),
    st.tuples(steps, steps, steps),
)
def test_theorem_2_1_i_rank_one_leaves_one_family_of_scalar_mixtures(u, w, pair, weights):
    assume(np.ptp(u) > 0 and np.abs(w).max() > 0)
    window = np.outer(u, w)
    assert effective_dimension(window) == pytest.approx(1.0, abs=1e-12)
    direction = np.linalg.svd(centred(window))[0][:, 0]
    residue = centred(u[:, None])[:, 0]
    assert residue - direction * (direction @ residue) == pytest.approx(0, abs=1e-9)
    (b, t), (alpha, beta, gamma) = pair, weights
    assume(alpha + beta > 0)
    z = alpha * b + beta * t + gamma
    lam = beta / (alpha + beta)
    top = sorted(z)
    assume(top[-1] - top[-2] > 1e-6)
    S = np.stack([b] * 5, axis=1)
    correction = OPERATORS["mix"](Trajectory(S, t), replace(Theta(), eta=abs(lam)))
    assert isinstance(correction, Ruling)
    if correction.operator == "mix" and correction.mixing == lam:
        assert leaders(z) == [int(correction.scores.argmax())]


B, T, Q = np.array([3.0, 2.0, 1.0]), np.array([2.0, 3.0, 1.0]), np.array([1.0, 1.0, 5.0])


def test_theorem_2_1_ii_no_scalar_mixture_reaches_what_the_candidate_space_does():
    columns = centred(np.stack([B, Q], axis=1))
    assert columns == pytest.approx(np.array([[1, -4 / 3], [0, -4 / 3], [-1, 8 / 3]]))
    assert np.linalg.matrix_rank(columns) == 2
    # Candidate 3 leads (1 - lambda) b + lambda t only for lambda > above and lambda < below.
    above = (B[0] - B[2]) / ((B[0] - B[2]) - (T[0] - T[2]))
    below = (B[1] - B[2]) / ((B[1] - B[2]) - (T[1] - T[2]))
    assert (above, below) == (2, -1)
    flat = np.zeros(3)
    S = np.stack([flat, flat, Q, B, B, B], axis=1) - 10  # L = 5, window 2..3
    for eta in np.linspace(0, 40, 401):
        for t in (T - 10, 3 * T - 10):  # as sharp as b, and sharper
            theta = Theta(tau_dim=9.0, eta=float(eta))
            mixed = next_step(Trajectory(S, t), 2.0, theta)
            assert isinstance(mixed, Ruling) and mixed.scores.argmax() != 2
    ruling = next_step(Trajectory(S, T - 10), 2.0, Theta())
    assert isinstance(ruling, Ruling) and ruling.d_eff > 1.0015
    assert ruling.operator == "decisive" and ruling.decisive_layer == 2
    assert ruling.scores.argmax() == 2


@PROPERTY
@given(arrays(np.float64, 5, elements=steps), st.integers(1, 24), steps)
def test_lemma_a_2_affine_shifts_and_positive_rescaling_keep_the_choice(u, eighths, shift):
    a = eighths / 8
    assert tied_first(a * u + shift).tolist() == leaders(u)
    # q of the decisive operator is S at l* plus a shift: the same leaders.
    S = np.stack([np.zeros(5), np.zeros(5), u, np.zeros(5), np.linspace(0, -0.01, 5)], axis=1)
    assume(sorted(u)[-1] - sorted(u)[-2] > 0.5)
    correction = OPERATORS["decisive"](Trajectory(a * S + shift), Theta())
    assert isinstance(correction, Ruling)
    if correction.operator == "decisive":
        assert leaders(correction.scores) == leaders(u)
