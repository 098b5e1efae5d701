"""A method of your own: made from facts of the model, it says what it needs, and scores items.

This one answers with the deepest depth whose choice the next depth shares.
"""

from dataclasses import dataclass

import numpy as np

from lastword.methods import Aggregation, Evidence, Facts, Needs


@dataclass(frozen=True)
class LastAgreeing:
    """The last depth that agrees with the one after it.

    Attributes:
        facts: Depth and vocabulary of the model, I(M), and TRACE's constants.
    """

    facts: Facts
    aggregation: Aggregation = "mean"

    @property
    def needs(self) -> Needs:
        """Every depth: the pass then reads them all."""
        return Needs(frozenset(range(self.facts.depth + 1)))

    def scores(self, evidence: Evidence) -> np.ndarray:
        """S at that depth, or the base's scores where no two depths agree."""
        S = evidence.trajectory.scores
        choices = S.argmax(axis=0)
        agreeing = np.flatnonzero(choices[:-1] == choices[1:])
        return S[:, agreeing[-1]] if len(agreeing) else evidence.trajectory.base
