"""Prediction sets: the options that a probe does not rule out, by split conformal prediction.

A set has the options whose probability is at least a threshold (LAC: Sadinle, Lei and Wasserman
2019). The threshold is computed from the texts that test the probe.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import ceil

import numpy as np
from jaxtyping import Int

from lastword.errors import InputError


@dataclass(frozen=True)
class Sets:
    """Prediction sets of a probe.

    Attributes:
        level: Minimum share of texts whose set has the right option, on average over draws of
            labels and text.
        labels: Number of labels that set the threshold; a group counts once.
        threshold: Minimum probability of an option in a set; None with too few labels.
    """

    level: float
    labels: int = 0
    method: str | None = None
    threshold: float | None = None
    size: float | None = None
    single: float | None = None

    def words(self) -> str:
        """Return a sentence about the sets, or about the number of labels that they need."""
        share = f"{100 * self.level:g}%"
        if self.threshold is None:
            least = ceil(_exact(self.level) / (1 - _exact(self.level)))
            return (
                f"No prediction sets: {share} needs {least} labels held out from a probe, and "
                f"there are {self.labels}."
            )
        return (
            f"Prediction sets: take every option to which {self.method} gives a probability of at "
            f"least {self.threshold:.3g}. For texts like these, at least {share} of the sets "
            f"contain the right option ({self.labels} labels held out from the probe set the "
            f"threshold). A set has {self.size:.2f} options on average, and "
            f"{100 * (self.single or 0):.0f}% of the sets have one."
        )


def prediction_sets(
    method: str,
    likely: Sequence[tuple[np.ndarray, int]],
    groups: Int[np.ndarray, " texts"],
    level: float,
) -> Sets:
    """Return a probe's sets; each group counts once, with its least probable right option."""
    of_truth = np.array([p[place] for p, place in likely])
    worst = np.sort([of_truth[groups == group].min() for group in np.unique(groups)])
    count = len(worst)
    if (rank := ceil((count + 1) * _exact(level))) > count:
        return Sets(level, count, method)
    threshold = float(worst[count - rank])
    sizes = np.array([(p >= threshold).sum() for p, _ in likely])
    size, single = float(sizes.mean()), float((sizes == 1).mean())
    return Sets(level, count, method, threshold, size, single)


def check_level(level: float | None) -> None:
    """Check a level.

    Raises:
        InputError: It is not between 0 and 1.
    """
    if level is not None and not 0 < level < 1:
        raise InputError(f"sets is a share between 0 and 1, such as 0.9, not {level:g}")


def _exact(level: float) -> Fraction:
    return Fraction(str(level))  # exact: in floats 0.9 / 0.1 is more than 9
