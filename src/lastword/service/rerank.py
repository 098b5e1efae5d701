"""Reranking in the forms that retrieval clients speak: TEI's, and Cohere's, which Jina shares.

The query is the prompt and the documents are the candidates: what comes back is how probable each
document is as the query's continuation, after correction.
"""

from collections.abc import Sequence
from typing import Annotated, Any

from fastapi import Depends, FastAPI, Request, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag
from scipy.special import log_softmax

import lastword
from lastword.service.answers import MODEL, answers, id_of, leaving, takes_json
from lastword.service.correction import Corrector
from lastword.service.schema import Text, Unread
from lastword.text.items import Item

_QUERY: dict[str, Any] = {"query": "Where is the lake of Oru?"}
_TEXTS = ["in the north", "in the south", "in the hills"]


class TeiBody(BaseModel):
    """A query and its texts, as text-embeddings-inference takes them."""

    model_config = ConfigDict(
        strict=True,
        extra="forbid",
        json_schema_extra={"examples": [_QUERY | {"texts": _TEXTS}]},
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
        strict=True,
        extra="forbid",
        json_schema_extra={"examples": [_QUERY | {"documents": _TEXTS, "top_n": 2}]},
    )

    model: Text | None = Field(None, description="The model's name here, or none.")
    query: Text = Field(description="The prompt.")
    documents: list[Document] = Field(min_length=1, fail_fast=True, description="The candidates.")
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
    relevance_score: float = Field(description="Its corrected probability among the documents.")
    document: DocumentBody | None = Field(None, description="With `return_documents`.")


class CohereAnswer(BaseModel):
    """The documents by score, and the decision that gave it."""

    id: str
    model: str
    results: list[CohereResult]
    meta: dict[str, Any]
    usage: dict[str, int]
    lastword: dict[str, Any] = Field(description="The decision, as `/v1/correct` tells it.")


class CohereProblem(BaseModel):
    """A refusal in Cohere's form."""

    message: str
    code: str


def add_rerank(app: FastAPI, corrector: Corrector) -> None:
    """Add the routes.

    Args:
        app: Where to.
        corrector: Who answers.
    """
    _add_tei(app, corrector)
    for version in ("v1", "v2"):
        _add_cohere(app, corrector, version)


def _add_tei(app: FastAPI, corrector: Corrector) -> None:
    @app.post(
        "/rerank",
        dependencies=[Depends(takes_json)],
        responses=answers(list[Rank], *MODEL, error=TeiProblem),
        operation_id="rerank",
    )
    async def rerank(body: TeiBody, request: Request) -> Response:
        """Rank texts for a query, in the form of text-embeddings-inference."""
        item = Item(body.query, tuple(body.texts))
        told, _ = await corrector.answer(item, id_of(request), leaving(request))
        logs = log_softmax(told["scores"]).tolist()
        scores = logs if body.raw_scores else told["probabilities"]
        ranks = [{"index": i, "score": scores[i]} for i in by_score(told["scores"])]
        if body.return_text:
            ranks = [rank | {"text": body.texts[rank["index"]]} for rank in ranks]
        return JSONResponse(ranks)

    @app.get("/info", responses=answers(None, error=TeiProblem), operation_id="info")
    async def info() -> Response:
        """What is served and what it bears, in the form of text-embeddings-inference."""
        return JSONResponse(describe(corrector))


def _add_cohere(app: FastAPI, corrector: Corrector, version: str) -> None:
    @app.post(
        f"/{version}/rerank",
        dependencies=[Depends(takes_json)],
        responses=answers(CohereAnswer, *MODEL, "unknown_model", error=CohereProblem),
        operation_id=f"rerank_{version}",
    )
    async def rerank(body: CohereBody, request: Request) -> Response:
        """Rank documents for a query, in the form of Cohere and of Jina."""
        corrector.require_model(body.model)
        item = Item(body.query, body.texts)
        told, encoded = await corrector.answer(item, id_of(request), leaving(request))
        tokens = encoded.prompt_tokens + sum(encoded.candidate_tokens)
        return JSONResponse(
            {
                "id": id_of(request),
                "model": corrector.name,
                "results": _results(body, told),
                "meta": {
                    "api_version": {"version": version[1:]},
                    "tokens": {"input_tokens": tokens},
                },
                "usage": {"total_tokens": tokens},
                "lastword": told,
            }
        )


def by_score(scores: Sequence[float]) -> list[int]:
    """Places from the highest score to the lowest; ties as they came."""
    return sorted(range(len(scores)), key=lambda place: -scores[place])


def _results(body: CohereBody, told: dict[str, Any]) -> list[dict[str, Any]]:
    texts, probabilities = body.texts, told["probabilities"]
    results = [
        {"index": i, "relevance_score": probabilities[i]}
        | ({"document": {"text": texts[i]}} if body.return_documents else {})
        for i in by_score(told["scores"])
    ]
    return results[: body.top_n]


def describe(corrector: Corrector) -> dict[str, Any]:
    """What TEI's `/info` says of a reranker; limits are this service's own."""
    settings, tracer = corrector.settings, corrector.tracer
    told = tracer.describe()
    label = {"id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}}
    return {
        "model_id": corrector.name,
        "model_sha": told.get("revision"),
        "model_dtype": told["dtype"],
        "model_type": {"reranker": label},
        "max_concurrent_requests": settings.queue_items,
        "max_input_length": min(told["context"] or settings.tokens, settings.tokens),
        "max_batch_tokens": tracer.batch_tokens,
        "max_batch_requests": settings.batch_items,
        "max_client_batch_size": settings.candidates,
        "auto_truncate": told["overflow"] != "error",
        "tokenization_workers": 1,
        "version": lastword.__version__,
    }
