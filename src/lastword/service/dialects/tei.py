"""Reranking in the form of text-embeddings-inference.

What comes back is how probable it is that each text answers the query; under `/continuation`, how
probable each text is as the query's continuation.
"""

from typing import Any

from fastapi import Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field

import lastword
from lastword.service.call import ThisCall
from lastword.service.deciding import MOST_QUESTIONS
from lastword.service.dialect import MODEL, Dialect, Route
from lastword.service.probes import healthz, readyz
from lastword.service.ranking import Ranking, by_continuation, by_relevance
from lastword.service.refusal import Refusal
from lastword.service.schema import Text

_EXAMPLE: dict[str, Any] = {
    "query": "Where is the lake of Oru?",
    "texts": ["in the north", "in the south", "in the hills"],
}
_TYPES = {422: "Validation", 429: "Overloaded", 503: "Unhealthy"}


class TeiBody(BaseModel):
    """A query and its texts, as text-embeddings-inference takes them."""

    model_config = ConfigDict(
        strict=True, extra="forbid", json_schema_extra={"examples": [_EXAMPLE]}
    )

    query: Text = Field(description="What is looked for.")
    texts: list[Text] = Field(min_length=1, fail_fast=True, description="What may answer it.")
    raw_scores: bool = Field(False, description="Log odds in nats.")
    return_text: bool = Field(False, description="Give each text back.")
    truncate: bool | None = Field(
        None, description="Taken and not needed: what is too long is refused, or cut by --overflow."
    )


class Rank(BaseModel):
    """One text with its score."""

    index: int = Field(description="Its place in the request.")
    score: float
    text: str | None = Field(None, description="With `return_text`.")


class TeiProblem(BaseModel):
    """A refusal in TEI's form."""

    error: str
    error_type: str


async def rerank(body: TeiBody, call: ThisCall) -> Response:
    """Rank texts by whether they answer a query, in the form of text-embeddings-inference."""
    return _ranks(body, await by_relevance(call, body.query, body.texts))


async def rerank_continuation(body: TeiBody, call: ThisCall) -> Response:
    """Rank texts as continuations of a query, in the form of text-embeddings-inference."""
    return _ranks(body, await by_continuation(call, body.query, body.texts))


def _ranks(body: TeiBody, ranking: Ranking) -> Response:
    scores = ranking.raw if body.raw_scores else ranking.probabilities
    ranks: list[dict[str, Any]] = [{"index": i, "score": scores[i]} for i in ranking.order]
    if body.return_text:
        ranks = [rank | {"text": body.texts[rank["index"]]} for rank in ranks]
    return JSONResponse(ranks)


async def info(call: ThisCall) -> Response:
    """What is served and what it bears, in the form of text-embeddings-inference."""
    settings, tracer = call.corrector.settings, call.corrector.tracer
    facts = tracer.describe()
    label = {"id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}}
    return JSONResponse(
        {
            "model_id": call.corrector.name,
            "model_sha": facts.get("revision"),
            "model_dtype": facts["dtype"],
            "model_type": {"reranker": label},
            "max_concurrent_requests": settings.queue_items,
            "max_input_length": min(facts["context"] or settings.tokens, settings.tokens),
            "max_batch_tokens": tracer.batch_tokens,
            "max_batch_requests": settings.batch_items,
            "max_client_batch_size": MOST_QUESTIONS,
            "auto_truncate": facts["overflow"] != "error",
            "tokenization_workers": 1,
            "version": lastword.__version__,
        }
    )


async def health(call: ThisCall) -> Response:
    """Both probes at once, for clients that know this path alone."""
    await healthz(call)
    return await readyz(call)


def _form(refusal: Refusal) -> dict[str, Any]:
    kind = _TYPES.get(refusal.status, "Backend" if refusal.status >= 500 else "Validation")
    return {"error": str(refusal), "error_type": kind}


TEI = Dialect(
    (
        Route("POST", "/rerank", rerank, list[Rank], MODEL),
        Route("POST", "/continuation/rerank", rerank_continuation, list[Rank], MODEL),
        Route("GET", "/info", info),
        Route("GET", "/health", health, codes=("draining",), probe=True),
    ),
    _form,
    TeiProblem,
)
