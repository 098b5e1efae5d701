"""Lists of options in the fields of OpenAI's clients, and the chosen option in their form."""

import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Any

from pydantic import BaseModel, Field

from lastword.files.strict_json import to_json
from lastword.service.refusal import Refusal
from lastword.service.schema import Text
from lastword.text.question import MOST_CHOICES, Choice, Multi, Option, Value

_SURROGATE = re.compile("[\ud800-\udfff]")
_MOST_REFERENCES = 16
_FORMS = ("anyOf", "const", "enum")
# Keywords of answers that are read here; a part that a reference joins to another has none of both.
_ASSERTIONS = {*_FORMS, "additionalProperties", "items", "properties", "required", "type"}
# Keywords that may exclude an answer: none is applied, so a schema with one is refused.
_BOUNDS = set(
    "$dynamicRef additionalItems allOf contains dependencies dependentRequired dependentSchemas "
    "else exclusiveMaximum exclusiveMinimum if maxItems maxLength maxProperties maximum minItems "
    "minLength minProperties minimum multipleOf not oneOf pattern patternProperties prefixItems "
    "propertyNames then unevaluatedItems unevaluatedProperties".split()
)
_KINDS = {str: "string", bool: "boolean", type(None): "null"}
NO_CHOICES = (
    "this server does not generate text; it chooses among the answers that you supply: pass them as"
    ' structured_outputs {"choice": [...]}, as guided_choice [...], or as response_format with a'
    " json_schema that is an enum or an object with one property that is an enum (or, in chat, an"
    " array of one: several may apply)"
)


class StructuredOutputs(BaseModel, strict=True, extra="forbid"):
    """vLLM's form of a list of options."""

    choice: list[Text] = Field(min_length=1, fail_fast=True, description="The answers.")


class JsonSchema(BaseModel, strict=True, extra="forbid"):
    """A JSON schema with its name."""

    name: Text | None = None
    description: Text | None = None
    schema_: dict[str, Any] = Field(alias="schema", description="An enum, or an object with one.")
    strict: bool | None = None


class ResponseFormat(BaseModel, strict=True, extra="forbid"):
    """OpenAI's form of a list of options: a JSON schema."""

    type: Text = Field(description="`json_schema` for a choice.")
    json_schema: JsonSchema | None = None


@dataclass(frozen=True)
class Choices:
    """The options of an answer, and the form in which the client gets it.

    Attributes:
        values: The options as JSON values.
        is_json: True if the answer is written as JSON.
        key: The property that has the answer, if it is an object.
        instructions: The question: the description of a schema's enum.
        descriptions: The options' descriptions, or ().
        nullable: True if null, "none of these", is an answer.
        several: True if the answer is an array of all options that apply.
    """

    values: tuple[Any, ...]
    is_json: bool = False
    key: str | None = None
    instructions: str = ""
    descriptions: tuple[str | None, ...] = ()
    nullable: bool = False
    several: bool = False

    @property
    def candidates(self) -> tuple[str, ...]:
        """The texts that the model scores: text unchanged, other values as JSON."""
        return tuple(v if isinstance(v, str) else to_json(v) for v in self.values)

    @property
    def options(self) -> tuple[str | bool, ...]:
        """The values of the question's options: a boolean as it is, other values as text."""
        pairs = zip(self.values, self.candidates, strict=True)
        return tuple(v if isinstance(v, bool) else text for v, text in pairs)

    def question(self, before: Sequence[str]) -> Choice | Multi:
        """Return the question, with these instructions before those of the schema.

        Raises:
            InputError: Invalid options.
        """
        options = [Option(*pair) for pair in zip_longest(self.options, self.descriptions)]
        instructions = "\n".join(filter(None, (*before, self.instructions)))
        return (
            Multi(instructions, options)
            if self.several
            else Choice(instructions, options, self.nullable)
        )

    def in_order(self, options: Sequence[Value], form: Callable[[str], str]) -> "Choices":
        """Return the choices in the order of a question's options.

        `form` normalises a text, because the question's options may be spelled differently.
        """
        places = {form(text): place for place, text in enumerate(self.candidates)}
        order = [places[form(text)] for text in Choices(tuple(options)).candidates]
        return replace(self, values=tuple(self.values[place] for place in order))

    @property
    def texts(self) -> list[str]:
        """The answers as the client gets them."""
        return [self.written(index) for index in range(len(self.values))]

    def written(self, index: int | None) -> str:
        """Return an answer as the client gets it; None means none of these."""
        if not self.is_json and index is not None:
            return self.candidates[index]
        return self._wrapped(None if index is None else self.values[index])

    def array(self, applies: Sequence[Value]) -> str:
        """Return the options that apply as the client gets them."""
        pairs = zip(self.values, self.options, strict=True)
        return self._wrapped([value for value, option in pairs if option in applies])

    def _wrapped(self, value: Any) -> str:
        return to_json(value if self.key is None else {self.key: value})


