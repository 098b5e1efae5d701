"""OpenAI's routes where the answer is one of a list: the corrected choice, with its reasons."""

import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from fastapi import Response
from fastapi.responses import JSONResponse, StreamingResponse
from pydantic import BaseModel, Field
from scipy.special import log_softmax

import lastword
from lastword.files.strict_json import to_json
from lastword.service.call import Call, ThisCall
from lastword.service.correction import by_score
from lastword.service.dialect import MODEL, Dialect, Route
from lastword.service.dialects.google import GOOGLE
from lastword.service.dialects.openai.bodies import ChatBody, CompletionBody
from lastword.service.dialects.openai.choices import Choices
from lastword.service.dialects.openai.decisions import DecisionsAnswer, decisions
from lastword.service.refusal import Code, Refusal
from lastword.text.tokens import Encoded

EVENTS = "text/event-stream"
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
class Choice:
    """A choice that has been made, to be written in either form.

    Attributes:
        request: The request's name.
        model: The model's name.
        choices: What it was chosen from.
        decision: The decision in JSON.
        encoded: The item as tokens.
        alternatives: How many choices' log-probabilities are told; None for none.
        created: When, in seconds since the epoch.
    """

    request: str
    model: str
    choices: Choices
    decision: Mapping[str, Any]
    encoded: Encoded
    alternatives: int | None
    created: int

    @property
    def text(self) -> str:
        """The choice as the client gets it."""
        return self.choices.written(self.decision["index"])

    @property
    def usage(self) -> dict[str, int]:
        """Tokens of the prompt and of the choice."""
        prompt = self.encoded.prompt_tokens
        tokens = self.encoded.candidate_tokens[self.decision["index"]]
        total = {"total_tokens": prompt + tokens}
        return {"prompt_tokens": prompt, "completion_tokens": tokens} | total

    def best(self) -> list[tuple[str, float]]:
        """Choices with the logarithm of their corrected probability, the most probable first."""
        logs, scores = log_softmax(self.decision["scores"]), self.decision["scores"]
        return [(self.choices.written(i), float(logs[i])) for i in by_score(scores)]


class ChatForm:
    """How a choice is written as a message."""

    prefix, whole, piece = "chatcmpl", "chat.completion", "chat.completion.chunk"

    @staticmethod
    def content(choice: Choice) -> dict[str, Any]:
        """The choice, whole."""
        message = {"role": "assistant", "content": choice.text, "refusal": None}
        return {"message": message, "logprobs": ChatForm.logprobs(choice)}

    @staticmethod
    def pieces(choice: Choice) -> list[dict[str, Any]]:
        """The choice in the pieces of a stream."""
        begin = {"delta": {"role": "assistant", "content": ""}, "logprobs": None}
        text = {"delta": {"content": choice.text}, "logprobs": ChatForm.logprobs(choice)}
        return [begin, text, {"delta": {}, "logprobs": None}]

    @staticmethod
    def logprobs(choice: Choice) -> dict[str, Any] | None:
        """The choice as one token among its alternatives."""
        if choice.alternatives is None:
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
    def content(choice: Choice) -> dict[str, Any]:
        """The choice, whole."""
        return {"text": choice.text, "logprobs": CompletionForm.logprobs(choice)}

    @staticmethod
    def pieces(choice: Choice) -> list[dict[str, Any]]:
        """The choice in the pieces of a stream."""
        return [CompletionForm.content(choice), {"text": "", "logprobs": None}]

    @staticmethod
    def logprobs(choice: Choice) -> dict[str, Any] | None:
        """The choice as one token among its alternatives."""
        if choice.alternatives is None:
            return None
        best = choice.best()
        return {
            "tokens": [choice.text],
            "token_logprobs": [dict(best)[choice.text]],
            "top_logprobs": [dict(best[: choice.alternatives])],
            "text_offset": [0],
        }


Form = type[ChatForm] | type[CompletionForm]


def whole(choice: Choice, form: Form) -> dict[str, Any]:
    """The answer at once."""
    only = {"index": 0, "finish_reason": "stop"} | form.content(choice)
    frame = _frame(choice, form.prefix, form.whole)
    return frame | {"choices": [only], "usage": choice.usage, "lastword": choice.decision}


def events(choice: Choice, form: Form, *, usage: bool) -> Iterator[str]:
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
        yield _event(frame | {"choices": [only]} | ({"lastword": choice.decision} if ends else {}))
    if usage:
        yield _event(frame | {"choices": [], "usage": choice.usage})
    yield "data: [DONE]\n\n"


def _frame(choice: Choice, prefix: str, kind: str) -> dict[str, Any]:
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
    """Choose the next message of a conversation from a list, in OpenAI's form."""
    return await _complete(body, call, ChatForm)


async def completions(body: CompletionBody, call: ThisCall) -> Response:
    """Choose the continuation of a text from a list, in OpenAI's form."""
    return await _complete(body, call, CompletionForm)


async def _complete(body: ChatBody | CompletionBody, call: Call, form: Form) -> Response:
    """The answer is there before anything is sent: a stream too is refused with its status."""
    name = call.corrector.name
    call.corrector.require_model(body.model)
    choices = body.choices
    decision, encoded = await call.answer(body.item(choices.candidates))
    created = int(time.time())
    choice = Choice(call.id, name, choices, decision, encoded, body.alternatives, created)
    if not body.stream:
        return JSONResponse(whole(choice, form))
    usage = body.stream_options is not None and bool(body.stream_options.include_usage)
    return StreamingResponse(events(choice, form, usage=usage), media_type=EVENTS)


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
