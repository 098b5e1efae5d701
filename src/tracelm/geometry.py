"""Geometry of a trajectory: centred window, effective dimension, margins, entropies, decisive layer.

Everything here is numpy in float64: trajectories are small, and every gate is compared in float64.
"""

import numpy as np
from jaxtyping import Float, Int

Scores = Float[np.ndarray, " candidates"]
Trajectory = Float[np.ndarray, "candidates depths"]
PerDepth = Float[np.ndarray, " depths"]


def softmax(scores: Scores) -> Scores:
    """Candidate-restricted probabilities: exp(u_i) / sum_j exp(u_j)."""
    return np.exp(log_softmax(scores[:, None])[:, 0])


def log_softmax(trajectory: Trajectory) -> Trajectory:
    """log pi_l, Eq. 6: log-softmax over candidates at every depth."""
    shifted = trajectory - trajectory.max(axis=0)
    result: Trajectory = shifted - np.log(np.exp(shifted).sum(axis=0))
    return result


def effective_dimension(window: Trajectory) -> float:
    """d_eff = tr(C)^2 / tr(C^2), Eq. 5: participation ratio of the centred window's Gram matrix.

    One candidate and a window that does not move relative to its mean give 1; two candidates give
    exactly 1 (Proposition 1).

    Args:
        window: S at the interior depths, in nats.
    """
    if len(window) <= 2:
        return 1.0
    X = window - window.mean(axis=0)  # Eq. 4
    scale = np.abs(X).max()
    if scale == 0:
        return 1.0
    X = X / scale  # d_eff is scale-free; squares of squares are not safe from under- and overflow
    C = X @ X.T
    return float(np.trace(C) ** 2 / (C * C).sum())


def margins(trajectory: Trajectory) -> PerDepth:
    """m_l, Eq. 6: largest minus second largest score at every depth; infinite for one candidate."""
    if len(trajectory) == 1:
        return np.full(trajectory.shape[1], np.inf)
    top = np.partition(trajectory, -2, axis=0)
    return top[-1] - top[-2]


def margin(scores: Scores) -> float:
    """Delta_2(u): largest minus second largest score."""
    return float(margins(scores[:, None])[0])


def entropies(trajectory: Trajectory) -> PerDepth:
    """H_l, Eq. 6: entropy of pi_l in nats, with 0 log 0 = 0."""
    log_pi = log_softmax(trajectory)
    pi = np.exp(log_pi)
    return -np.where(pi > 0, pi * np.where(pi > 0, log_pi, 0.0), 0.0).sum(axis=0)


def decisiveness(trajectory: Trajectory, eps_H: float) -> PerDepth:
    """D_l = m_l / (H_l + eps_H), Eq. 7: sharpness a unit of entropy."""
    return margins(trajectory) / (entropies(trajectory) + eps_H)


def decisive_layer(trajectory: Trajectory, eps_H: float) -> int:
    """l* = argmax of D_l over depths 1..L, Eq. 7; the lowest depth on ties."""
    return 1 + int(np.argmax(decisiveness(trajectory[:, 1:], eps_H)))


def log_margin_ratio(window: Trajectory, last: Scores, delta_r: float) -> float:
    """g_logr, Eq. 8: log of the window's largest margin over the last depth's; -inf for log 0."""
    with np.errstate(divide="ignore"):
        return float(np.log(margins(window).max() / max(abs(margin(last)), delta_r)))


def normalised_entropy(last: Scores) -> float:
    """g_H = H_L / log n, Eq. 8, in [0, 1]; needs two candidates."""
    return float(entropies(last[:, None])[0] / np.log(len(last)))


def tied_first(scores: Scores) -> Int[np.ndarray, " tied"]:
    """Places of all candidates that share the top score."""
    return np.flatnonzero(scores == scores.max())
