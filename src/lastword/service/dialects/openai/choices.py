"""Lists of options in the fields of OpenAI's clients, and the chosen option in their form."""

import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Any

from jsonschema import (  # type: ignore[import-untyped]
    Draft202012Validator,
    ValidationError,
    validators,
)
from pydantic import BaseModel, Field
from referencing import Registry

from lastword.files.strict_json import to_json
from lastword.service.refusal import Refusal
from lastword.service.schema import Text
from lastword.text.question import MOST_CHOICES, Choice, Multi, Option

_SURROGATE = re.compile("[\ud800-\udfff]")
_MOST_PARTS = 16  # of a schema, joined by references and allOf
_MOST_CHARACTERS = 2**14  # of an answer
_MOST_WORK = 2**18  # keywords and constants that all answers are compared with
_REFERENCE = 30  # keywords that take as long as following a reference
# Keywords that may exclude some arrays of the options, and not those that are tried.
_OF_ARRAYS = ("anyOf", "contains", "if", "not", "oneOf", "prefixItems", "unevaluatedItems")
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

    @property
    def answers(self) -> list[Any]:
        """The answers that may be given, as JSON values; of arrays, the extreme ones."""
        values = [*self.values, *([None] if self.nullable else [])]
        if self.several:
            values = [[], [*self.values], *([value] for value in self.values)]
        return [value if self.key is None else {self.key: value} for value in values]

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

    They may be the items of an array, and either may be the only property of an object. The schema
    is refused unless it allows every answer that may be given.
    """
    where, key, part = "schema", None, _merged(schema, schema, "schema")
    if isinstance(properties := part.get("properties"), Mapping):
        if len(properties) != 1:
            names = ", ".join(map(repr, properties)) or "none"
            raise _no_choice(f"{where}.properties", f"has {names:.200}; expected one property")
        ((key, part),) = properties.items()
        if not _is_plain(key):
            raise _no_choice(where, "has a property with a lone surrogate in its name")
        where = f"{where}.properties.{key:.80}"
        part = _merged(part, schema, where)
    instructions = part.get("description")
    if several := part.get("type") == "array":
        if barred := [word for word in _OF_ARRAYS if word in part]:
            raise _no_choice(where, f"has {barred[0]!r}, which this server cannot apply here")
        where += ".items"
        part = _merged(part.get("items"), schema, where)
    pairs = _pairs(part, schema, where, most + 1)  # null is no option
    _require_distinct([value for value, _ in pairs], where)
    values = tuple(value for value, _ in pairs if value is not None)
    if not values:
        raise _no_choice(where, "has null as its only enum value")
    choices = Choices(
        values,
        is_json=True,
        key=key,
        instructions=instructions if isinstance(instructions, str) else "",
        descriptions=tuple(text for value, text in pairs if value is not None),
        nullable=len(values) < len(pairs),
        several=several,
    )
    _require_valid(choices, schema)
    return choices


def _no_choice(where: str, what: str) -> Refusal:
    form = 'an enum such as {"enum": ["one", "other"]}, or anyOf constants'
    return Refusal("no_choices", f"response_format: {where} {what}. A choice is {form}")


def _merged(part: Any, schema: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return a part of a schema with what `$ref` and `allOf` add to it; the outer part wins."""
    whole: dict[str, Any] = {}
    parts = [part]
    for one in parts:  # which grows
        if not isinstance(one, Mapping):
            raise _no_choice(where, "is no object")
        for key, value in one.items():
            if key == "$ref":
                parts.append(_target(value, schema, where))
            elif key == "allOf" and isinstance(value, list):
                parts += value[:_MOST_PARTS]
            else:
                whole.setdefault(key, value)
        if len(parts) > _MOST_PARTS:
            raise _no_choice(where, f"refers to itself, or to more than {_MOST_PARTS} parts")
    return whole


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
    word = "anyOf" if "anyOf" in part else "oneOf"
    forms = part.get(word)
    if "enum" in part or "const" in part or not isinstance(forms, list):
        return _constants(part, where, most)
    _require_few(forms, where, most)
    pairs: list[tuple[Any, str | None]] = []
    for place, form in enumerate(forms):
        inner = f"{where}.{word}[{place}]"
        pairs += _constants(_merged(form, schema, inner), inner, most)
        _require_few(pairs, where, most)
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
    return pairs


def _require_distinct(values: Iterable[Any], where: str) -> None:
    """Refuse values that are equal in JSON, such as 1 and 1.0."""
    earlier: dict[tuple[bool, Any], Any] = {}
    for value in values:
        key = isinstance(value, bool), value  # in Python True == 1
        if key in earlier:
            one, other = to_json(earlier[key]), to_json(value)
            raise _no_choice(where, f"has the enum value {one:.80} twice, again as {other:.80}")
        earlier[key] = value


def _require_valid(choices: Choices, schema: Mapping[str, Any]) -> None:
    """Refuse a schema that excludes an answer that may be given, or that takes long to apply."""
    work = 0

    def counted(part: Mapping[str, Any]) -> Iterable[tuple[str, Any]]:
        nonlocal work
        work += len(part) + (_REFERENCE if "$ref" in part else 0)
        work += len(part["enum"]) if isinstance(part.get("enum"), list) else 0
        if work > _MOST_WORK:
            raise _no_choice("schema", "takes too long to apply to all answers")
        return part.items()

    kind = validators.create(
        Draft202012Validator.META_SCHEMA,
        Draft202012Validator.VALIDATORS | {"pattern": _refuse, "patternProperties": _refuse},
        type_checker=Draft202012Validator.TYPE_CHECKER,
        applicable_validators=counted,
    )
    validator = kind(dict(schema), registry=Registry())  # which fetches nothing
    for answer in choices.answers:
        try:
            error = next(validator.iter_errors(answer), None)
        except Refusal:
            raise
        except Exception as fault:  # an invalid schema, or one that refers to itself
            what = f"cannot be applied: {type(fault).__name__}: {fault}"
            raise _no_choice("schema", f"{what:.200}") from fault
        if error is not None:
            place = "schema" + "".join(f".{part}" for part in error.absolute_schema_path)
            what = f"excludes the answer {to_json(answer):.80}"
            raise _no_choice(f"{place:.200}", f"{what}, or this server cannot apply it")


def _refuse(*_: Any) -> Iterable[ValidationError]:
    """Refuse a keyword with a regular expression, which may take very long."""
    yield ValidationError("not applied")


def _is_plain(value: Any) -> bool:
    if isinstance(value, str):
        short = len(value) <= _MOST_CHARACTERS
        return short and (value.isascii() or _SURROGATE.search(value) is None)
    return isinstance(value, int) or (isinstance(value, float) and math.isfinite(value))
