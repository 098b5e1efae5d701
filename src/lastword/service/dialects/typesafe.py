"""TypeSafe's System One: nouls, choices and scores about a state, for its unchanged client.

docs/decisions.md has the details that TypeSafe's documents leave open.
"""

import json
from collections.abc import Mapping
from functools import partial
from typing import Any, Literal

from fastapi import Response
from pydantic import BaseModel, Field

from lastword.decide.answer import PredicateAnswer, SingleAnswer
from lastword.decide.item import Input
from lastword.decide.served import Served
from lastword.errors import InputError
from lastword.service.call import ThisCall, plain_answer
from lastword.service.dialect import Dialect, Route
from lastword.service.dialects.criteria import keyed, served_or_new
from lastword.service.questions import ask
from lastword.service.refusal import Refusal
from lastword.service.schema import Text
from lastword.text.question import Choice, Option, Predicate, Question, Score, Single

ALIAS = "jev-latest"  # the default model of its clients
_EXAMPLE: dict[str, Any] = {
    "model": ALIAS,
    "state": "Where is the lake of Oru?",
    "questions": {
        "place": {"type": "noul", "instructions": "Does it ask for a place?"},
        "about": {"type": "choice", "criteria": {"lakes": "water", "goods": "things sold"}},
    },
}
_MOST_LEVELS = 10
_TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}


class SystemOneBody(
    BaseModel, strict=True, extra="ignore", json_schema_extra={"examples": [_EXAMPLE]}
):
    """A state and named questions about it."""

    model: Text = Field(description=f"The model's name here, or `{ALIAS}`.")
    state: Text | dict[str, Any] | list[Any] = Field(description="A text, or JSON.")
    questions: dict[str, dict[str, Any]] = Field(min_length=1, description="By name.")
    assets: dict[str, Any] | None = Field(None, description="Refused: the model reads text alone.")
    include: list[Text] = Field([], description="`trajectory`: every depth, beside the answers.")
    on_deferred: Literal["answer", "refusal"] = Field(
        "answer", description="What to return if the certificate defers: the answer, or an error."
    )


class SystemOneAnswer(BaseModel):
    """The answers by the questions' names."""

    model: str
    answers: dict[str, dict[str, Any]]
    usage: dict[str, int]


async def system_one(body: SystemOneBody, call: ThisCall) -> Response:
    """Answer questions about a state, in the form of TypeSafe's System One."""
    resolvers = {name: partial(_resolve, question) for name, question in body.questions.items()}
    include = [name for name in body.include if name == "trajectory"]
    answered = await ask(
        call, body.model, partial(_state, body), resolvers, aliases=[ALIAS], include=include
    )
    deferred = [
        f"questions.{name:.80}" for name, answer in answered.answers.items() if answer.deferred
    ]
    if deferred and body.on_deferred == "refusal":
        what = f"{', '.join(deferred[:8])} is deferred by the certificate"
        raise Refusal("item", f"{what}, and this form has no refusal: leave on_deferred out")
    answers = {
        name: _answer(answer, body.questions[name].get("criteria"))
        | {"x_lastword": answered.reasons[name]}
        for name, answer in answered.answers.items()
    }
    usage = {"input_tokens": answered.input_tokens, "output_tokens": answered.output_tokens}
    return plain_answer({"model": call.service.name, "answers": answers, "usage": usage})


def _state(body: SystemOneBody) -> Input:
    if body.assets:
        raise Refusal("invalid_body", "assets: this model reads text alone; leave images out")
    return body.state


def _resolve(question: Mapping[str, Any], served: Served, name: str | None) -> Question:
    name = _text_or_none(name or question.get("question"))
    kind, criteria = question.get("type"), question.get("criteria")
    instructions = _text_or_none(question.get("instructions")) or ""

    def make(instructions: str) -> Single:
        if kind == "noul":
            return _noul(instructions, {} if criteria is None else criteria)
        if kind == "choice":
            return _choice(instructions, criteria)
        if kind == "score":
            return _score(instructions, criteria)
        if kind == "box":
            raise InputError("a box needs an image, which is not read here")
        raise InputError(f"type is noul, choice or score, not {kind!r:.40}")

    return served_or_new(served, name, kind, instructions, criteria, make)


def _noul(instructions: str, criteria: Any) -> Predicate:
    if not isinstance(criteria, Mapping):
        raise InputError("criteria of a noul are an object of `true` and `false`")
    yes, no = (_text_or_none(criteria.get(key)) for key in ("true", "false"))
    return Predicate(instructions, yes, no)


def _choice(instructions: str, criteria: Any) -> Choice:
    if not isinstance(criteria, Mapping | list):
        form = '{"one": "what it means", "other": null}, or a list of labels'
        raise InputError(f"criteria of a choice are {form}")
    if isinstance(criteria, list):
        return Choice(instructions, criteria)
    options = [Option(label, _text_or_none(means)) for label, means in criteria.items()]
    return Choice(instructions, options)


def _score(instructions: str, criteria: Any) -> Score:
    if not isinstance(criteria, list):
        raise InputError("criteria of a score are a list of levels")
    if len(criteria) > _MOST_LEVELS:
        raise InputError(f"{len(criteria)} levels, expected 2 to {_MOST_LEVELS}")
    return Score(instructions, [Option(_text(level)) for level in criteria])


def _text(value: Any) -> str:
    """Return text unchanged, and other JSON on one line."""
    if isinstance(value, str):
        return value
    if not isinstance(value, Mapping | list):
        raise InputError(f"expected a text, an object or a list, not {json.dumps(value):.40}")
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def _text_or_none(value: Any) -> str | None:
    return None if value is None else _text(value)


def _answer(answer: SingleAnswer, criteria: Any) -> dict[str, Any]:
    if isinstance(answer, PredicateAnswer):
        return {"type": "noul", "noul": answer.probability}
    return keyed(answer, answer.confidence, criteria)


def _form(refusal: Refusal) -> dict[str, Any]:
    if refusal.status == 422:
        return {"detail": [{"loc": ["body"], "msg": str(refusal), "type": refusal.code}]}
    bad = "server_error" if refusal.status >= 500 else "invalid_request_error"
    kind = _TYPES.get(refusal.status, bad)
    return {"detail": {"error_type": kind, "message": str(refusal)}}


TYPESAFE = Dialect((Route("POST", "/v1/systemone", system_one, SystemOneAnswer),), _form)
