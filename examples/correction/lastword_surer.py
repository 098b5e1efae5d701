"""A correction of your own: a value that says what it still needs of an item, and then decides.

This one keeps the model's answer unless the question speaks against it by half a nat: the candidate
that the question raised most answers only where it was raised that much more than the model's own.
"""

from dataclasses import dataclass

import numpy as np

from lastword.methods import Aggregation, Evidence, Facts, Needs

LEAST = 0.5  # nats a token


@dataclass(frozen=True)
class Surer:
    """The candidate that the question raised most, by half a nat; else the model's own.

    Attributes:
        facts: Depth and vocabulary of the model, I(M), and TRACE's constants.
    """

    facts: Facts
    aggregation: Aggregation = "mean"

    @property
    def needs(self) -> Needs:
        """The last depth, with the question and without."""
        last = frozenset([self.facts.depth])
        return Needs(last, blind=last)

    def scores(self, evidence: Evidence) -> np.ndarray | None:
        """Return the question's gain, or the model's scores; None without a blind prompt."""
        if evidence.blind is None:
            return None
        base = evidence.trajectory.base
        raised = base - evidence.blind.base
        return raised if raised.max() - raised[base.argmax()] > LEAST else base
