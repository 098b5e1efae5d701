"""OpenAI's routes where the answer is one of a list: the corrected choice, with its reasons."""

import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, cast

from fastapi import Response
from fastapi.responses import JSONResponse, StreamingResponse
from pydantic import BaseModel, Field
from scipy.special import log_softmax

import lastword
from lastword.decisions import ChoiceAnswer
from lastword.errors import InputError
from lastword.files.strict_json import to_json
from lastword.service.call import ThisCall
from lastword.service.deciding import answer, refused
from lastword.service.dialect import MODEL, Dialect, Route
from lastword.service.dialects.google import GOOGLE
from lastword.service.dialects.openai.bodies import (
    ChatBody,
    CompletionBody,
    CompletionOptions,
)
from lastword.service.dialects.openai.decisions import DecisionsAnswer, decisions
from lastword.service.refusal import Code, Refusal
from lastword.text.items import Item

EVENTS = "text/event-stream"
_ONLY = "choice"  # the one question of a chat
_REFUSED = "the certificate leaves this one to a person"
_NEVER = -9999.0  # the logarithm of a probability of 0, as OpenAI tells it
_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
}


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
        text: The choice as the client gets it.
        logs: The logarithm of each choice's probability, by its text.
        usage: Tokens of the prompt and of the choice.
        alternatives: How many choices' log-probabilities are told; None for none.
        told: The decision in JSON.
        refused: Whether it is told as a refusal.
        created: When, in seconds since the epoch.
    """

    request: str
    model: str
    text: str
    logs: Mapping[str, float]
    usage: dict[str, int]
    alternatives: int | None
    told: Mapping[str, Any]
    refused: bool = False
    created: int = field(default_factory=lambda: int(time.time()))

    def best(self) -> list[tuple[str, float]]:
        """Choices with the logarithm of their probability, the most probable first."""
        return sorted(self.logs.items(), key=lambda pair: -pair[1])


class ChatForm:
    """How a choice is written as a message."""

    prefix, whole, piece = "chatcmpl", "chat.completion", "chat.completion.chunk"

    @staticmethod
    def content(choice: Chosen) -> dict[str, Any]:
        """The choice, whole."""
        message = {"role": "assistant", "content": None, "refusal": None} | ChatForm.said(choice)
        return {"message": message, "logprobs": ChatForm.logprobs(choice)}

    @staticmethod
    def pieces(choice: Chosen) -> list[dict[str, Any]]:
        """The choice in the pieces of a stream."""
        begin = {"delta": {"role": "assistant", "content": ""}, "logprobs": None}
        text = {"delta": ChatForm.said(choice), "logprobs": ChatForm.logprobs(choice)}
        return [begin, text, {"delta": {}, "logprobs": None}]

    @staticmethod
    def said(choice: Chosen) -> dict[str, str]:
        """The choice, or the refusal in its place."""
        return {"refusal": _REFUSED} if choice.refused else {"content": choice.text}

    @staticmethod
    def logprobs(choice: Chosen) -> dict[str, Any] | None:
        """The choice as one token among its alternatives."""
        if choice.alternatives is None or choice.refused or choice.text not in choice.logs:
            return None
        entries = [
            {"token": text, "logprob": value, "bytes": list(text.encode())}
            for text, value in choice.best()
        ]
        (own,) = (dict(e) for e in entries if e["token"] == choice.text)
        return {
            "content": [own | {"top_logprobs": entries[: choice.alternatives]}],
            "refusal": None,
        }


class CompletionForm:
    """How a choice is written as a continuation."""

    prefix, whole, piece = "cmpl", "text_completion", "text_completion"

    @staticmethod
    def content(choice: Chosen) -> dict[str, Any]:
        """The choice, whole."""
        return {"text": choice.text, "logprobs": CompletionForm.logprobs(choice)}

    @staticmethod
    def pieces(choice: Chosen) -> list[dict[str, Any]]:
        """The choice in the pieces of a stream."""
        return [CompletionForm.content(choice), {"text": "", "logprobs": None}]

    @staticmethod
    def logprobs(choice: Chosen) -> dict[str, Any] | None:
        """The choice as one token among its alternatives."""
        if choice.alternatives is None:
            return None
        best = choice.best()
        return {
            "tokens": [choice.text],
            "token_logprobs": [choice.logs[choice.text]],
            "top_logprobs": [dict(best[: choice.alternatives])],
            "text_offset": [0],
        }


Form = type[ChatForm] | type[CompletionForm]


def whole(choice: Chosen, form: Form) -> dict[str, Any]:
    """The answer at once."""
    only = {"index": 0, "finish_reason": "stop"} | form.content(choice)
    frame = _frame(choice, form.prefix, form.whole)
    return frame | {"choices": [only], "usage": choice.usage, "lastword": choice.told}


def events(choice: Chosen, form: Form, *, usage: bool) -> Iterator[str]:
    """The answer as server-sent events; the last piece has the decision.

    Args:
        choice: The choice.
        form: How it is written.
        usage: Whether tokens are counted at the end.
    """
    frame, pieces = _frame(choice, form.prefix, form.piece), form.pieces(choice)
    for place, piece in enumerate(pieces, start=1):
        ends = place == len(pieces)
        only = {"index": 0, "finish_reason": "stop" if ends else None} | piece
        yield _event(frame | {"choices": [only]} | ({"lastword": choice.told} if ends else {}))
    if usage:
        yield _event(frame | {"choices": [], "usage": choice.usage})
    yield "data: [DONE]\n\n"


def _frame(choice: Chosen, prefix: str, kind: str) -> dict[str, Any]:
    return {
        "id": f"{prefix}-{choice.request}",
        "object": kind,
        "created": choice.created,
        "model": choice.model,
        "system_fingerprint": f"lastword-{lastword.__version__}",
    }


def _event(value: dict[str, Any]) -> str:
    return f"data: {to_json(value)}\n\n"


# Routes


async def models(call: ThisCall) -> Response:
    """The model that is served, in OpenAI's form and in TypeSafe's."""
    begin, name = call.service.begin, call.corrector.name
    own = {"id": name, "object": "model", "created": begin, "owned_by": "lastword"}
    tracer = call.corrector.tracer
    told = {
        "name": name,
        "description": f"Decisions by {tracer.decider}, by lastword {lastword.__version__}",
        "release_date": time.strftime("%Y-%m-%d", time.gmtime(begin)),
        "correction": tracer.decider,
        "certificate": None if tracer.certificate is None else tracer.certificate.describe(),
        "flips": None if call.service.flips is None else asdict(call.service.flips),
    }
    return JSONResponse({"object": "list", "data": [own], "models": [told]})


async def chat_completions(body: ChatBody, call: ThisCall) -> Response:
    """Answer a choice about the user's text, in the form of OpenAI's chat.

    The system's messages are the instructions of the question, the others the text that it is
    about: the same question, and the same answer, as in `/v1/decisions`.
    """
    call.corrector.require_model(body.model)
    choices = body.choices
    try:
        made = await answer(call, body.input, lambda: {_ONLY: choices.question(body.said)})
    except InputError as error:
        raise refused(error) from error
    own = cast(ChoiceAnswer, made.answers[_ONLY])
    index = None if own.choice is None else own.values.index(own.choice)
    logs = [math.log(p) if p > 0 else _NEVER for p in own.probabilities.tolist()]
    chosen = Chosen(
        call.id,
        call.corrector.name,
        choices.written(index),
        dict(zip(choices.texts, logs, strict=True)),
        _usage(made.input_tokens, made.output_tokens),
        body.alternatives,
        own.to_dict() | made.reasons[_ONLY],
        refused=own.deferred and body.on_deferred == "refusal",
    )
    return _response(chosen, body, ChatForm)


async def completions(body: CompletionBody, call: ThisCall) -> Response:
    """Choose the continuation of a text from a list, in OpenAI's form."""
    call.corrector.require_model(body.model)
    choices = body.choices
    decision, encoded = await call.answer(Item(body.prompt, choices.candidates))
    index = decision["index"]
    chosen = Chosen(
        call.id,
        call.corrector.name,
        choices.written(index),
        dict(zip(choices.texts, log_softmax(decision["scores"]).tolist(), strict=True)),
        _usage(encoded.prompt_tokens, encoded.candidate_tokens[index]),
        body.alternatives,
        decision,
    )
    return _response(chosen, body, CompletionForm)


