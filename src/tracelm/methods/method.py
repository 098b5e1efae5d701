"""What methods share: a token scorer with its aggregation, and the layers that peers contrast."""

from dataclasses import dataclass

from tracelm.methods.contract import Aggregation, Evidence, Needs
from tracelm.rule.geometry import Scores
from tracelm.rule.tile import TokenScorer


@dataclass(frozen=True)
class Aggregated:
    """A method that is its token scorer, aggregated: most of TRACE's peers.

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


def premature_depths(depth: int) -> tuple[int, ...]:
    """Candidate premature layers: every second depth from floor(L/2) (from L - 20 where L > 40).

    L itself is excluded. DoLa's upper bucket; SLED is read at the same layers here.
    """
    first = depth - 20 if depth > 40 else depth // 2
    return tuple(range(first, depth, 2))
