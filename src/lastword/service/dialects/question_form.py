"""The reader of texts and questions for all dialects, and what TypeSafe's and Google's share."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Literal

from pydantic import BaseModel, Discriminator, Field, Tag

from lastword.decide.answer import Answer
from lastword.decide.item import Input
from lastword.decide.served import Served
from lastword.errors import InputError
from lastword.service.call import Call
from lastword.service.questions import Usage, answer
from lastword.service.refusal import Refusal
from lastword.service.schema import Json, Object, Text
from lastword.text.question import Choice, Option, Predicate, Question, Score, Single

# The kinds of questions that TypeSafe and Google have in common.
KINDS: dict[str, type[Single]] = {"noul": Predicate, "choice": Choice, "score": Score}
_KEYS = frozenset({"type", "instructions", "question"})
_OPTIONS = ("choices", "levels", "criteria")  # the lists or maps of options in the dialects


# Texts


class Part(BaseModel, strict=True, extra="forbid"):
    """A piece of a text."""

    type: Literal["text", "input_text", "output_text"]
    text: Text


# The discriminator chooses the form first, so that an error is about that form only.
_BY_FORM = Discriminator(lambda value: "parts" if isinstance(value, list) else "string")
_String = Annotated[Text, Tag("string")]
_Parts = Annotated[list[Part], Field(min_length=1, fail_fast=True), Tag("parts")]
Content = Annotated[_String | _Parts, _BY_FORM]


class ChatMessage(BaseModel, strict=True, extra="forbid"):
    """One message of a conversation."""

    type: Literal["message"] = "message"
    role: Text
    content: Content

    @property
    def text(self) -> str:
        """The text of all parts."""
        content = self.content
        return content if isinstance(content, str) else "".join(part.text for part in content)


_Messages = Annotated[list[ChatMessage], Field(min_length=1, fail_fast=True), Tag("parts")]
TextOrMessages = Annotated[_String | _Messages, _BY_FORM]


def conversation(messages: Sequence[ChatMessage]) -> Input:
    """Return messages as an input: a single user message unchanged, others with their roles."""
    if [message.role for message in messages] == ["user"]:
        return messages[0].text
    return [{"role": message.role, "content": message.text} for message in messages]


def text_of_parts(value: Json) -> str:
    """Return a text, or the texts of parts, one per line; raise InputError for others."""
    if isinstance(value, str):
        return value
    parts = value if isinstance(value, list) else [value]
    texts = [part.get("text") for part in parts if isinstance(part, Mapping)]
    if not texts or len(texts) < len(parts) or not all(isinstance(text, str) for text in texts):
        raise InputError("expected a text or parts of type text: only text is read")
    return "\n".join(map(str, texts))


# Questions


@dataclass(frozen=True)
class QuestionForm:
    """A dialect's form of a question: kinds by name, and the keys beside those of all dialects.

    `text` reads instructions, which a new question may lack if `optional`, and `fields` the others.
    """

    kinds: Mapping[str, type[Single]]
    keys: frozenset[str]
    text: Callable[[Json], str]
    fields: Callable[[type[Single], Object], Object]
    optional: bool = False

    def read(self, questions: Mapping[str, Object], served: Served) -> dict[str, Question]:
        """Return the questions of a body by name; refuse what is no question here."""
        read = {}
        for name, question in questions.items():
            try:
                read[name] = self._read(question, served)
            except InputError as error:
                raise Refusal("invalid_body", f"questions.{name:.80}: {error}") from error
        return read

    def _read(self, question: Object, served: Served) -> Question:
        """Return a new question, or the served one that this one names."""
        if unknown := question.keys() - self.keys - _KEYS:
            known = ", ".join(sorted(self.keys | _KEYS))
            raise InputError(f"the key {min(unknown)!r:.80} is not known here; known: {known}")
        kind = self.kinds.get(str(question.get("type")))
        if kind is None:
            names = ", ".join(self.kinds)
            raise InputError(f"type is one of {names}, not {question.get('type')!r:.40}")
        content, name = question.get("instructions"), question.get("question")
        instructions = "" if content is None else self.text(content)
        is_asked = name is None or any(question.get(key) for key in _OPTIONS)
        fields = self.fields(kind, question) if is_asked else {}
        if name is None:
            if content is None and not self.optional:
                raise InputError("instructions are missing")
            found: Question = kind(instructions=instructions, **fields)
        else:
            # A predicate without instructions would be refused.
            options = kind(instructions=instructions or "-", **fields).options if fields else ()
            found = served.get(str(name), kind, instructions, options)
        if isinstance(found, Choice) and question.get("abstain"):
            return replace(found, abstain=question["abstain"])
        return found


def criteria_form(
    text: Callable[[Json], str], yes: str, no: str, *, optional: bool
) -> QuestionForm:
    """Return the form of questions whose options are their `criteria`.

    `yes` and `no` are the keys of a predicate's criteria.
    """

    def fields(kind: type[Single], question: Object) -> Object:
        criteria = question.get("criteria")
        key = "choices" if kind is Choice else "levels"
        if kind is Predicate and (criteria is None or isinstance(criteria, Mapping)):
            pairs = (("yes", yes), ("no", no))
            means = {own: (criteria or {}).get(theirs) for own, theirs in pairs}
            return {own: text(mean) for own, mean in means.items() if mean}
        if kind is Choice and isinstance(criteria, Mapping):
            named = criteria.items()
            return {key: [Option(value, text(mean) if mean else None) for value, mean in named]}
        if kind is not Predicate and isinstance(criteria, list):
            return {key: [text(entry) for entry in criteria]}
        need = {Predicate: "an object or none", Score: "a list of levels"}
        example = 'a map of options, such as {"one": "what it means", "other": null}'
        name = next(name for name, other in KINDS.items() if other is kind)
        raise InputError(f"criteria of a {name} are {need.get(kind, example)}")

    return QuestionForm(KINDS, frozenset({"criteria"}), text, fields, optional)


async def answers_by_name(
    call: Call,
    value: Input,
    questions: Mapping[str, Object],
    form: QuestionForm,
    written: Callable[[Answer, Object], Object],
) -> tuple[Object, Usage]:
    """Answer a map of questions; `written` returns the JSON of an answer to a question."""
    replies = await answer(call, value, partial(form.read, questions))
    answers = {
        name: written(given, questions[name]) | {"x_lastword": replies.reasons[name]}
        for name, given in replies.answers.items()
    }
    return answers, replies.usage


def keyed(answer: Answer, confidence: float, levels: Json = None) -> Object:
    """Return a choice or a score with its probabilities by option or level.

    The legend of a score has the request's levels, or the answer's labels without them.
    """
    shares = answer.probabilities.tolist()
    if isinstance(answer.question, Choice):
        probabilities = dict(zip(map(str, answer.values), shares, strict=True))
        written: Object = {"type": "choice", "choice": answer.choice}
        return written | {"probabilities": probabilities, "confidence": confidence}
    return {
        "type": "score",
        "score": answer.score,
        "probabilities": {str(level): share for level, share in enumerate(shares)},
        "confidence": confidence,
        "legend": {str(level): text for level, text in enumerate(levels or answer.values)},
    }
