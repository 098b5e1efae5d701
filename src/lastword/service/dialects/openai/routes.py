"""OpenAI's routes: the answer is a choice from a list, with its reasons."""

import math
import time
from collections.abc import Iterator, Mapping
from typing import Any, Literal, cast

from fastapi import Response
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, Field
from scipy.special import log_softmax

from lastword.decide.answer import ChoiceAnswer, MultiAnswer, PredicateAnswer, answered_by
from lastword.files.strict_json import to_json
from lastword.service.call import Call, ThisCall, plain_answer
from lastword.service.dialect import Dialect, Route
from lastword.service.dialects.google import GOOGLE
from lastword.service.dialects.openai.bodies import ChatBody, CompletionBody, CompletionOptions
from lastword.service.dialects.openai.choices import Choices
from lastword.service.dialects.openai.decisions import DecisionsAnswer, decisions
from lastword.service.questions import answer
from lastword.service.refusal import Refusal
from lastword.text.items import Item
from lastword.text.question import Choice, Question, question_to
from lastword.version import __version__

EVENTS = "text/event-stream"
_NAME = "choice"  # of a chat's question
# The prefix of ids, the object of a whole answer, and that of a piece of a stream.
_CHAT = ("chatcmpl", "chat.completion", "chat.completion.chunk")
_TEXT = ("cmpl", "text_completion", "text_completion")
_REFUSED = "the certificate leaves this one to a person"
_LOG_ZERO = -9999.0  # OpenAI's log-probability of a probability of 0
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
    """A completion that is a choice, with its decision."""

    id: str
    object: Literal["chat.completion", "text_completion"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[dict[str, Any]]
    usage: Usage
    lastword: dict[str, Any] = Field(description="The decision, as in `/v1/correct`.")


Pieces = list[dict[str, Any]]
Logs = Mapping[str, float]  # log-probabilities by the options' texts


def chat_form(
    text: str, logs: Logs, alternatives: int | None, *, is_refusal: bool
) -> tuple[dict[str, Any], Pieces]:
    """Return a choice as a message, and as the pieces of a stream.

    For log-probabilities, the choice counts as one token.
    """
    content = {"refusal": _REFUSED} if is_refusal else {"content": text}
    logprobs = None
    if alternatives is not None and not is_refusal and text in logs:
        best = [_token(token, logs) for token in _best(logs)[:alternatives]]
        logprobs = {"content": [_token(text, logs) | {"top_logprobs": best}], "refusal": None}
    message = {"role": "assistant", "content": None, "refusal": None} | content
    begin: dict[str, Any] = {"delta": {"role": "assistant", "content": ""}, "logprobs": None}
    pieces = [begin, {"delta": content, "logprobs": logprobs}, {"delta": {}, "logprobs": None}]
    return {"message": message, "logprobs": logprobs}, pieces


def completion_form(
    text: str, logs: Logs, alternatives: int | None
) -> tuple[dict[str, Any], Pieces]:
    """Return a choice as a continuation, and as the pieces of a stream."""
    logprobs = None
    if alternatives is not None:
        logprobs = {
            "tokens": [text],
            "token_logprobs": [logs[text]],
            "top_logprobs": [{token: logs[token] for token in _best(logs)[:alternatives]}],
            "text_offset": [0],
        }
    content = {"text": text, "logprobs": logprobs}
    return content, [content, {"text": "", "logprobs": None}]


def _token(text: str, logs: Logs) -> dict[str, Any]:
    return {"token": text, "logprob": logs[text], "bytes": [*text.encode()]}


def _best(logs: Logs) -> list[str]:
    return sorted(logs, key=lambda text: -logs[text])


def _events(frame: Mapping[str, Any], pieces: Pieces, reasons: Any, usage: Any) -> Iterator[str]:
    """Yield server-sent events; the last piece has the decision."""
    for place, piece in enumerate(pieces, start=1):
        ends = place == len(pieces)
        only = {"index": 0, "finish_reason": "stop" if ends else None} | piece
        yield _event({**frame, "choices": [only]} | ({"lastword": reasons} if ends else {}))
    if usage is not None:
        yield _event({**frame, "choices": [], "usage": usage})
    yield "data: [DONE]\n\n"


def _event(value: dict[str, Any]) -> str:
    return f"data: {to_json(value)}\n\n"


# Routes


async def models(call: ThisCall) -> Response:
    """List the served model, in OpenAI's form and in TypeSafe's."""
    begin, name = call.service.begin, call.service.name
    entry = {"id": name, "object": "model", "created": begin, "owned_by": "lastword"}
    decider = call.service.decider
    method = answered_by(decider.method)
    questions = {
        question: question_to(served) | {"method": method if probe is None else probe.name}
        for question, served in decider.served.questions.items()
        for probe in [decider.probe_of(served)]
    }
    described = {
        "name": name,
        "description": f"Decisions by {method}, by lastword {__version__}",
        "release_date": time.strftime("%Y-%m-%d", time.gmtime(begin)),
        "correction": method,
        "questions": questions,
        "certificate": None if decider.certificate is None else decider.certificate.describe(),
    }
    return plain_answer({"object": "list", "data": [entry], "models": [described]})


async def chat_completions(body: ChatBody, call: ThisCall) -> Response:
    """Answer a choice about the user's text, in the form of OpenAI's chat.

    The system's messages are the question's instructions, and the other messages its input. The
    answer is the same as in `/v1/decisions`.
    """
    served = call.service.decider.served
    served_name = call.service.require_model(body.model) or body.question
    most = call.service.settings.candidates
    choices = body.choices(most) if served_name is None or body.has_choices else None

    def make() -> dict[str, Question]:
        if choices is None:
            assert served_name is not None
            return {_NAME: served.get(served_name, Choice, "\n".join(body.instructions))}
        question: Question = choices.question(body.instructions)
        if served_name is not None:
            instructions, options = question.instructions, question.options
            question = served.get(served_name, type(question), instructions, options)
        return {_NAME: question}

    answered = await answer(call, body.input, make)
    if choices is None:
        choices = Choices(cast(ChoiceAnswer, answered.answers[_NAME]).values)
    usage = _usage(answered.input_tokens, answered.output_tokens)
    refuses = body.on_deferred == "refusal"
    if choices.several:  # one predicate per option; an array has no log-probabilities
        predicates = cast(tuple[PredicateAnswer, ...], tuple(answered.answers.values()))
        several = MultiAnswer(values=choices.options, predicates=predicates)
        reasons = several.to_dict()
        if "warnings" in (first := next(iter(answered.reasons.values()))):
            reasons["warnings"] = first["warnings"]
        text = choices.array(several.choices)
        form = chat_form(text, {}, None, is_refusal=several.deferred and refuses)
        return _response(call, body, _CHAT, form, usage, reasons)
    chosen = cast(ChoiceAnswer, answered.answers[_NAME])
    if served_name is not None:
        choices = choices.in_order(chosen.values, served.normalised)
    index = None if chosen.choice is None else chosen.values.index(chosen.choice)
    logs = [math.log(p) if p > 0 else _LOG_ZERO for p in chosen.probabilities.tolist()]
    form = chat_form(
        choices.written(index),
        dict(zip(choices.texts, logs, strict=True)),
        body.alternatives,
        is_refusal=chosen.deferred and refuses,
    )
    reasons = chosen.to_dict() | answered.reasons[_NAME]
    return _response(call, body, _CHAT, form, usage, reasons)


async def completions(body: CompletionBody, call: ThisCall) -> Response:
    """Choose the continuation of a text from a list, in OpenAI's form.

    The model's choice is returned, unless the service has a correction or a certificate.
    """
    if call.service.require_model(body.model) is not None:
        raise Refusal(
            "no_choices", "a served question is asked in chat: send it to /v1/chat/completions"
        )
    choices = body.choices(call.service.settings.candidates)
    if choices.several:
        raise Refusal(
            "no_choices", "several options can apply only in chat: send it to /v1/chat/completions"
        )
    item = Item(body.prompt, choices.candidates)
    decision, encoded = await call.answer(item, correct=False)
    index = decision["index"]
    logs = dict(zip(choices.texts, log_softmax(decision["scores"]).tolist(), strict=True))
    form = completion_form(choices.written(index), logs, body.alternatives)
    usage = _usage(encoded.prompt.prompt_tokens, encoded.prompt.candidate_tokens[index])
    return _response(call, body, _TEXT, form, usage, decision)


def _usage(prompt: int, chosen: int) -> dict[str, int]:
    total = prompt + chosen
    return {"prompt_tokens": prompt, "completion_tokens": chosen, "total_tokens": total}


def _response(
    call: Call,
    body: CompletionOptions,
    names: tuple[str, str, str],
    form: tuple[dict[str, Any], Pieces],
    usage: dict[str, int],
    reasons: Mapping[str, Any],
) -> Response:
    (prefix, whole, piece), (content, pieces) = names, form
    frame = {
        "id": f"{prefix}-{call.id}",
        "object": piece if body.stream else whole,
        "created": int(time.time()),
        "model": call.service.name,
        "system_fingerprint": f"lastword-{__version__}",
    }
    if body.stream:
        counts = body.stream_options is not None and body.stream_options.include_usage
        events = _events(frame, pieces, reasons, usage if counts else None)
        return StreamingResponse(events, media_type=EVENTS)
    only = {"index": 0, "finish_reason": "stop"} | content
    return plain_answer(frame | {"choices": [only], "usage": usage, "lastword": reasons})


def _form(refusal: Refusal) -> dict[str, Any]:
    bad = "server_error" if refusal.status >= 500 else "invalid_request_error"
    kind = _TYPES.get(refusal.status, bad)
    problem = {"message": str(refusal), "type": kind, "param": None, "code": refusal.code}
    return {"error": problem}


_STREAM = {"content": {EVENTS: {"schema": {"type": "string"}}}}

OPENAI = Dialect(
    (
        Route("GET", "/v1/models", models),
        Route("POST", "/v1/chat/completions", chat_completions, ChosenAnswer, described=_STREAM),
        Route("POST", "/v1/completions", completions, ChosenAnswer, described=_STREAM),
        Route("POST", "/v1/decisions", decisions, DecisionsAnswer),
    ),
    _form,
    {422: 400},  # a bad body, as its clients know it
    {b"x-goog-api-key": GOOGLE},
)
