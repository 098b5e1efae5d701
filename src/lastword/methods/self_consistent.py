"""Depths that vote: the mean of S over the interior window l_minus <= l < l_plus.

Applies to every model; needs no threshold. Fails where the interior agrees on the candidates'
wording rather than on the answer, and leaves out what the last block adds.
"""

from dataclasses import dataclass

from lastword.methods.contract import Aggregation, Evidence, Facts, Needs
from lastword.rule.geometry import Scores


@dataclass(frozen=True)
class SelfConsistentDepth:
    """Mean of S over the window of Eq. 3.

    Attributes:
        facts: Of the model.
        aggregation: Sum, mean or sum over bytes.
    """

    facts: Facts
    aggregation: Aggregation = "mean"

    @property
    def needs(self) -> Needs:
        """The window."""
        return Needs(frozenset(self.facts.theta.window(self.facts.depth)))

    def scores(self, evidence: Evidence) -> Scores:
        """Mean log-probability over the window's depths, in nats."""
        window = self.facts.theta.window(self.facts.depth)
        means: Scores = evidence.trajectory.scores[:, window].mean(axis=1)
        return evidence.aggregate(means, self.aggregation)
