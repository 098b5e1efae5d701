"""A method that is a token scorer and an aggregation: most of TRACE's peers."""

from dataclasses import dataclass

from lastword.methods.contract import Aggregation, Evidence, Needs
from lastword.rule.geometry import Scores
from lastword.rule.tile import TokenScorer


@dataclass(frozen=True)
class Aggregated:
    """The scores of a token scorer, aggregated.

    Attributes:
        scorer: Scores tokens.
        aggregation: Makes candidates of them.
    """

    scorer: TokenScorer
    aggregation: Aggregation = "sum"

    @property
    def needs(self) -> Needs:
        """The scorer alone."""
        return Needs(scorer=self.scorer)

    def scores(self, evidence: Evidence) -> Scores:
        """The scorer's token scores, aggregated."""
        assert evidence.own is not None
        return evidence.aggregate(evidence.own, self.aggregation)
