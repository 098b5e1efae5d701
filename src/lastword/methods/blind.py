"""The base with the question left out: what the candidates' wording alone gives away.

A baseline, never a correction: where it comes close to a method, the benchmark can be answered
without reading the question. Applies to items whose template can leave the question out.
"""

from dataclasses import dataclass

from lastword.methods.contract import Aggregation, Evidence, Facts, Needs
from lastword.rule.geometry import Scores


@dataclass(frozen=True)
class QuestionBlind:
    """b after the blind prompt.

    Attributes:
        facts: Of the model.
    """

    facts: Facts
    aggregation: Aggregation = "mean"

    @property
    def needs(self) -> Needs:
        """Depth L after the blind prompt."""
        return Needs(blind=frozenset([self.facts.depth]))

    def scores(self, evidence: Evidence) -> Scores | None:
        """Mean log-probability a token; None for an item without a blind prompt."""
        return None if evidence.blind is None else evidence.blind.base
