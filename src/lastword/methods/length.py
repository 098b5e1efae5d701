"""The shortest candidate: no model, no question.

A baseline, never a correction: in some benchmarks right answers are shorter than wrong ones.
Characters, not tokens, so that it is the same for every model.
"""

from dataclasses import dataclass

import numpy as np

from lastword.methods.contract import Aggregation, Evidence, Facts, Needs
from lastword.rule.geometry import Scores


@dataclass(frozen=True)
class LengthOnly:
    """Minus the number of characters.

    Attributes:
        facts: Of the model; not looked at.
    """

    facts: Facts
    aggregation: Aggregation = "mean"

    @property
    def needs(self) -> Needs:
        """Nothing."""
        return Needs()

    def scores(self, evidence: Evidence) -> Scores:
        """Minus characters; its softmax is no probability of anything."""
        return np.array([-float(len(text)) for text in evidence.candidates])
