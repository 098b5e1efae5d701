"""Reranking in the form of text-embeddings-inference.

The query is the prompt and the texts are the candidates: what comes back is how probable each text
is as the query's continuation, after correction.
"""

from typing import Any

from fastapi import Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field
from scipy.special import log_softmax

import lastword
from lastword.service.call import ThisCall
from lastword.service.correction import by_score
from lastword.service.dialect import MODEL, Dialect, Route
from lastword.service.probes import healthz, readyz
from lastword.service.refusal import Refusal
from lastword.service.schema import Text
from lastword.text.items import Item

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

    query: Text = Field(description="The prompt.")
    texts: list[Text] = Field(min_length=1, fail_fast=True, description="The candidates.")
    raw_scores: bool = Field(False, description="The probabilities' logarithms, in nats.")
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
    """Rank texts for a query, in the form of text-embeddings-inference."""
    decision, _ = await call.answer(Item(body.query, tuple(body.texts)))
    logs = log_softmax(decision["scores"]).tolist()
    scores = logs if body.raw_scores else decision["probabilities"]
    ranks = [{"index": i, "score": scores[i]} for i in by_score(decision["scores"])]
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
            "max_client_batch_size": settings.candidates,
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
        Route("GET", "/info", info),
        Route("GET", "/health", health, codes=("draining",), probe=True),
    ),
    _form,
    TeiProblem,
)
