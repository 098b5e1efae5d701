"""TRACE itself, by its router: one operator per item, chosen by geometry and I(M) (Algorithm 1).

Applies everywhere and corrects only where its gates hold. Its scores are those of the operator:
mean log-probabilities a token, or candidate-restricted ones where the decisive layer answers.
"""

from dataclasses import dataclass

from lastword.methods.contract import Aggregation, Evidence, Facts, Needs
from lastword.rule.geometry import Scores
from lastword.rule.operators import Step
from lastword.rule.router import Ruling, next_step


@dataclass(frozen=True)
class Trace:
    """u of the router's operator, from everything read."""

    facts: Facts
    aggregation: Aggregation = "mean"
    name: str = "trace"

    @property
    def needs(self) -> Needs:
        """Return every depth and T; a decision alone reads less (`Tracer.correct`)."""
        return Needs(frozenset(range(self.facts.depth + 1)), t=True)

    def scores(self, evidence: Evidence) -> Scores:
        """Return u, Eqs. 9, 18 and 19."""
        verdict = self.next(evidence)
        assert isinstance(verdict, Ruling)
        return verdict.correction.scores

    def next(self, evidence: Evidence) -> Step | Ruling:
        """Return the next reading that Algorithm 1 needs, or its verdict."""
        return next_step(evidence.trajectory, self.facts.invariant, self.facts.theta)
