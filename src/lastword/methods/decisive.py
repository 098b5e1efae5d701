"""The decisive layer without its gates: the candidates' distribution where it is sharpest.

TRACE's own component, unguarded: shows what the gates of the candidate-space regime are worth.
Fails where an early layer is sharp about the candidates' wording and wrong (Eqs. 6-7).
"""

from dataclasses import dataclass

from scipy.special import log_softmax

from lastword.methods.contract import Aggregation, Evidence, Facts, Needs
from lastword.rule.geometry import Scores, decisive_layer


@dataclass(frozen=True)
class DecisiveOnly:
    """q = log pi at l*, for every item.

    Attributes:
        facts: Of the model.
    """

    facts: Facts
    aggregation: Aggregation = "mean"

    @property
    def needs(self) -> Needs:
        """Every depth from 1 on."""
        return Needs(frozenset(range(1, self.facts.depth + 1)))

    def scores(self, evidence: Evidence) -> Scores:
        """q: candidate-restricted log-probabilities at the decisive layer."""
        S = evidence.trajectory.scores
        layer = decisive_layer(S, self.facts.theta.eps_H)
        q: Scores = log_softmax(S[:, layer])
        return q
