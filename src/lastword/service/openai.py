"""OpenAI's routes where the answer is one of a list: the corrected choice, with its reasons."""

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from fastapi import Depends, FastAPI, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse
from pydantic import BaseModel, Field
from scipy.special import log_softmax

import lastword
from lastword.files.strict_json import to_json
from lastword.service.answers import MODEL, answers, id_of, leaving, takes_json
from lastword.service.choices import Choices
from lastword.service.completions import ChatBody, CompletionBody
from lastword.service.correction import Corrector
from lastword.service.dialects import OPENAI_STATUS
from lastword.service.rerank import by_score
from lastword.text.tokens import Encoded

EVENTS = "text/event-stream"


class Usage(BaseModel):
    """Tokens of the prompt and of the choice."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class ChosenAnswer(BaseModel):
    """A completion that is a choice, with the decision behind it."""

    id: str
    object: Literal["chat.completion", "text_completion"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[dict[str, Any]]
    usage: Usage
    lastword: dict[str, Any] = Field(description="The decision, as `/v1/correct` tells it.")


class OpenAIProblem(BaseModel):
    """What is wrong, in OpenAI's form."""

    message: str
    type: str
    param: str | None
    code: str


class OpenAIError(BaseModel):
    """A request that was turned down."""

    error: OpenAIProblem


@dataclass(frozen=True)
class Chosen:
    """A choice that has been made, to be written in either form.

    Attributes:
        request: The request's name.
        model: The model's name.
        choices: What it was chosen from.
        told: The decision in JSON.
        encoded: The item as tokens.
        alternatives: How many choices' log-probabilities are told; None for none.
        created: When, in seconds since the epoch.
    """

    request: str
    model: str
    choices: Choices
    told: Mapping[str, Any]
    encoded: Encoded
    alternatives: int | None
    created: int

    @property
    def text(self) -> str:
        """The choice as the client gets it."""
        return self.choices.written(self.told["index"])

    @property
    def usage(self) -> dict[str, int]:
        """Tokens of the prompt and of the choice."""
        prompt = self.encoded.prompt_tokens
        chosen = self.encoded.candidate_tokens[self.told["index"]]
        total = {"total_tokens": prompt + chosen}
        return {"prompt_tokens": prompt, "completion_tokens": chosen} | total

    def best(self) -> list[tuple[str, float]]:
        """Choices with the logarithm of their corrected probability, the most probable first."""
        logs, scores = log_softmax(self.told["scores"]), self.told["scores"]
        return [(self.choices.written(i), float(logs[i])) for i in by_score(scores)]


class ChatForm:
    """How a choice is written as a message."""

    prefix, whole, piece = "chatcmpl", "chat.completion", "chat.completion.chunk"

    @staticmethod
    def said(chosen: Chosen) -> dict[str, Any]:
        """The choice, whole."""
        message = {"role": "assistant", "content": chosen.text, "refusal": None}
        return {"message": message, "logprobs": ChatForm.logprobs(chosen)}

    @staticmethod
    def pieces(chosen: Chosen) -> list[dict[str, Any]]:
        """The choice in the pieces of a stream."""
        begin = {"delta": {"role": "assistant", "content": ""}, "logprobs": None}
        text = {"delta": {"content": chosen.text}, "logprobs": ChatForm.logprobs(chosen)}
        return [begin, text, {"delta": {}, "logprobs": None}]

    @staticmethod
    def logprobs(chosen: Chosen) -> dict[str, Any] | None:
        """The choice as one token among its alternatives."""
        if chosen.alternatives is None:
            return None
        entries = [
            {"token": text, "logprob": value, "bytes": list(text.encode())}
            for text, value in chosen.best()
        ]
        (own,) = (dict(e) for e in entries if e["token"] == chosen.text)
        return {
            "content": [own | {"top_logprobs": entries[: chosen.alternatives]}],
            "refusal": None,
        }


class CompletionForm:
    """How a choice is written as a continuation."""

    prefix, whole, piece = "cmpl", "text_completion", "text_completion"

    @staticmethod
    def said(chosen: Chosen) -> dict[str, Any]:
        """The choice, whole."""
        return {"text": chosen.text, "logprobs": CompletionForm.logprobs(chosen)}

    @staticmethod
    def pieces(chosen: Chosen) -> list[dict[str, Any]]:
        """The choice in the pieces of a stream."""
        return [CompletionForm.said(chosen), {"text": "", "logprobs": None}]

    @staticmethod
    def logprobs(chosen: Chosen) -> dict[str, Any] | None:
        """The choice as one token among its alternatives."""
        if chosen.alternatives is None:
            return None
        best = chosen.best()
        return {
            "tokens": [chosen.text],
            "token_logprobs": [dict(best)[chosen.text]],
            "top_logprobs": [dict(best[: chosen.alternatives])],
            "text_offset": [0],
        }


