"""Second round: labels of texts on which a fixed policy and the model differ (docs/statistics.md).

Where both give the same answer, a label carries no information about the gain. So the second round
labels texts drawn at random among those where they differ. The gain over all texts is the gain on
these, times the share of texts where they differ.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int

from lastword.errors import InputError
from lastword.trust.policy import Promise
from lastword.trust.testing import clopper_pearson, paired_bound, paired_p

ROWS = 40  # number of rows per look
FIRST = 60  # number of labels of round one, of a table without labels
LEAST_POOL = 80  # minimum number of texts without a label
_OF_SHARE = 0.2  # part of a bound's level for the share of differing texts; the rest is for labels


@dataclass(frozen=True)
class DrawnRows:
    """Counts of a second round.

    Of a pool of texts without a label, one per group, policy and model differ on some. Of these,
    `rows` were drawn for labels over all looks: the policy alone is right on `fixed`, the model
    alone on `broken`, including skipped ones. Each look, from 1, has half of the remaining delta.

    Raises:
        InputError: The counts contradict each other.
    """

    pool: int
    differ: int
    rows: int
    fixed: int
    broken: int
    skipped: int = 0
    look: int = 1

    def __post_init__(self) -> None:
        """Refuse counts that contradict each other."""
        sizes = self.pool >= self.differ >= self.rows >= max(1, self.fixed + self.broken)
        if not sizes or self.look < 1 or not 0 <= self.skipped <= self.broken or self.fixed < 0:
            raise InputError("the counts of its second round do not fit together")

    def level(self, delta: float) -> float:
        """Return the level of this look: delta / 2, delta / 4, ..."""
        return float(delta / 2**self.look)

    @property
    def p(self) -> float:
        """The p-value of the hypothesis that the policy gains nothing."""
        return float(paired_p(np.array([self.fixed]), np.array([self.broken]), self.rows)[0])

    def gain_bound(self, level: float) -> float:
        """Return the lower bound of the gain over all texts; at least 0."""
        share, _ = clopper_pearson(self.differ, self.pool, _OF_SHARE * level)
        of_rows = paired_bound(self.fixed, self.broken, self.rows, (1 - _OF_SHARE) * level)
        return max(0.0, share * of_rows)

    def broken_bound(self, level: float) -> float:
        """Return the upper bound of the share of all texts whose answer the policy breaks."""
        _, share = clopper_pearson(self.differ, self.pool, _OF_SHARE * level)
        _, of_rows = clopper_pearson(self.broken, self.rows, (1 - _OF_SHARE) * level)
        return share * of_rows

    def worth(self, delta: float) -> dict[str, float]:
        """Return the net gain over all texts, with bounds."""
        level, share = self.level(delta), self.differ / self.pool
        return {
            "net": share * (self.fixed - self.broken) / self.rows,
            "net_at_least": self.gain_bound(level),
            "broken_at_most": self.broken_bound(level),
        }

    def proves(self, promise: Promise, alpha: float, delta: float) -> bool:
        """Return True if the promise is proven at this look's level."""
        level = self.level(delta)
        if promise == "breaks" and self.broken_bound(level) > alpha:
            return False
        return self.fixed > self.broken and self.p <= level


def deal(groups: Sequence[int] | Int[np.ndarray, " texts"], seed: int) -> Int[np.ndarray, " drawn"]:
    """Return the indices of texts in random order, one text per group."""
    order = np.random.default_rng(seed).permutation(len(groups))
    _, first = np.unique(np.asarray(groups)[order], return_index=True)
    return np.asarray(order[np.sort(first)])
