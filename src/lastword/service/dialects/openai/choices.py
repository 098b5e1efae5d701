"""Lists of options in the fields of OpenAI's clients, and the chosen option in their form."""

import math
import operator
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import zip_longest
from typing import Any

from pydantic import BaseModel, Field

from lastword.files.strict_json import to_json
from lastword.service.refusal import Refusal
from lastword.service.schema import Text
from lastword.text.question import MOST_CHOICES, Choice, Multi, Option

_SURROGATE = re.compile("[\ud800-\udfff]")
_MAX_PARTS = 16  # of a schema, joined by references and allOf
_ASSERTIONS = frozenset(  # keywords that may exclude an answer; JSON Schema ignores unknown ones
    "type enum const properties required additionalProperties patternProperties propertyNames"
    " unevaluatedProperties minProperties maxProperties dependencies dependentRequired"
    " dependentSchemas items prefixItems additionalItems unevaluatedItems minItems maxItems"
    " uniqueItems contains minContains maxContains minLength maxLength pattern minimum maximum"
    " exclusiveMinimum exclusiveMaximum multipleOf allOf anyOf oneOf not if then else $dynamicRef"
    " $recursiveRef".split()
)
# Bounds by keyword: the type of the answers that they concern, their measure, and the comparison.
_BOUNDS: dict[str, tuple[Any, Callable[[Any], Any], Callable[[Any, Any], bool]]] = {
    f"{end}{noun}": (kind, len, meets)
    for noun, kind in (("Length", str), ("Items", list), ("Properties", dict))
    for end, meets in (("min", operator.ge), ("max", operator.le))
} | {
    "minimum": (int | float, operator.pos, operator.ge),
    "maximum": (int | float, operator.pos, operator.le),
    "exclusiveMinimum": (int | float, operator.pos, operator.gt),
    "exclusiveMaximum": (int | float, operator.pos, operator.lt),
}
_KEYWORDS = {  # that each shape of a choice applies, by the keyword that makes the shape
    "properties": {"type", "properties", "required", "additionalProperties"},
    "items": {"type", "items", "uniqueItems"},
    "anyOf": {"type", "anyOf"},
    "oneOf": {"type", "oneOf"},
    "enum": {"type", "enum", "const"},
}
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

    def in_order(self, options: Sequence[str | bool], form: Callable[[str], str]) -> "Choices":
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
    """Return the options of a JSON schema: of an enum, or of constants in `anyOf` or `oneOf`.

    They may be the items of an array, and either may be the only property of an object.
    """
    followed = partial(_followed, schema=schema, most=most + 1)  # null is no option
    where, key, choice_schema = "schema", None, followed(schema, where="schema")
    if isinstance(properties := choice_schema.get("properties"), Mapping):
        if len(properties) != 1:
            names = ", ".join(map(repr, properties)) or "none"
            raise _no_choice(f"{where}.properties", f"has {names:.200}; expected one property")
        ((key, value_schema),) = properties.items()
        _require_keywords(choice_schema, "properties", where)
        _require_type(choice_schema, {}, where)
        if choice_schema.get("required", []) not in ([], [key]):
            raise _no_choice(f"{where}.required", f"asks for more than {key!a:.80}")
        _require_bounds(choice_schema, [{key: None}], where)
        where, choice_schema = f"{where}.properties.{key:.80}", value_schema
        if not _is_plain(key):
            raise _no_choice(f"{where!a}", "has a lone surrogate in its name")
    place, whole = where, followed(choice_schema, where=where)
    part = whole
    if several := part.get("type") == "array":
        _require_keywords(part, "items", where)
        where += ".items"
        part = followed(part.get("items"), where=where)
    word = "anyOf" if "anyOf" in part else "oneOf"
    forms = part.get(word)
    parts = iter([(where, part)])
    if isinstance(forms, list):
        _require_keywords(part, word, where)
        places = ((f"{where}.{word}[{i}]", one) for i, one in enumerate(forms))
        parts = ((place, followed(one, where=place)) for place, one in places)
    pairs: list[tuple[Any, str | None]] = []
    earlier: dict[tuple[bool, Any], Any] = {}
    for one_place, one in parts:
        pairs += (more := _pairs(one, one_place))
        # Checked part by part, so that a long text that many parts refer to is read twice at most.
        _require_few(pairs, where, most + 1)
        _require_distinct([value for value, _ in more if value is not None], earlier, where)
    for value, _ in pairs:
        _require_type(part, value, where)
    _require_bounds(part, [value for value, _ in pairs], where)
    choices = [pair for pair in pairs if pair[0] is not None]
    if not choices:
        raise _no_choice(where, "has null as its only enum value")
    if "oneOf" in part and len(pairs) > len(choices) + 1:
        raise _no_choice(f"{where}.oneOf", "has null twice")
    values = tuple(value for value, _ in choices)
    if several:  # its answers are from none of the options to all
        _require_bounds(whole, [[], [*values]], place)
    descriptions = () if forms is None else tuple(description for _, description in choices)
    instructions, nullable = _text(whole.get("description")), len(choices) < len(pairs)
    return Choices(values, True, key, instructions or "", descriptions, nullable, several)


def _no_choice(where: str, what: str) -> Refusal:
    form = 'an enum such as {"enum": ["one", "other"]}, or anyOf constants'
    return Refusal("no_choices", f"response_format: {where} {what}. A choice is {form}")


def _require_keywords(part: Mapping[str, Any], shape: str, where: str) -> None:
    """Refuse a keyword that may exclude an answer and that nothing here applies."""
    others = _ASSERTIONS - _KEYWORDS[shape] - _BOUNDS.keys()
    for keyword in part:
        if keyword in others:
            raise _no_choice(where, f"has {keyword!a:.80}, which this server cannot apply here")


