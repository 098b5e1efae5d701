"""Documents by how well they answer a query, for any dialect: by a predicate, or as continuations.

By relevance each document by itself is asked "Does this passage answer the query?", behind the
query that all share. By continuation they are candidates of one item, whose prompt is the query.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from scipy.special import log_softmax

from lastword.decisions import relevance
from lastword.errors import InputError
from lastword.service.call import Call
from lastword.service.correction import by_score
from lastword.service.deciding import answer, refused
from lastword.text.items import Item


@dataclass(frozen=True)
class Ranking:
    """What documents are ranked by.

    Attributes:
        probabilities: Of each document: that it answers the query, or as a continuation among all.
        raw: What they are ranked by, in nats: log p / (1 - p), or log p among all.
        tokens: Of queries and documents together.
        told: The decisions behind it, as JSON.
    """

    probabilities: tuple[float, ...]
    raw: tuple[float, ...]
    tokens: int
    told: dict[str, Any]

    @property
    def order(self) -> list[int]:
        """Places from the best document to the worst; ties as they came."""
        return by_score(self.raw)


Ranker = Callable[[Call, str, Sequence[str]], Awaitable[Ranking]]


async def by_relevance(call: Call, query: str, texts: Sequence[str]) -> Ranking:
    """Rank documents by the probability that each answers the query.

    Raises:
        Refusal: As `deciding.answer`; a document or the query is blank.
    """
    try:
        if not query.strip():
            raise InputError("the query is blank; give it text")
        made = await answer(call, query, relevance(texts))
    except InputError as error:
        raise refused(error) from error
    temperature = call.corrector.tracer.temperature
    raw = []
    for each in made.answers.predicates.values():
        yes, no = each.decision.scores
        raw.append(float(yes - no) / (temperature if each.calibrated and temperature else 1.0))
    return Ranking(
        tuple(each.probability for each in made.answers.predicates.values()),
        tuple(raw),
        made.input_tokens + made.output_tokens,
        {"documents": list(made.reasons.values())},
    )


async def by_continuation(call: Call, query: str, texts: Sequence[str]) -> Ranking:
    """Rank documents by their corrected probability as the query's continuation.

    Raises:
        Refusal: As `Call.answer`.
        TraceError: What the item or the model raised.
    """
    decision, encoded = await call.answer(Item(query, tuple(texts)))
    return Ranking(
        tuple(decision["probabilities"]),
        tuple(log_softmax(decision["scores"]).tolist()),
        encoded.prompt_tokens + sum(encoded.candidate_tokens),
        decision,
    )
