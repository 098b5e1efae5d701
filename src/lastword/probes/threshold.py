"""Threshold of a probe: the lead over the model's answer that its best option needs.

Scores are on the ridge's scale, where targets are +1 and -1. Logistic scores are log odds, and half
of them is on this scale.
"""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool, Float, Int

THRESHOLDS = (0.0, 0.1, 0.2, 0.3, 0.45, 0.6, 0.8, 1.0)

Table = Float[np.ndarray, "texts options"]
Places = Int[np.ndarray, " texts"]
Worth = Float[np.ndarray, " options"]

UNSEEN = -1.0  # score of a class without labels: a ridge on targets of -1 alone gives this


def of_options(
    scores: Float[np.ndarray, "texts classes"], classes: Sequence[str], options: Sequence[str]
) -> Table:
    """Return the scores of all options [texts, options]; options without a class get `UNSEEN`."""
    table = np.full((len(scores), len(options)), UNSEEN)
    table[:, [options.index(name) for name in classes]] = scores
    return table


def answers_by_itself(scores: Table, base: Places, threshold: float) -> Bool[np.ndarray, " texts"]:
    """Return True where the best option beats the model's answer by more than the threshold."""
    lead = scores.max(axis=1) - scores[np.arange(len(scores)), base]
    return np.asarray(lead > threshold)


def needs_no_model(scores: Table, threshold: float) -> Bool[np.ndarray, " texts"]:
    """Return True where the best option beats every other by more than the threshold."""
    second, best = np.sort(scores, axis=1)[:, -2:].T
    return np.asarray(best - second > threshold)


def choose_threshold(
    scores: Table, base: Places, truths: Places, worth: Worth | None = None
) -> float:
    """Return the threshold that maximises (F - K) / sqrt(F + K + 1); the larger one on ties.

    F answers are corrected and K are broken, by a fit without them. With the worth of each right
    answer, F - K is the sum of all gains, F + K the sum of their squares, and 1 the square of the
    largest loss.
    """
    worth = np.ones(scores.shape[1]) if worth is None else worth
    right, before = scores.argmax(axis=1) == truths, base == truths

    def gain(threshold: float) -> float:
        stands = answers_by_itself(scores, base, threshold)
        gains = worth[truths] * (np.where(stands, right, before) - 1.0 * before)
        return float(gains.sum() / np.sqrt(np.square(gains).sum() + worth.max() ** 2))

    return max(THRESHOLDS, key=lambda threshold: (gain(threshold), threshold))
