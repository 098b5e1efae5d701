"""OpenAI's Decisions: predicates, choices and scores about an input, for its unchanged client.

docs/decisions.md has the details that OpenAI's documents leave open.
"""

from collections.abc import Callable, Mapping
from typing import Annotated, Any, ClassVar, Literal

from fastapi import Response
from pydantic import BaseModel, BeforeValidator, Discriminator, Field, Tag

from lastword.decide.answer import PredicateAnswer, SingleAnswer
from lastword.decide.item import text_of
from lastword.decide.served import Served
from lastword.errors import InputError
from lastword.service.call import ThisCall, plain_answer
from lastword.service.dialects.google import GoogleBody, google_decisions
from lastword.service.questions import Answered, ask
from lastword.service.refusal import Refusal
from lastword.service.schema import Text
from lastword.text.question import Choice, Option, Predicate, Question, Score, Single

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


def _entry(key: str, noun: str) -> BeforeValidator:
    """Return a validator that also accepts a text or a boolean alone as an entry of a list."""

    def read(value: Any) -> Any:
        if isinstance(value, str | bool):
            return {key: value}
        if not isinstance(value, Mapping) or key not in value:
            what = f'{noun} is "TEXT" or {{"{key}": "TEXT", "description": "TEXT"}}'
            raise ValueError(what)
        return value

    return BeforeValidator(read)


def _of_known_type(value: Any) -> Any:
    if not isinstance(value, Mapping) or value.get("type") not in ("predicate", "choice", "score"):
        form = '{"type": "choice", "instructions": "Which team?", "choices": ["one", "other"]}'
        raise ValueError(f"a question is a predicate, a choice or a score, such as {form}")
    return value


class ChoiceOption(BaseModel, strict=True, extra="ignore"):
    """One option; its description is for the prompt and is never scored."""

    value: Text | bool
    description: Text | None = None


class Level(BaseModel, strict=True, extra="ignore"):
    """One level; its description is for the prompt and is never scored."""

    label: Text
    description: Text | None = None


class QuestionBody(BaseModel, strict=True, extra="ignore"):
    """Fields of all questions; a question that names a served one needs no others."""

    kind: ClassVar[type[Single]]
    instructions: Text | list[dict[str, Any]] | None = None
    name: Text | None = None
    question: Text | None = Field(None, description="Name of a served question.")

    @property
    def options(self) -> tuple[list[Option], ...]:
        """The list of the request's options, for a kind of question that has options."""
        return ()

    def resolve(self, served: Served, name: str | None) -> Question:
        """Return the question, or the served one of this name or of the body's.

        Raises:
            InputError: There is no such question, or the body is invalid or contradicts it.
        """
        content = self.instructions
        instructions = "" if content is None else _content(content, "instructions")
        if (name := name or self.question) is not None:
            return served.get(name, self.kind, instructions, *self.options)
        if content is None:
            raise InputError("instructions are missing")
        make: Callable[..., Question] = self.kind
        return make(instructions, *self.options)


class PredicateBody(QuestionBody):
    """A question for the probability that a statement holds."""

    kind = Predicate
    type: Literal["predicate"]


class ChoiceBody(QuestionBody):
    """A choice among 2 to 255 options."""

    kind = Choice
    type: Literal["choice"]
    choices: list[Annotated[ChoiceOption, _entry("value", "an option")]] = []

    @property
    def options(self) -> tuple[list[Option], ...]:
        """The list of the request's options."""
        return ([Option(choice.value, choice.description) for choice in self.choices],)


class ScoreBody(QuestionBody):
    """A score of 2 to 10 ordered levels."""

    kind = Score
    type: Literal["score"]
    levels: list[Annotated[Level, _entry("label", "a level")]] = Field([], max_length=10)

    @property
    def options(self) -> tuple[list[Option], ...]:
        """The list of the request's levels."""
        return ([Option(level.label, level.description) for level in self.levels],)