def read_choices(
    structured: StructuredOutputs | None,
    guided: list[str] | None,
    form: ResponseFormat | None,
    most: int = MOST_CHOICES,
) -> Choices:
    """Return the list of options in a request.

    Raises:
        Refusal: There is none, more than one, or one with more than `most` options.
    """
    texts = [one for one in (structured and structured.choice, guided) if one is not None]
    lists = [Choices(tuple(each)) for each in texts]
    if form is not None and form.json_schema is not None:
        lists.append(_of_schema(form.json_schema.schema_, most))
    if len(lists) > 1:
        raise Refusal("invalid_body", f"{len(lists)} choice lists are given; give one")
    if not lists:
        raise Refusal("no_choices", NO_CHOICES)
    _require_few(lists[0].values, "the list", most)
    return lists[0]


def _require_few(entries: Collection[Any], where: str, most: int) -> None:
    """Refuse more options than a question may have, before each of them is looked at."""
    if len(entries) > most:
        what = f"{where} has {len(entries):,} entries, a choice has at most {most} options"
        raise Refusal("too_many_candidates", what)


def _of_schema(schema: Mapping[str, Any], most: int) -> Choices:
    """Return the options of a JSON schema: of an enum, or of constants in `anyOf`.

    They may be the items of an array, and either may be the only property of an object. A schema
    that may exclude an answer is refused.
    """
    where, key, part = "schema", None, _followed(schema, schema, "schema")
    if "properties" in part:
        key, inner = _property(part, where)
        where = f"{where}.properties.{key:.80}"
        part = _followed(inner, schema, where)
    instructions = part.get("description")
    if several := part.get("type") == "array":
        _require_container(part, where)
        where += ".items"
        part = _followed(part.get("items"), schema, where)
    pairs = _pairs(part, schema, where, most + 1)  # null is no option
    _require_distinct([value for value, _ in pairs], where)
    values = tuple(value for value, _ in pairs if value is not None)
    if not values or (several and len(values) < len(pairs)):
        raise _no_choice(where, "has null as its only enum value, or in an array")
    return Choices(
        values,
        is_json=True,
        key=key,
        instructions=instructions if isinstance(instructions, str) else "",
        descriptions=tuple(text for value, text in pairs if value is not None),
        nullable=len(values) < len(pairs),
        several=several,
    )


def _property(part: Mapping[str, Any], where: str) -> tuple[str, Any]:
    """Return the name and the schema of an object's only property."""
    _require_container(part, where)
    properties = part["properties"]
    if not isinstance(properties, Mapping) or len(properties) != 1:
        names = ", ".join(map(repr, properties if isinstance(properties, Mapping) else ()))
        raise _no_choice(
            f"{where}.properties", f"has {names or 'none':.200}; expected one property"
        )
    ((key, inner),) = properties.items()
    if not _is_plain(key):
        raise _no_choice(where, "has a property with a lone surrogate in its name")
    if part.get("type", "object") != "object" or part.get("required", []) not in ([], [key]):
        raise _no_choice(
            where, f"has another type than object, or required properties beside {key!r:.80}"
        )
    return key, inner


def _require_container(part: Mapping[str, Any], where: str) -> None:
    if several := [word for word in _FORMS if word in part]:
        raise _no_choice(where, f"has {several[0]!r}, which this server cannot apply here")


def _no_choice(where: str, what: str) -> Refusal:
    form = 'an enum such as {"enum": ["one", "other"]}, or anyOf constants'
    return Refusal("no_choices", f"response_format: {where} {what}. A choice is {form}")


