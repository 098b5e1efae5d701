"""OpenAI's Decisions: predicates, choices and scores about an input, for its unchanged client.

docs/decisions.md has the details that OpenAI's documents leave open.
"""

from functools import partial
from typing import Annotated, Literal

from fastapi import Response
from pydantic import BaseModel, Discriminator, Field, Tag

from lastword.decide.answer import Answer
from lastword.errors import InputError
from lastword.service.call import ThisCall, plain_answer
from lastword.service.dialects.google import GoogleBody, google_decisions
from lastword.service.dialects.question_form import (
    QuestionForm,
    TextOrMessages,
    conversation,
    text_of_parts,
)
from lastword.service.questions import answer
from lastword.service.schema import Json, Object, Text
from lastword.text.question import Choice, Predicate, Score, Single


class DecisionBody(BaseModel, strict=True, extra="forbid"):
    """An input and questions about it."""

    model: Text = Field(description="The model's name here.")
    input: TextOrMessages = Field(description="A text, or messages.")
    questions: list[Object] = Field(min_length=1)
    include: list[Literal["trajectory"]] = Field([], description="Additional content.")
    on_deferred: Literal["answer", "refusal"] = "answer"


# Two clients post to this route; the discriminator tells their bodies apart.
AnyBody = Annotated[
    Annotated[DecisionBody, Tag("body")] | Annotated[GoogleBody, Tag("body of a map")],
    Discriminator(lambda value: "body of a map" if _has_map(value) else "body"),
]


def _has_map(value: Json) -> bool:
    if isinstance(value, BaseModel):
        return isinstance(value, GoogleBody)
    return isinstance(value, dict) and isinstance(value.get("questions"), dict)


async def decisions(body: AnyBody, call: ThisCall) -> Response:
    """Answer a list of questions in OpenAI's form of decisions, or a map in Google's."""
    if isinstance(body, GoogleBody):
        return await google_decisions(body, call)
    call.service.require_model(body.model)
    value = body.input if isinstance(body.input, str) else conversation(body.input)
    questions = {str(i): question for i, question in enumerate(body.questions)}
    make = partial(_FORM.read, questions)
    replies = await answer(call, value, make, full=bool(body.include))
    answers = [
        _answer(given, questions[i].get("name"), replies.reasons[i], body.on_deferred)
        for i, given in replies.answers.items()
    ]
    usage = replies.usage
    counts = {
        "input_tokens": usage.input,
        "input_tokens_details": {"cached_tokens": usage.cached, "cache_write_tokens": 0},
        "output_tokens": usage.output,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": usage.input + usage.output,
    }
    return plain_answer({"answers": answers, "model": call.service.name, "usage": counts})


def _answer(given: Answer, name: str | None, reasons: Object, on_deferred: str) -> Object:
    more = {"name": name, "lastword": reasons}
    if given.deferred and on_deferred == "refusal":
        return {"type": "refusal"} | more
    values = given.to_dict()
    keys: tuple[str, ...] = ("type", "choice", "score", "confidence", "probabilities")
    if isinstance(given.question, Predicate):
        keys = ("type", "probability")
    return {key: values[key] for key in keys if key in values} | more


def _fields(kind: type[Single], question: Object) -> Object:
    if not isinstance(question.get("name"), str | None):
        raise InputError("name is a text")
    if kind is Predicate:
        return {}
    key = "choices" if kind is Choice else "levels"
    entries = question.get(key, [])
    return {key: list(map(_option, entries)) if isinstance(entries, list) else entries}


def _option(entry: Json) -> Json:
    """Return an entry with the library's names: a level has a `label`."""
    if not isinstance(entry, dict) or "label" not in entry:
        return entry
    return {"value" if key == "label" else key: value for key, value in entry.items()}


_FORM = QuestionForm(
    {"predicate": Predicate, "choice": Choice, "score": Score},
    frozenset({"name", "choices", "levels", "abstain"}),
    text_of_parts,
    _fields,
)
