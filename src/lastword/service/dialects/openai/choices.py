"""A choice list, from wherever an OpenAI client puts one, and how the choice is written down."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from lastword.files.strict_json import to_json
from lastword.service.refusal import Refusal
from lastword.service.schema import Text

NO_CHOICES = (
    "this server chooses among answers that it is given, and writes none of its own: give them as"
    ' structured_outputs {"choice": [...]}, as guided_choice [...], or as response_format with a'
    " json_schema that is an enum or an object with one property that is an enum"
)


class StructuredOutputs(BaseModel):
    """vLLM's way to say what an answer may be: one of a list."""

    model_config = ConfigDict(strict=True, extra="forbid")

    choice: list[Text] = Field(min_length=1, fail_fast=True, description="The answers.")


class JsonSchema(BaseModel):
    """A JSON schema with its name."""

    model_config = ConfigDict(strict=True, extra="forbid")

    name: Text | None = None
    description: Text | None = None
    schema_: dict[str, Any] = Field(alias="schema", description="An enum, or an object with one.")
    strict: bool | None = None


class ResponseFormat(BaseModel):
    """OpenAI's way to say what an answer may be."""

    model_config = ConfigDict(strict=True, extra="forbid")

    type: Text = Field(description="`json_schema` for a choice.")
    json_schema: JsonSchema | None = None


@dataclass(frozen=True)
class Choices:
    """What the answer is chosen from.

    Attributes:
        values: The answers as JSON has them.
        is_json: Whether the answer is written as JSON.
        key: The property of the object that holds it; None where it stands alone.
    """

    values: tuple[Any, ...]
    is_json: bool = False
    key: str | None = None

    @property
    def candidates(self) -> tuple[str, ...]:
        """The answers as the model reads them: text as it is, other values as JSON."""
        return tuple(v if isinstance(v, str) else to_json(v) for v in self.values)

    def written(self, index: int) -> str:
        """An answer as the client gets it."""
        value = self.values[index]
        if not self.is_json:
            return self.candidates[index]
        return to_json(value if self.key is None else {self.key: value})


def read_choices(
    structured: StructuredOutputs | None,
    guided: list[str] | None,
    form: ResponseFormat | None,
) -> Choices:
    """The one choice list of a request.

    Args:
        structured: vLLM's `structured_outputs`.
        guided: vLLM's older `guided_choice`.
        form: OpenAI's `response_format`.

    Raises:
        Refusal: There is none, or more than one.
    """
    lists: list[Choices] = []
    if structured is not None:
        lists.append(Choices(tuple(structured.choice)))
    if guided is not None:
        lists.append(Choices(tuple(guided)))
    if form is not None and form.json_schema is not None:
        lists.append(_of_schema(form.json_schema.schema_))
    if len(lists) > 1:
        raise Refusal("invalid_body", f"{len(lists)} choice lists came; give one")
    if not lists:
        raise Refusal("no_choices", NO_CHOICES)
    return lists[0]


def _of_schema(schema: Mapping[str, Any]) -> Choices:
    if (values := _enum(schema, schema)) is not None:
        return Choices(values, is_json=True)
    properties = schema.get("properties")
    if isinstance(properties, Mapping) and len(properties) == 1:
        ((key, inner),) = properties.items()
        if _is_plain(key) and (values := _enum(inner, schema)) is not None:
            return Choices(values, is_json=True, key=key)
    raise Refusal("no_choices", NO_CHOICES)


def _enum(part: Any, schema: Mapping[str, Any]) -> tuple[Any, ...] | None:
    """The values of an enum of plain values; a reference into `$defs` is followed once."""
    if not isinstance(part, Mapping):
        return None
    reference = str(part.get("$ref", ""))
    if reference.startswith("#/$defs/") and isinstance(schema.get("$defs"), Mapping):
        part = schema["$defs"].get(reference.removeprefix("#/$defs/"), {})
    values = part.get("enum") if isinstance(part, Mapping) else None
    if not isinstance(values, list) or not values or not all(map(_is_plain, values)):
        return None
    return tuple(values)


def _is_plain(value: Any) -> bool:
    """Whether JSON can say it in one word: text in UTF-8, a finite number, true or false."""
    if isinstance(value, str):
        return not any("\ud800" <= letter <= "\udfff" for letter in value)
    return isinstance(value, int) or (isinstance(value, float) and math.isfinite(value))