def _followed(part: Any, schema: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return a part of a schema, joined with the part that its `$ref` names."""
    whole: dict[str, Any] = {}
    for _ in range(_MOST_REFERENCES):
        if not isinstance(part, Mapping):
            raise _no_choice(where, "is no object")
        open_ended = {"properties"} - part.keys() and {"additionalProperties"}
        refused = _BOUNDS | open_ended | (_ASSERTIONS & whole.keys())
        if words := sorted(refused & part.keys()):
            raise _no_choice(where, f"has {words[0]!r}, which this server cannot apply here")
        whole = {**part, **whole}
        if (reference := whole.pop("$ref", None)) is None:
            return whole
        part = _target(reference, schema, where)
    raise _no_choice(where, f"refers to itself, or over {_MOST_REFERENCES} references")


def _target(reference: Any, schema: Mapping[str, Any], where: str) -> Any:
    for place in ("$defs", "definitions"):
        definitions, name = schema.get(place), str(reference).removeprefix(f"#/{place}/")
        if isinstance(definitions, Mapping) and name != reference and name in definitions:
            return definitions[name]
    expected = "#/$defs/NAME or #/definitions/NAME of the same schema"
    what = f"refers to {str(reference)!a:.80}, which is not there; expected {expected}"
    raise _no_choice(where, what)


def _pairs(
    part: Mapping[str, Any], schema: Mapping[str, Any], where: str, most: int
) -> list[tuple[Any, str | None]]:
    """Return the values of an enum or of constants, with their descriptions."""
    if sum(word in part for word in _FORMS) > 1:
        raise _no_choice(where, "has two of enum, const and anyOf")
    if not isinstance(forms := part.get("anyOf"), list):
        return _constants(part, where, most)
    _require_few(forms, where, most)
    pairs: list[tuple[Any, str | None]] = []
    for place, form in enumerate(forms):
        inner = f"{where}.anyOf[{place}]"
        pairs += _constants(_followed(form, schema, inner), inner, most)
        _require_few(pairs, where, most)
    _require_type(pairs, part, where)
    return pairs


def _constants(part: Mapping[str, Any], where: str, most: int) -> list[tuple[Any, str | None]]:
    description = part.get("description")
    if "const" in part:
        pairs = [(part["const"], description if isinstance(description, str) else None)]
    elif isinstance(values := part.get("enum"), list):
        _require_few(values, where, most)
        pairs = [(value, None) for value in values]
    elif part.get("type") == "null":
        pairs = [(None, None)]
    else:
        raise _no_choice(where, "has no enum and no const")
    if not pairs:
        raise _no_choice(f"{where}.enum", "is empty")
    for place, (value, _) in enumerate(pairs):
        if value is not None and not _is_plain(value):
            need = "expected text in UTF-8, a finite number, true or false"
            raise _no_choice(f"{where}.enum[{place}]", f"is {ascii(value):.80}; {need}")
    _require_type(pairs, part, where)
    return pairs


def _require_type(pairs: Iterable[tuple[Any, Any]], part: Mapping[str, Any], where: str) -> None:
    """Refuse a type that excludes a value."""
    kinds = part.get("type", [])
    for value, _ in pairs if "type" in part else ():
        kind = _KINDS.get(type(value), "number")
        whole = kind == "number" and value == value // 1
        names = (kind, "integer") if whole else (kind,)
        if not any(name == kinds or (isinstance(kinds, list) and name in kinds) for name in names):
            raise _no_choice(where, f"has a type that excludes the answer {to_json(value):.80}")


def _require_distinct(values: Iterable[Any], where: str) -> None:
    """Refuse values that are equal in JSON, such as 1 and 1.0."""
    earlier: dict[tuple[bool, Any], Any] = {}
    for value in values:
        key = isinstance(value, bool), value  # in Python True == 1
        if key in earlier:
            one, other = to_json(earlier[key]), to_json(value)
            raise _no_choice(where, f"has the enum value {one:.80} twice, again as {other:.80}")
        earlier[key] = value


def _is_plain(value: Any) -> bool:
    if isinstance(value, str):
        return value.isascii() or _SURROGATE.search(value) is None
    return isinstance(value, int) or (isinstance(value, float) and math.isfinite(value))
