"""Geometry of a trajectory: centred window, effective dimension, margins, decisive layer.

All in numpy and float64: trajectories are small, and every gate is compared in float64.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int
from scipy.special import log_softmax

Scores = Float[np.ndarray, " candidates"]
Columns = Float[np.ndarray, "candidates depths"]
PerDepth = Float[np.ndarray, " depths"]


@dataclass(frozen=True)
class Trajectory:
    """The cross-layer candidate trajectory of one item, as far as it has been read.

    Attributes:
        scores: S, mean log-probability a token in nats, nan where unread [candidates, L + 1].
        t: T's second reading of the candidates [candidates]; None where unread.
    """

    scores: Columns
    t: Scores | None = None

    @property
    def depth(self) -> int:
        """L, the number of blocks."""
        return int(self.scores.shape[1]) - 1

    @property
    def base(self) -> Scores:
        """b = S[:, L]."""
        return self.scores[:, self.depth]

    def has(self, depths: Iterable[int]) -> bool:
        """Whether all of these depths have been read."""
        return not np.isnan(self.scores[:, list(depths)]).any()


def effective_dimension(window: Columns) -> float:
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


def margins(trajectory: Columns) -> PerDepth:
    """m_l, Eq. 6: largest minus second largest score at every depth; infinite for one candidate."""
    if len(trajectory) == 1:
        return np.full(trajectory.shape[1], np.inf)
    top = np.partition(trajectory, -2, axis=0)
    difference: PerDepth = top[-1] - top[-2]
    return difference


def margin(scores: Scores) -> float:
    """Delta_2(u): largest minus second largest score."""
    return float(margins(scores[:, None])[0])


def entropies(trajectory: Columns) -> PerDepth:
    """H_l, Eq. 6: entropy of pi_l in nats, with 0 log 0 = 0."""
    log_pi = log_softmax(trajectory, axis=0)  # of pi_l, over the candidates
    pi = np.exp(log_pi)
    terms: Columns = pi * np.where(pi > 0, log_pi, 0.0)
    entropy: PerDepth = -terms.sum(axis=0)
    return entropy


def decisiveness(trajectory: Columns, eps_H: float) -> PerDepth:
    """D_l = m_l / (H_l + eps_H), Eq. 7: sharpness a unit of entropy."""
    return margins(trajectory) / (entropies(trajectory) + eps_H)


def decisive_layer(trajectory: Columns, eps_H: float) -> int:
    """l* = argmax of D_l over depths 1..L, Eq. 7; the lowest depth on ties."""
    return 1 + int(np.argmax(decisiveness(trajectory[:, 1:], eps_H)))


def log_margin_ratio(window: Columns, last: Scores, delta_r: float) -> float:
    """g_logr, Eq. 8: log of the window's largest margin over the last depth's; -inf for log 0."""
    with np.errstate(divide="ignore"):
        return float(np.log(margins(window).max() / max(abs(margin(last)), delta_r)))


def normalised_entropy(last: Scores) -> float:
    """g_H = H_L / log n, Eq. 8, in [0, 1]; needs two candidates."""
    return float(entropies(last[:, None])[0] / np.log(len(last)))


def tied_first(scores: Scores) -> Int[np.ndarray, " tied"]:
    """Places of all candidates that share the top score."""
    return np.flatnonzero(scores == scores.max())
