"""OpenAI's routes: the answer is a choice from a list, with its reasons."""

import math
import time
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from fastapi import Response

from lastword.decide.answer import answered_by, several
from lastword.files.strict_json import to_json
from lastword.service.call import Call, ThisCall, plain_answer
from lastword.service.dialect import Dialect, routes
from lastword.service.dialects.google import GOOGLE
from lastword.service.dialects.openai.bodies import ChatBody
from lastword.service.dialects.openai.choices import Choices
from lastword.service.dialects.openai.decisions import decisions
from lastword.service.questions import Usage, answer
from lastword.service.refusal import Refusal
from lastword.text.question import Choice, Multi, Question, question_to
from lastword.trust.groups import normal
from lastword.version import __version__

EVENTS = "text/event-stream"
_NAME = "choice"  # of a chat's question
_REFUSED = "the certificate leaves this one to a person"
_LOG_ZERO = -9999.0  # OpenAI's log-probability of a probability of 0
_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
}
_STREAM: dict[int | str, dict[str, Any]] = {
    200: {"content": {EVENTS: {"schema": {"type": "string"}}}}
}
Logs = Mapping[str, float]  # log-probabilities by the options' texts
router = routes()
router.post("/v1/decisions")(decisions)


def _logprobs(text: str, logs: Logs, alternatives: int | None) -> dict[str, Any] | None:
    """Return the log-probabilities of a choice, which counts as one token."""
    if alternatives is None or text not in logs:
        return None
    best = sorted(logs, key=lambda token: -logs[token])[:alternatives]
    top = [_token(token, logs) for token in best]
    return {"content": [_token(text, logs) | {"top_logprobs": top}], "refusal": None}


def _token(text: str, logs: Logs) -> dict[str, Any]:
    return {"token": text, "logprob": logs[text], "bytes": [*text.encode()]}


def _events(answer: dict[str, Any], *, with_usage: bool) -> Response:
    """Return a whole answer as server-sent events, for clients that always stream."""
    answer |= {"object": "chat.completion.chunk"}
    usage, (choice,) = answer.pop("usage"), answer["choices"]
    choice["delta"] = choice.pop("message")
    last = answer | {"choices": [choice | {"delta": {}, "logprobs": None}]}
    events = [answer | {"choices": [choice | {"finish_reason": None}]}, last]
    events += [answer | {"choices": [], "usage": usage}] if with_usage else []
    texts = [f"data: {to_json(event)}\n\n" for event in events]
    return Response("".join([*texts, "data: [DONE]\n\n"]), media_type=EVENTS)


# Routes


@router.get("/v1/models")
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


@router.post("/v1/chat/completions", responses=_STREAM)
async def chat_completions(body: ChatBody, call: ThisCall) -> Response:
    """Answer a choice about the user's text, in the form of OpenAI's chat.

    The system's messages are the question's instructions, and the other messages its input. The
    answer is the same as in `/v1/decisions`.
    """
    served = call.service.decider.served
    served_name = call.service.require_model(body.model) or body.question
    most = call.service.settings.candidates
    choices = None
    if served_name is None or body.has_choices:  # in a thread: a schema may take long to apply
        choices = await call.service.read(0, partial(body.choices, most))

    def make() -> dict[str, Question]:
        if choices is None:
            assert served_name is not None
            return {_NAME: served.get(served_name, Choice, "\n".join(body.instructions))}
        question: Question = choices.question(body.instructions)
        if served_name is not None:
            instructions, options = question.instructions, question.options
            question = served.get(served_name, type(question), instructions, options)
            if choices.nullable and isinstance(question, Choice):
                question = replace(question, abstain=True)
        return {_NAME: question}

    answered = await answer(call, body.input, make)
    if choices is None:
        choices = Choices(answered.answers[_NAME].values)
    if choices.several:  # one predicate per option; an array has no log-probabilities
        question = choices.question(body.instructions)
        assert isinstance(question, Multi)
        chosen = several(question, [*answered.answers.values()])
        reasons = chosen.to_dict()
        if "warnings" in (first := next(iter(answered.reasons.values()))):
            reasons["warnings"] = first["warnings"]
        text = choices.array(chosen.choices)
        return _response(call, body, text, {}, answered.usage, reasons)
    chosen = answered.answers[_NAME]
    if served_name is not None:
        choices = choices.in_order(chosen.values, normal)
    index = None if chosen.choice is None else chosen.values.index(chosen.choice)
    shares = chosen.probabilities.tolist()
    logs = [math.log(share) if share > 0 else _LOG_ZERO for share in shares]
    by_text = dict(zip(choices.texts, logs, strict=True))
    reasons = chosen.to_dict() | answered.reasons[_NAME]
    return _response(call, body, choices.written(index), by_text, answered.usage, reasons)


def _response(
    call: Call, body: ChatBody, text: str, logs: Logs, usage: Usage, reasons: dict[str, Any]
) -> Response:
    message: dict[str, Any] = {"role": "assistant", "content": text, "refusal": None}
    is_refusal = reasons["deferred"] and body.on_deferred == "refusal"
    if is_refusal:
        message |= {"content": None, "refusal": _REFUSED}
    choice = {
        "index": 0,
        "finish_reason": "stop",
        "message": message,
        "logprobs": None if is_refusal else _logprobs(text, logs, body.alternatives),
    }
    whole = {
        "id": f"chatcmpl-{call.id}",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": call.service.name,
        "system_fingerprint": f"lastword-{__version__}",
        "choices": [choice],
        "usage": {
            "prompt_tokens": usage.input,
            "completion_tokens": usage.output,
            "total_tokens": usage.input + usage.output,
        },
        "lastword": reasons,
    }
    if body.stream:
        options = body.stream_options
        return _events(whole, with_usage=bool(options and options.include_usage))
    return plain_answer(whole)


def _form(refusal: Refusal) -> dict[str, Any]:
    bad = "server_error" if refusal.status >= 500 else "invalid_request_error"
    kind = _TYPES.get(refusal.status, bad)
    problem = {"message": str(refusal), "type": kind, "param": None, "code": refusal.code}
    return {"error": problem}


OPENAI = Dialect(
    router,
    _form,
    {422: 400},  # a bad body, as its clients know it
    {b"x-goog-api-key": GOOGLE},
)