class DecisionBody(
    BaseModel, strict=True, extra="forbid", json_schema_extra={"examples": [_EXAMPLE]}
):
    """An input and 1 to 400 questions about it."""

    model: Text = Field(description="The model's name here.")
    input: Text | list[dict[str, Any]] = Field(description="A text, or messages and tool calls.")
    questions: list[
        Annotated[
            PredicateBody | ChoiceBody | ScoreBody,
            Field(discriminator="type"),
            BeforeValidator(_of_known_type),
        ]
    ] = Field(min_length=1)
    prompt_cache_key: Text | None = Field(None, description="Without effect.")
    prompt_cache_options: dict[str, Any] | None = None
    safety_identifier: Text | None = Field(None, description="Without effect.")
    include: list[Literal["trajectory", "view"]] = Field([], description="Additional content.")
    on_deferred: Literal["answer", "refusal"] = Field(
        "answer", description="What to return if the certificate defers: the answer, or a refusal."
    )


class DecisionsAnswer(BaseModel):
    """The answers, in the order of the questions."""

    answers: list[dict[str, Any]]
    model: str
    usage: dict[str, Any]


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
    resolvers = {str(i): question.resolve for i, question in enumerate(body.questions)}
    answered = await ask(
        call, body.model, lambda: _input(body.input), resolvers, include=body.include
    )
    answers = [
        _answer(answered.answers[str(i)], question.name, answered.reasons[str(i)], body.on_deferred)
        for i, question in enumerate(body.questions)
    ]
    usage = _usage(answered)
    return plain_answer({"answers": answers, "model": call.service.name, "usage": usage})


def _answer(
    answer: SingleAnswer, name: str | None, reasons: Mapping[str, Any], on_deferred: str
) -> dict[str, Any]:
    more = {"name": name, "lastword": reasons}
    if answer.deferred and on_deferred == "refusal":
        return {"type": "refusal"} | more
    values = answer.to_dict()
    keys: tuple[str, ...] = ("type", "choice", "score", "confidence", "probabilities")
    if isinstance(answer, PredicateAnswer):
        keys = ("type", "probability")
    return {key: values[key] for key in keys if key in values} | more


def _usage(answered: Answered) -> dict[str, Any]:
    total = answered.input_tokens + answered.output_tokens
    return {
        "input_tokens": answered.input_tokens,
        "input_tokens_details": {"cached_tokens": answered.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": answered.output_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": total,
    }


# An input as text


def _input(value: str | list[dict[str, Any]]) -> str:
    """Return the input as text: a single user message unchanged, others with their roles."""
    if isinstance(value, str):
        return value
    if not value:
        raise _bad("input is an empty list; give a text or at least one message")
    calls: set[Any] = set()
    entries = [_entry_text(entry, place, calls) for place, entry in enumerate(value)]
    if len(entries) == 1 and entries[0][0] == "user":
        return entries[0][1]
    return "\n".join(f"{who}: {text}" for who, text in entries)


def _entry_text(entry: Mapping[str, Any], place: int, calls: set[Any]) -> tuple[str, str]:
    kind, where = entry.get("type", "message"), f"input[{place}]"
    if kind == "message":
        role = entry.get("role")
        if role not in ("user", "developer", "system", "assistant"):
            raise _bad(f"{where}.role is user, developer, system or assistant, not {role!r:.40}")
        return role, _content(entry.get("content"), f"{where}.content")
    if kind in ("function_call", "custom_tool_call"):
        calls.add(entry.get("call_id"))
        what = entry.get("arguments" if kind == "function_call" else "input")
        if not isinstance(what, str) or not isinstance(entry.get("name"), str):
            raise _bad(f"{where} is a call without a name or without arguments")
        return "assistant", f"calls {entry['name']}({what})"
    if kind in ("function_call_output", "custom_tool_call_output"):
        if entry.get("call_id") not in calls:
            raise _bad(f"{where}.call_id names no call before it")
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
