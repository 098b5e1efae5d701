"""Reranking in Cohere's form, which is Jina's too.

What comes back is how probable it is that each document answers the query; under `/continuation`,
how probable each document is as the query's continuation.
"""

from typing import Annotated, Any

from fastapi import Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag

from lastword.service.call import Call, ThisCall
from lastword.service.dialect import MODEL, Dialect, Route
from lastword.service.ranking import Ranker, Ranking, by_continuation, by_relevance
from lastword.service.refusal import Code, Refusal
from lastword.service.schema import Text, Unread

_EXAMPLE: dict[str, Any] = {
    "query": "Where is the lake of Oru?",
    "documents": ["in the north", "in the south", "in the hills"],
    "top_n": 2,
}


class DocumentBody(BaseModel):
    """One document as an object."""

    model_config = ConfigDict(strict=True, extra="forbid")

    text: Text


# Told apart before either is read, so that what is wrong is told of one of them.
Document = Annotated[
    Annotated[Text, Tag("string")] | Annotated[DocumentBody, Tag("object")],
    Discriminator(lambda value: "string" if isinstance(value, str) else "object"),
]


class CohereBody(BaseModel):
    """A query and its documents, as Cohere and Jina take them."""

    model_config = ConfigDict(
        strict=True, extra="forbid", json_schema_extra={"examples": [_EXAMPLE]}
    )

    model: Text | None = Field(None, description="The model's name here, or none.")
    query: Text = Field(description="What is looked for.")
    documents: list[Document] = Field(
        min_length=1, fail_fast=True, description="What may answer it."
    )
    top_n: int | None = Field(None, ge=1, description="Most results; all if not given.")
    return_documents: bool | None = Field(None, description="Give each document back.")
    rank_fields: Unread = None
    max_chunks_per_doc: Unread = None
    max_tokens_per_doc: Unread = None

    @property
    def texts(self) -> tuple[str, ...]:
        """The documents' texts."""
        return tuple(d if isinstance(d, str) else d.text for d in self.documents)


class CohereResult(BaseModel):
    """One document with its score."""

    index: int = Field(description="Its place in the request.")
    relevance_score: float = Field(description="Its probability.")
    document: DocumentBody | None = Field(None, description="With `return_documents`.")


class CohereAnswer(BaseModel):
    """The documents by score, and the decisions that gave it."""

    id: str
    model: str
    results: list[CohereResult]
    meta: dict[str, Any]
    usage: dict[str, int]
    lastword: dict[str, Any] = Field(description="The decisions behind it.")


class CohereProblem(BaseModel):
    """A refusal in Cohere's form."""

    message: str
    code: str


async def _rerank(body: CohereBody, call: Call, rank: Ranker, version: str) -> Response:
    call.corrector.require_model(body.model)
    ranking = await rank(call, body.query, body.texts)
    return JSONResponse(
        {
            "id": call.id,
            "model": call.corrector.name,
            "results": _results(body, ranking),
            "meta": {
                "api_version": {"version": version},
                "tokens": {"input_tokens": ranking.tokens},
            },
            "usage": {"total_tokens": ranking.tokens},
            "lastword": ranking.told,
        }
    )


async def rerank_v1(body: CohereBody, call: ThisCall) -> Response:
    """Rank documents by whether they answer a query, in the form of Cohere and of Jina."""
    return await _rerank(body, call, by_relevance, "1")


async def rerank_v2(body: CohereBody, call: ThisCall) -> Response:
    """Rank documents by whether they answer a query, in the form of Cohere and of Jina."""
    return await _rerank(body, call, by_relevance, "2")


async def continuation_v1(body: CohereBody, call: ThisCall) -> Response:
    """Rank documents as continuations of a query, in the form of Cohere and of Jina."""
    return await _rerank(body, call, by_continuation, "1")


async def continuation_v2(body: CohereBody, call: ThisCall) -> Response:
    """Rank documents as continuations of a query, in the form of Cohere and of Jina."""
    return await _rerank(body, call, by_continuation, "2")


def _results(body: CohereBody, ranking: Ranking) -> list[dict[str, Any]]:
    texts = body.texts
    results = [
        {"index": i, "relevance_score": ranking.probabilities[i]}
        | ({"document": {"text": texts[i]}} if body.return_documents else {})
        for i in ranking.order
    ]
    return results[: body.top_n]


def _form(refusal: Refusal) -> dict[str, Any]:
    return {"message": str(refusal), "code": refusal.code}


_CODES: tuple[Code, ...] = (*MODEL, "unknown_model")
COHERE = Dialect(
    (
        Route("POST", "/v1/rerank", rerank_v1, CohereAnswer, _CODES),
        Route("POST", "/v2/rerank", rerank_v2, CohereAnswer, _CODES),
        Route("POST", "/continuation/v1/rerank", continuation_v1, CohereAnswer, _CODES),
        Route("POST", "/continuation/v2/rerank", continuation_v2, CohereAnswer, _CODES),
    ),
    _form,
    CohereProblem,
)
