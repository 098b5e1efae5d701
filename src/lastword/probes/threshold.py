"""Threshold of a probe: how far its best option has to beat the model's answer (section 17).

Scores are on the ridge's scale, where targets are +1 and -1. Of logistic scores it is half of the
log odds.
"""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool, Float, Int

THRESHOLDS = (0.0, 0.1, 0.2, 0.3, 0.45, 0.6, 0.8, 1.0)

Table = Float[np.ndarray, "texts options"]
Places = Int[np.ndarray, " texts"]

UNSEEN = -1.0  # what a ridge on targets of +1 and -1 says of a class without a label


def of_options(
    scores: Float[np.ndarray, "texts classes"], classes: Sequence[str], options: Sequence[str]
) -> Table:
    """Return the scores of all options; those without a class have `UNSEEN`."""
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


def effects(scores: Table, base: Places, truths: Places, threshold: float) -> dict[str, int]:
    """Return how many of the model's answers are changed, fixed and broken."""
    stands, answers = answers_by_itself(scores, base, threshold), scores.argmax(axis=1)
    return {
        "changed": int(stands.sum()),
        "fixed": int((stands & (answers == truths) & (base != truths)).sum()),
        "broken": int((stands & (answers != truths) & (base == truths)).sum()),
    }


def choose_threshold(scores: Table, base: Places, truths: Places) -> float:
    """Return the threshold that maximises (F - K) / sqrt(F + K + 1); the larger of equals.

    F answers are corrected and K are broken.

    Args:
        scores: Of texts that were left out of the fit that scores them.
        base: Place of the model's answer.
        truths: Place of the right option.
    """

    def worth(threshold: float) -> float:
        counts = effects(scores, base, truths, threshold)
        return float(
            (counts["fixed"] - counts["broken"]) / np.sqrt(counts["fixed"] + counts["broken"] + 1)
        )

    return max(THRESHOLDS, key=lambda threshold: (worth(threshold), threshold))
