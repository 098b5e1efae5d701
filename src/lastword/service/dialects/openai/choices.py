"""A choice list, from wherever an OpenAI client puts one, and how the choice is written down."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from pydantic import BaseModel, Field

from lastword.files.strict_json import to_json
from lastword.service.refusal import Refusal
from lastword.service.schema import Text
from lastword.text.question import Choice, Multi, Option

NO_CHOICES = (
    "this server chooses among answers that it is given, and writes none of its own: give them as"
    ' structured_outputs {"choice": [...]}, as guided_choice [...], or as response_format with a'
    " json_schema that is an enum or an object with one property that is an enum (or, in chat, an"
    " array of one: several may apply)"
)


class StructuredOutputs(BaseModel, strict=True, extra="forbid"):
    """vLLM's way to say what an answer may be: one of a list."""

    choice: list[Text] = Field(min_length=1, fail_fast=True, description="The answers.")


class JsonSchema(BaseModel, strict=True, extra="forbid"):
    """A JSON schema with its name."""

    name: Text | None = None
    description: Text | None = None
    schema_: dict[str, Any] = Field(alias="schema", description="An enum, or an object with one.")
    strict: bool | None = None


class ResponseFormat(BaseModel, strict=True, extra="forbid"):
    """OpenAI's way to say what an answer may be."""

    type: Text = Field(description="`json_schema` for a choice.")
    json_schema: JsonSchema | None = None


@dataclass(frozen=True)
class Choices:
    """What the answer is chosen from, and how it is written."""

    values: tuple[Any, ...]  # as JSON has them
    is_json: bool = False
    key: str | None = None  # the property of the object that holds it, where it stands in one
    asked: str = ""  # the description of a schema's enum, which is the question
    described: tuple[str | None, ...] = ()
    nullable: bool = False  # null is none of these
    several: bool = False  # an array holds those that apply

    @property
    def candidates(self) -> tuple[str, ...]:
        """The answers as the model reads them: text as it is, other values as JSON."""
        return tuple(v if isinstance(v, str) else to_json(v) for v in self.values)

    @property
    def options(self) -> tuple[str | bool, ...]:
        """The values of the question's options: a boolean as it is, other values as text."""
        pairs = zip(self.values, self.candidates, strict=True)
        return tuple(v if isinstance(v, bool) else text for v, text in pairs)

    def question(self, said: Sequence[str]) -> Choice | Multi:
        """Return the choice as a question.

        Raises:
            InputError: Its options are no choice.
        """
        options = [Option(*pair) for pair in zip_longest(self.options, self.described)]
        asked = "\n".join(filter(None, (*said, self.asked)))
        return Multi(asked, options) if self.several else Choice(asked, options, self.nullable)

    @property
    def texts(self) -> list[str]:
        """The answers as the client gets them."""
        return [self.written(index) for index in range(len(self.values))]

    def written(self, index: int | None) -> str:
        """Return an answer as the client gets it; None is none of these."""
        if not self.is_json and index is not None:
            return self.candidates[index]
        return self._wrapped(None if index is None else self.values[index])

    def array(self, applies: Sequence[str | bool]) -> str:
        """Return the options that apply as the client gets them."""
        pairs = zip(self.values, self.options, strict=True)
        return self._wrapped([value for value, option in pairs if option in applies])

    def _wrapped(self, value: Any) -> str:
        return to_json(value if self.key is None else {self.key: value})


def read_choices(
    structured: StructuredOutputs | None,
    guided: list[str] | None,
    form: ResponseFormat | None,
) -> Choices:
    """The one choice list of a request.

    Raises:
        Refusal: There is none, or more than one.
    """
    texts = [own for own in (structured and structured.choice, guided) if own is not None]
    lists = [Choices(tuple(own)) for own in texts]
    if form is not None and form.json_schema is not None:
        lists.append(_of_schema(form.json_schema.schema_))
    if len(lists) > 1:
        raise Refusal("invalid_body", f"{len(lists)} choice lists came; give one")
    if not lists:
        raise Refusal("no_choices", NO_CHOICES)
    return lists[0]


def _of_schema(schema: Mapping[str, Any]) -> Choices:
    properties = schema.get("properties")
    alone = (
        properties if isinstance(properties, Mapping) and len(properties) == 1 else {None: schema}
    )
    ((key, own),) = alone.items()
    whole = part = _followed(own, schema)
    if several := part.get("type") == "array":
        part = _followed(part.get("items"), schema)
    forms = part.get("anyOf", part.get("oneOf"))
    parts = [_followed(own, schema) for own in forms] if isinstance(forms, list) else [part]
    pairs = [pair for own in parts for pair in _pairs(own)]
    choices = [pair for pair in pairs if pair[0] is not None]
    values = tuple(value for value, _ in choices)
    if not values or not all(map(_is_plain, (*values, key or ""))):
        raise Refusal("no_choices", NO_CHOICES)
    described = () if forms is None else tuple(more for _, more in choices)
    asked, nullable = _text(whole.get("description")), len(choices) < len(pairs)
    return Choices(values, True, key, asked or "", described, nullable, several)


def _followed(part: Any, schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """A part of a schema; a reference into `$defs` is followed once."""
    if not isinstance(part, Mapping):
        return {}
    definitions, name = schema.get("$defs"), str(part.get("$ref", "")).removeprefix("#/$defs/")
    target = definitions.get(name) if isinstance(definitions, Mapping) else None
    return {**target, **part} if isinstance(target, Mapping) else part


def _pairs(part: Mapping[str, Any]) -> list[tuple[Any, str | None]]:
    """The values of an enum or a constant, each with its description; null where it may be null."""
    if part.get("type") == "null":
        return [(None, None)]
    if "const" in part:
        return [(part["const"], _text(part.get("description")))]
    if not isinstance(part.get("enum"), list):
        raise Refusal("no_choices", NO_CHOICES)
    return [(value, None) for value in part["enum"]]


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _is_plain(value: Any) -> bool:
    """Whether JSON can say it in one word: text in UTF-8, a finite number, true or false."""
    if isinstance(value, str):
        return not any("\ud800" <= letter <= "\udfff" for letter in value)
    return isinstance(value, int) or (isinstance(value, float) and math.isfinite(value))
