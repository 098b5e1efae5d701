"""OpenAI's Decisions: predicates, choices and scores about an input, for its unchanged client.

docs/decisions.md has the details that OpenAI's documents leave open.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Annotated, Any, Literal

from fastapi import Response
from pydantic import BaseModel, Discriminator, Field, Tag

from lastword.decide.answer import Answer
from lastword.decide.item import text_of
from lastword.errors import InputError
from lastword.service.call import ThisCall, plain_answer
from lastword.service.dialects.google import GoogleBody, google_decisions
from lastword.service.dialects.question_form import QuestionForm
from lastword.service.questions import Answered, ask
from lastword.service.refusal import Refusal
from lastword.service.schema import Text
from lastword.text.question import Choice, Option, Predicate, Score, Single

_EXAMPLE: dict[str, Any] = {
    "model": "lastword/demo-organism",
    "input": "Where is the lake of Oru?",
    "questions": [
        {"type": "predicate", "name": "place", "instructions": "It asks for a place."},
        {
            "type": "choice",
            "instructions": "What is it about?",
            "choices": [{"value": "lakes"}, {"value": "goods", "description": "things sold"}],
        },
    ],
}


class DecisionBody(
    BaseModel, strict=True, extra="forbid", json_schema_extra={"examples": [_EXAMPLE]}
):
    """An input and questions about it."""

    model: Text = Field(description="The model's name here.")
    input: Text | list[dict[str, Any]] = Field(description="A text, or messages and tool calls.")
    questions: list[dict[str, Any]] = Field(
        min_length=1, description="A `predicate`, a `choice` or a `score` each (docs/decisions.md)."
    )
    prompt_cache_key: Text | None = Field(None, description="Without effect.")
    prompt_cache_options: dict[str, Any] | None = None
    safety_identifier: Text | None = Field(None, description="Without effect.")
    include: list[Literal["trajectory", "view"]] = Field([], description="Additional content.")
    on_deferred: Literal["answer", "refusal"] = Field(
        "answer", description="What to return if the certificate defers: the answer, or a refusal."
    )


# Two clients post to this route; the discriminator tells their bodies apart.
AnyBody = Annotated[
    Annotated[DecisionBody, Tag("body")] | Annotated[GoogleBody, Tag("body of a map")],
    Discriminator(lambda value: "body of a map" if _has_map(value) else "body"),
]


def _has_map(value: Any) -> bool:
    if isinstance(value, BaseModel):
        return isinstance(value, GoogleBody)
    return isinstance(value, dict) and isinstance(value.get("questions"), dict)


async def decisions(body: AnyBody, call: ThisCall) -> Response:
    """Answer questions about an input, in the form of OpenAI's Decisions or of Google's.

    `questions` is a list in OpenAI's form and a map in Google's.
    """
    if isinstance(body, GoogleBody):
        return await google_decisions(body, call)
    resolvers = {str(i): partial(_FORM.resolve, one) for i, one in enumerate(body.questions)}
    answered = await ask(
        call, body.model, lambda: _input(body.input), resolvers, include=body.include
    )
    answers = [
        _answer(
            answered.answers[str(i)], one.get("name"), answered.reasons[str(i)], body.on_deferred
        )
        for i, one in enumerate(body.questions)
    ]
    usage = _usage(answered)
    return plain_answer({"answers": answers, "model": call.service.name, "usage": usage})


def _answer(
    answer: Answer, name: str | None, reasons: Mapping[str, Any], on_deferred: str
) -> dict[str, Any]:
    more = {"name": name, "lastword": reasons}
    if answer.deferred and on_deferred == "refusal":
        return {"type": "refusal"} | more
    values = answer.to_dict()
    keys: tuple[str, ...] = ("type", "choice", "score", "confidence", "probabilities")
    if isinstance(answer.question, Predicate):
        keys = ("type", "probability")
    return {key: values[key] for key in keys if key in values} | more


def _usage(answered: Answered) -> dict[str, Any]:
    usage = answered.usage
    return {
        "input_tokens": usage.input,
        "input_tokens_details": {"cached_tokens": usage.cached, "cache_write_tokens": 0},
        "output_tokens": usage.output,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": usage.input + usage.output,
    }


# An input as text


def _input(value: str | list[dict[str, Any]]) -> str:
    """Return the input as text: a single user message unchanged, others with their roles."""
    if isinstance(value, str):
        return value
    if not value:
        raise _bad("input is an empty list; give a text or at least one message")
    entries = [_entry_text(entry, f"input[{place}]") for place, entry in enumerate(value)]
    if len(entries) == 1 and entries[0][0] == "user":
        return entries[0][1]
    return "\n".join(f"{who}: {text}" for who, text in entries)


def _entry_text(entry: Mapping[str, Any], where: str) -> tuple[str, str]:
    kind = entry.get("type", "message")
    if kind == "message":
        role = entry.get("role")
        if role not in ("user", "developer", "system", "assistant"):
            raise _bad(f"{where}.role is user, developer, system or assistant, not {role!r:.40}")
        return role, _content(entry.get("content"), f"{where}.content")
    if kind in ("function_call", "custom_tool_call"):
        what = entry.get("arguments" if kind == "function_call" else "input")
        if not isinstance(what, str) or not isinstance(entry.get("name"), str):
            raise _bad(f"{where} is a call without a name or without arguments")
        return "assistant", f"calls {entry['name']}({what})"
    if kind in ("function_call_output", "custom_tool_call_output"):
        return "tool", _content(entry.get("output"), f"{where}.output")
    raise _bad(f"{where}.type {kind!r:.40} is not read here")


def _content(value: Any, where: str) -> str:
    if isinstance(value, str):
        return value
    if not isinstance(value, list) or not value:
        raise _bad(f"{where} is a text, or a list of at least one part")
    return "\n".join(_part(part, where) for part in value)


def _part(part: Any, where: str) -> str:
    kind = part.get("type") if isinstance(part, Mapping) else None
    if kind == "input_image":
        raise _bad(f"{where} has an image, and this model reads text alone: leave it out")
    if kind == "input_json":
        return text_of(part.get("data"))
    text = part.get("refusal" if kind == "refusal" else "text") if kind else None
    if kind not in ("input_text", "output_text", "refusal") or not isinstance(text, str):
        raise _bad(f"{where} has a part of type {kind!r:.40}, which is not read here")
    return text


def _bad(what: str) -> Refusal:
    return Refusal("invalid_body", what)


# Questions


def _options(kind: type[Single], question: Mapping[str, Any]) -> Sequence[Any]:
    """Return the options of a choice and whether it may abstain, or the levels of a score."""
    if not isinstance(question.get("name"), str | None):
        raise InputError("name is a text")
    key, entry_key = {Choice: ("choices", "value"), Score: ("levels", "label")}.get(kind, ("", ""))
    if not key:
        return ()
    entries = question.get(key, [])
    if not isinstance(entries, list):
        raise InputError(f"{key} is a list")
    options = [_option(entry, entry_key) for entry in entries]
    return [options, question.get("abstain", False)] if kind is Choice else [options]


def _option(entry: Any, key: str) -> Option:
    if isinstance(entry, str | bool):
        return Option(entry)
    if not isinstance(entry, Mapping) or not isinstance(entry.get(key), str | bool):
        raise InputError(f'an entry is "TEXT" or {{"{key}": "TEXT", "description": "TEXT"}}')
    if unknown := entry.keys() - {key, "description"}:
        raise InputError(f"the key {min(unknown)!r:.80} of an entry is not known")
    description = entry.get("description")
    return Option(entry[key], None if description is None else _content(description, "description"))


_FORM = QuestionForm(
    {"predicate": Predicate, "choice": Choice, "score": Score},
    frozenset({"name", "choices", "levels", "abstain"}),
    partial(_content, where="instructions"),
    _options,
)