def _require_bounds(part: Mapping[str, Any], answers: Sequence[Any], where: str) -> None:
    """Refuse a bound that not all answers meet."""
    for keyword in part.keys() & _BOUNDS.keys():
        bound, (kind, measure, meets) = part[keyword], _BOUNDS[keyword]
        concerned = [a for a in answers if isinstance(a, kind) and not isinstance(a, bool)]
        is_number = isinstance(bound, int | float) and not isinstance(bound, bool)
        if not is_number or not all(meets(measure(a), bound) for a in concerned):
            raise _no_choice(where, f"has {keyword!a:.80}, which this server cannot apply here")


def _require_type(part: Mapping[str, Any], value: Any, where: str) -> None:
    types = _types(value)
    expected = part.get("type", types[0])
    if not any(one in types for one in (expected if isinstance(expected, list) else [expected])):
        what = "an object" if value == {} else to_json(value)
        raise _no_choice(where, f"has {what:.80}, which its type {ascii(expected):.80} excludes")


def _types(value: Any) -> tuple[str, ...]:
    """Return the names that JSON schemas have for the type of a value."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return ("number", "integer") if value % 1 == 0 else ("number",)
    return ({str: "string", bool: "boolean", dict: "object"}.get(type(value), "null"),)


def _followed(part: Any, schema: Mapping[str, Any], where: str, most: int) -> Mapping[str, Any]:
    """Return a part of a schema with its `$ref` and its `allOf` resolved."""
    whole: dict[str, Any] = {}
    parts = [part]
    for one in parts:  # which grows: the outer part comes first, so its annotations win
        if not isinstance(one, Mapping):
            raise _no_choice(where, "is no object" if one is part else f"has {one!a:.80} in allOf")
        if one.get("additionalProperties", True) not in (True, {}) and "properties" not in one:
            raise _no_choice(where, "has 'additionalProperties' without 'properties' beside it")
        _require_few(one, where, most)
        for key, value in one.items():
            if isinstance(value, list):
                _require_few(value, f"{where}.{key:.80}", most)
            if key == "$ref":
                parts.append(_target(value, schema, where))
            elif key == "allOf" and isinstance(value, list):
                parts += reversed(value)
            elif key not in whole:
                whole[key] = value
            elif key in _ASSERTIONS and not _equal(whole[key], value):
                raise _no_choice(where, f"has two different values of {key!a:.80}")
        if len(parts) > _MAX_PARTS:
            raise _no_choice(where, f"refers to itself, or to more than {_MAX_PARTS} parts")
    return whole


def _equal(one: Any, other: Any) -> bool:
    """Return True if two JSON values are equal and of one type; in Python, True == 1."""
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_equal, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_equal(one[key], other[key]) for key in one)
    return type(one) is type(other) and bool(one == other)


def _target(reference: Any, schema: Mapping[str, Any], where: str) -> Mapping[str, Any]:
    for place in ("$defs", "definitions"):
        definitions, name = schema.get(place), str(reference).removeprefix(f"#/{place}/")
        if isinstance(definitions, Mapping) and name != reference:
            if isinstance(definition := definitions.get(name), Mapping):
                return definition
    expected = "#/$defs/NAME or #/definitions/NAME of the same schema"
    raise _no_choice(
        where, f"refers to {str(reference)!a:.80}, which is not there; expected {expected}"
    )


def _pairs(part: Mapping[str, Any], where: str) -> list[tuple[Any, str | None]]:
    """Return the values of an enum or a constant with their descriptions."""
    if part.get("type") == "null" and not {"enum", "const"} & set(part):
        part = {**part, "const": None}
    values = part.get("enum")
    if "enum" in part and not isinstance(values, list):
        raise _no_choice(where, "enum is not a list")
    if "const" in part:
        constant = part["const"]
        if values is not None and not any(_equal(constant, value) for value in values):
            raise _no_choice(where, f"has the const {ascii(constant):.80}, which its enum excludes")
        pairs, places = [(constant, _text(part.get("description")))], [f"{where}.const"]
    elif values is not None:
        pairs = [(value, None) for value in values]
        places = [f"{where}.enum[{i}]" for i in range(len(values))]
    else:
        raise _no_choice(where, "has no enum and no const")
    _require_keywords(part, "enum", where)
    for (value, _), place in zip(pairs, places, strict=True):
        if value is not None and not _is_plain(value):
            need = "expected text in UTF-8, a finite number, true or false"
            raise _no_choice(place, f"is {ascii(value):.80}; {need}")
        _require_type(part, value, where)
    _require_bounds(part, [value for value, _ in pairs], where)
    if not pairs:
        raise _no_choice(f"{where}.enum", "is empty")
    return pairs


def _require_distinct(
    values: Iterable[Any], earlier: dict[tuple[bool, Any], Any], where: str
) -> None:
    """Refuse values that are equal in JSON, such as 1 and 1.0, and add them to the earlier ones."""
    for value in values:
        key = isinstance(value, bool), value  # in Python True == 1
        if key in earlier:
            one, other = to_json(earlier[key]), to_json(value)
            raise _no_choice(where, f"has the enum value {one:.80} twice, again as {other:.80}")
        earlier[key] = value


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _is_plain(value: Any) -> bool:
    if isinstance(value, str):
        return value.isascii() or _SURROGATE.search(value) is None
    return isinstance(value, int) or (isinstance(value, float) and math.isfinite(value))
