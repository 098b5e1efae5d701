"""TRACE: one operator per item, chosen by geometry and I(M) (Algorithm 1).

It applies to every item and corrects only if its gates hold. Its scores are those of the operator:
mean log-probabilities per token, or log pi over the candidates from the decisive layer.
"""

from dataclasses import dataclass

from lastword.methods.contract import Aggregation, Evidence, Facts, Needs
from lastword.rule.geometry import Scores
from lastword.rule.operators import Step
from lastword.rule.router import Ruling, next_step


@dataclass(frozen=True)
class Trace:
    """u of the operator that the router chooses."""

    facts: Facts
    aggregation: Aggregation = "mean"
    name: str = "trace"

    @property
    def needs(self) -> Needs:
        """Every depth and T; a single decision reads less (`Tracer.correct`)."""
        return Needs(frozenset(range(self.facts.depth + 1)), t=True)

    def scores(self, evidence: Evidence) -> Scores:
        """Return u, Eqs. 9, 18 and 19."""
        verdict = self.next(evidence)
        assert isinstance(verdict, Ruling)
        return verdict.correction.scores

    def next(self, evidence: Evidence) -> Step | Ruling:
        """Return the next step that Algorithm 1 needs, or its ruling."""
        return next_step(evidence.trajectory, self.facts.invariant, self.facts.theta)
