"""OpenAI's routes: the answer is a choice from a list, with its reasons."""

import time
from dataclasses import replace

from fastapi import Response

from lastword.decide.answer import answered_by, several
from lastword.decide.served import Served
from lastword.files.strict_json import to_json
from lastword.service.call import Call, ThisCall, plain_answer
from lastword.service.dialect import Dialect, routes
from lastword.service.dialects.google import GOOGLE
from lastword.service.dialects.openai.bodies import ChatBody
from lastword.service.dialects.openai.choices import Choices
from lastword.service.dialects.openai.decisions import decisions
from lastword.service.questions import Usage, answer
from lastword.service.refusal import Refusal
from lastword.service.schema import Object
from lastword.text.question import Choice, Multi, Question, question_to
from lastword.version import __version__

EVENTS = "text/event-stream"
_NAME = "choice"  # of a chat's question
_REFUSED = "the certificate leaves this one to a person"
_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
}
_STREAM: dict[int | str, Object] = {200: {"content": {EVENTS: {"schema": {"type": "string"}}}}}
router = routes()
router.post("/v1/decisions")(decisions)


def _events(answer: Object, *, with_usage: bool) -> Response:
    """Return a whole answer as server-sent events, for clients that always stream."""
    answer |= {"object": "chat.completion.chunk"}
    usage, (choice,) = answer.pop("usage"), answer["choices"]
    choice["delta"] = choice.pop("message")
    last = answer | {"choices": [choice | {"delta": {}}]}
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
    """Answer a choice about the user's text; the system's messages are its instructions."""
    call.service.require_model(body.model)
    choices = await call.service.read(0, body.choices)  # in a thread: a schema may be long

    def make(served: Served) -> dict[str, Question]:
        if choices is None:
            assert body.question is not None
            return {_NAME: served.get(body.question, Choice, "\n".join(body.instructions))}
        question: Question = choices.question(body.instructions)
        if body.question is not None:
            kind, options = type(question), question.options
            question = served.get(body.question, kind, question.instructions, options)
            if choices.nullable and isinstance(question, Choice):
                question = replace(question, abstain=True)
        return {_NAME: question}

    replies = await answer(call, body.input, make)
    first, *rest = replies.answers.values()
    reasons = next(iter(replies.reasons.values()))
    if choices is not None and choices.several:  # one predicate per option
        question = choices.question(body.instructions)
        assert isinstance(question, Multi)
        whole = several(question, [first, *rest])
        text, reasons = choices.written(whole.choices), whole.to_dict()
    else:
        form = choices or Choices(first.values)
        text = form.written([] if first.choice is None else [first.choice])
        reasons = first.to_dict() | reasons
    return _response(call, body, text, replies.usage, reasons)


def _response(call: Call, body: ChatBody, text: str, usage: Usage, reasons: Object) -> Response:
    message: Object = {"role": "assistant", "content": text, "refusal": None}
    if reasons["deferred"] and body.on_deferred == "refusal":
        message |= {"content": None, "refusal": _REFUSED}
    choice = {"index": 0, "finish_reason": "stop", "message": message, "logprobs": None}
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


def _form(refusal: Refusal) -> Object:
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
