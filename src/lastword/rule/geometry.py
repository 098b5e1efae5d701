"""Geometry of a trajectory: centred window, effective dimension, margins, decisive layer.

Everything is numpy and float64: trajectories are small, and gates are compared in float64.
Functions of trajectories take one item, or many with equally many candidates and depths, stacked
on leading axes.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int
from scipy.special import log_softmax

Scores = Float[np.ndarray, " candidates"]
Columns = Float[np.ndarray, "candidates depths"]
Inputs = Float[np.ndarray, "inputs candidates"]
PerItem = Float[np.ndarray, "*items"]
Rows = Float[np.ndarray, "*items candidates"]
Trajectories = Float[np.ndarray, "*items candidates depths"]  # of one item, or of many


@dataclass(frozen=True)
class Trajectory:
    """The cross-layer candidate trajectory of one item, as far as it has been read.

    Attributes:
        scores: S, mean log-probability per token in nats [candidates, L + 1]; nan if unread.
        t: The scores by T, in nats [candidates]; None if unread.
    """

    scores: Columns
    t: Scores | None = None

    @classmethod
    def at_end(cls, base: Scores, depth: int) -> "Trajectory":
        """Return a trajectory with only depth L read."""
        scores = np.full((len(base), depth + 1), np.nan)
        scores[:, depth] = base
        return cls(scores)

    @property
    def depth(self) -> int:
        """Return L, the number of blocks."""
        return int(self.scores.shape[1]) - 1

    @property
    def base(self) -> Scores:
        """Return b = S[:, L]."""
        return self.scores[:, self.depth]

    def has(self, depths: Iterable[int]) -> bool:
        """Return True if all of these depths have been read."""
        return not np.isnan(self.scores[:, list(depths)]).any()


def effective_dimension(windows: Trajectories) -> PerItem:
    """Return d_eff = tr(C)^2 / tr(C^2), Eq. 5: participation ratio of the window's Gram matrix.

    It is 1 for one candidate, for two (Proposition 1), and if all candidates have equal scores.
    """
    if windows.shape[-2] <= 2:
        return np.ones(windows.shape[:-2])
    X = windows - windows.mean(axis=-2, keepdims=True)  # Eq. 4
    scale = np.abs(X).max(axis=(-2, -1), keepdims=True)
    still = scale == 0
    # d_eff does not depend on the scale, but its fourth powers could over- or underflow.
    X = X / np.where(still, 1.0, scale)
    C = X @ X.swapaxes(-2, -1)
    squares, trace = (C * C).sum(axis=(-2, -1)), np.trace(C, axis1=-2, axis2=-1)
    still = still[..., 0, 0]
    return np.where(still, 1.0, trace**2 / np.where(still, 1.0, squares))


def margins(trajectory: Trajectories) -> Float[np.ndarray, "*items depths"]:
    """Return m_l, Eq. 6: largest minus second largest score; infinite for one candidate."""
    if trajectory.shape[-2] == 1:
        return np.full_like(trajectory[..., 0, :], np.inf)
    top = np.partition(trajectory, -2, axis=-2)
    difference: np.ndarray = top[..., -1, :] - top[..., -2, :]
    return difference


def margin(scores: Scores) -> float:
    """Return Delta_2(u): largest minus second largest score."""
    return float(margins(scores[:, None])[0])


def entropies(trajectory: Trajectories) -> Float[np.ndarray, "*items depths"]:
    """Return H_l, Eq. 6: entropy of pi_l in nats, with 0 log 0 = 0."""
    log_pi = log_softmax(trajectory, axis=-2)  # of pi_l, over the candidates
    pi = np.exp(log_pi)
    terms = pi * np.where(pi > 0, log_pi, 0.0)
    entropy: np.ndarray = -terms.sum(axis=-2)
    return entropy


def decisiveness(trajectory: Trajectories, eps_H: float) -> Float[np.ndarray, "*items depths"]:
    """Return D_l = m_l / (H_l + eps_H), Eq. 7: margin per unit of entropy."""
    return margins(trajectory) / (entropies(trajectory) + eps_H)


def decisive_layer(trajectory: Trajectories, eps_H: float) -> Int[np.ndarray, "*items"]:
    """Return l*, the depth of 1..L with the largest D_l, Eq. 7; the lowest one on ties."""
    # Depth 0 is left out (Eq. 7): no block has run there, so it holds almost nothing of the prompt.
    return np.asarray(1 + decisiveness(trajectory[..., 1:], eps_H).argmax(axis=-1))


def log_margin_ratio(windows: Trajectories, last: Rows, delta_r: float) -> PerItem:
    """Return g_logr, Eq. 8: log of the window's largest margin over depth L's; may be -inf."""
    widest, end = margins(windows).max(axis=-1), margins(last[..., None])[..., 0]
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(widest / np.maximum(np.abs(end), delta_r)))


def normalised_entropy(last: Rows) -> PerItem:
    """Return g_H = H_L / log n, Eq. 8, in [0, 1]; needs two candidates."""
    return np.asarray(entropies(last[..., None])[..., 0] / np.log(last.shape[-1]))


def tied_first(scores: Scores) -> Int[np.ndarray, " tied"]:
    """Return the indices of all candidates that share the top score."""
    return np.flatnonzero(scores == scores.max())