def _usage(prompt: int, chosen: int) -> dict[str, int]:
    total = prompt + chosen
    return {"prompt_tokens": prompt, "completion_tokens": chosen, "total_tokens": total}


def _response(chosen: Chosen, body: CompletionOptions, form: Form) -> Response:
    """The answer is there before anything is sent: a stream too is refused with its status."""
    if not body.stream:
        return JSONResponse(whole(chosen, form))
    usage = body.stream_options is not None and bool(body.stream_options.include_usage)
    return StreamingResponse(events(chosen, form, usage=usage), media_type=EVENTS)


def _form(refusal: Refusal) -> dict[str, Any]:
    bad = "server_error" if refusal.status >= 500 else "invalid_request_error"
    kind = _TYPES.get(refusal.status, bad)
    problem = {"message": str(refusal), "type": kind, "param": None, "code": refusal.code}
    return {"error": problem}


_CODES: tuple[Code, ...] = (*MODEL, "unknown_model", "no_choices")
_RESPONSES: dict[int | str, dict[str, Any]] = {
    200: {"content": {EVENTS: {"schema": {"type": "string"}}}},
    # FastAPI would add a 422 of its own otherwise, which is never said here.
    "4XX": {"model": OpenAIError, "description": "any other refusal"},
}

OPENAI = Dialect(
    (
        Route("GET", "/v1/models", models),
        Route(
            "POST",
            "/v1/chat/completions",
            chat_completions,
            ChosenAnswer,
            _CODES,
            responses=_RESPONSES,
        ),
        Route("POST", "/v1/completions", completions, ChosenAnswer, _CODES, responses=_RESPONSES),
        Route("POST", "/v1/decisions", decisions, DecisionsAnswer, _CODES),
    ),
    _form,
    OpenAIError,
    {422: 400},  # a bad body, as its clients know it
    {b"x-goog-api-key": GOOGLE},
)
