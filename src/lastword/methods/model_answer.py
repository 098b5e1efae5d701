"""The model's own answer: log-probabilities at depth L, summed, averaged, or a byte.

Applies everywhere; what every correction is held against. `base-sum` is what lm-evaluation-harness
calls accuracy and favours short answers, `base-mean` is TRACE's own b, `base-bytes` divides the sum
by the UTF-8 bytes of the candidate and does not depend on the tokenizer's cut.
"""

from dataclasses import dataclass

from lastword.methods.contract import Aggregation, Evidence, Facts, Needs
from lastword.rule.geometry import Scores


@dataclass(frozen=True)
class ModelAnswer:
    """b = S[:, L], aggregated.

    Attributes:
        facts: Of the model.
        aggregation: Sum, mean or sum over bytes.
    """

    facts: Facts
    aggregation: Aggregation = "mean"

    @property
    def needs(self) -> Needs:
        """Depth L."""
        return Needs(frozenset([self.facts.depth]))

    def scores(self, evidence: Evidence) -> Scores:
        """Log-probability in nats: a token, a candidate, or a byte."""
        return evidence.aggregate(evidence.trajectory.base, self.aggregation)