Form = type[ChatForm] | type[CompletionForm]


def whole(chosen: Chosen, form: Form) -> dict[str, Any]:
    """The answer at once."""
    said = {"index": 0, "finish_reason": "stop"} | form.said(chosen)
    frame = _frame(chosen, form.prefix, form.whole)
    return frame | {"choices": [said], "usage": chosen.usage, "lastword": chosen.told}


def events(chosen: Chosen, form: Form, *, usage: bool) -> Iterator[str]:
    """The answer as server-sent events; the last piece has the decision.

    Args:
        chosen: The choice.
        form: How it is written.
        usage: Whether tokens are counted at the end.
    """
    frame, pieces = _frame(chosen, form.prefix, form.piece), form.pieces(chosen)
    for place, piece in enumerate(pieces, start=1):
        ends = place == len(pieces)
        said = {"index": 0, "finish_reason": "stop" if ends else None} | piece
        yield _event(frame | {"choices": [said]} | ({"lastword": chosen.told} if ends else {}))
    if usage:
        yield _event(frame | {"choices": [], "usage": chosen.usage})
    yield "data: [DONE]\n\n"


def _frame(chosen: Chosen, prefix: str, kind: str) -> dict[str, Any]:
    return {
        "id": f"{prefix}-{chosen.request}",
        "object": kind,
        "created": chosen.created,
        "model": chosen.model,
        "system_fingerprint": f"lastword-{lastword.__version__}",
    }


def _event(value: dict[str, Any]) -> str:
    return f"data: {to_json(value)}\n\n"


# Routes


def add_openai(app: FastAPI, corrector: Corrector) -> None:
    """Add the routes.

    Args:
        app: Where to.
        corrector: Who answers.
    """
    _add_models(app, corrector)
    told = answers(
        ChosenAnswer,
        *MODEL,
        "unknown_model",
        "no_choices",
        error=OpenAIError,
        shift=OPENAI_STATUS,
    )
    # FastAPI would add a 422 of its own otherwise, which is never said here.
    told["4XX"] = {"model": OpenAIError, "description": "any other refusal"}
    told[200]["content"] = {EVENTS: {"schema": {"type": "string"}}}
    shared: dict[str, Any] = {"dependencies": [Depends(takes_json)], "responses": told}

    @app.post("/v1/chat/completions", operation_id="chat_completions", **shared)
    async def chat_completions(body: ChatBody, request: Request) -> Response:
        """Choose the next message of a conversation from a list, in OpenAI's form."""
        return await _complete(corrector, body, request, ChatForm)

    @app.post("/v1/completions", operation_id="completions", **shared)
    async def completions(body: CompletionBody, request: Request) -> Response:
        """Choose the continuation of a text from a list, in OpenAI's form."""
        return await _complete(corrector, body, request, CompletionForm)


def _add_models(app: FastAPI, corrector: Corrector) -> None:
    begun = int(time.time())

    @app.get("/v1/models", responses=answers(None, error=OpenAIError), operation_id="models")
    async def models() -> Response:
        """The model that is served, in OpenAI's form."""
        own = {"id": corrector.name, "object": "model", "created": begun, "owned_by": "lastword"}
        return JSONResponse({"object": "list", "data": [own]})


async def _complete(
    corrector: Corrector, body: ChatBody | CompletionBody, request: Request, form: Form
) -> Response:
    """The answer is there before anything is sent: a stream too is refused with its status."""
    corrector.require_model(body.model)
    choices, name = body.choices, id_of(request)
    item = body.item(choices.candidates)
    told, encoded = await corrector.answer(item, name, leaving(request))
    created = int(time.time())
    chosen = Chosen(name, corrector.name, choices, told, encoded, body.alternatives, created)
    if not body.stream:
        return JSONResponse(whole(chosen, form))
    counted = body.stream_options is not None and bool(body.stream_options.include_usage)
    return StreamingResponse(events(chosen, form, usage=counted), media_type=EVENTS)
