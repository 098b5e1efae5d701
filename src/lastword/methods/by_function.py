"""Plain methods, which are one function of the readings: baselines and most other methods."""

from collections.abc import Callable
from dataclasses import dataclass

from lastword.methods.contract import Aggregation, Evidence, Needs
from lastword.rule.geometry import Scores
from lastword.rule.tile import TokenScorer


@dataclass(frozen=True)
class Plain:
    """A method whose scores are a function's results, aggregated.

    Attributes:
        score: Function that returns one score per candidate; None if it does not apply.
    """

    needs: Needs
    score: Callable[[Evidence], Scores | None]
    aggregation: Aggregation = "mean"

    def scores(self, evidence: Evidence) -> Scores | None:
        """Return the function's scores, aggregated."""
        scores = self.score(evidence)
        return None if scores is None else evidence.aggregate(scores, self.aggregation)


def by_tokens(scorer: TokenScorer, aggregation: Aggregation = "sum") -> Plain:
    """Return the method of a token scorer."""
    return Plain(Needs(token_scorer=scorer), lambda evidence: evidence.token_scores, aggregation)
