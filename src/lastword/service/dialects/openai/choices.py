"""Lists of options in the fields of OpenAI's clients, and the chosen options in their form."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from lastword.files.strict_json import to_json
from lastword.service.refusal import Refusal
from lastword.service.schema import Json, Object
from lastword.text.question import MOST_CHOICES, Choice, Multi, Option, Value
from lastword.trust.groups import normal

_MOST_REFERENCES = 16
# Keywords that exclude no answer. A schema with another keyword than these and those that are read
# here is refused, because it may exclude one.
_NOTES = set(
    "$comment $defs $id $schema default definitions deprecated description examples format "
    "readOnly title".split()
)
_TYPES: dict[type, tuple[str, ...]] = {
    str: ("string",),
    bool: ("boolean",),
    int: ("integer", "number"),
    float: ("number",),
    type(None): ("null",),
}
NO_CHOICES = (
    "this server does not generate text; it chooses among the answers that you supply: pass them as"
    ' structured_outputs {"choice": [...]}, or as response_format with a json_schema that is an'
    " enum or an object with one property that is an enum (or an array of one: several may apply)"
)


@dataclass(frozen=True)
class Choices:
    """The options of an answer, and the form in which the client gets it.

    It is text, JSON or the property `key` of an object. With `nullable`, null ("none of these") is
    an answer; with `several`, it is an array of all options that apply.
    """

    values: tuple[Json, ...]
    is_json: bool = False
    key: str | None = None
    instructions: str = ""
    descriptions: tuple[str | None, ...] = ()
    nullable: bool = False
    several: bool = False

    @property
    def options(self) -> tuple[Value, ...]:
        """The values of the question's options: a boolean as it is, other values as text."""
        return tuple(v if isinstance(v, str | bool) else to_json(v) for v in self.values)

    def question(self, before: Sequence[str]) -> Choice | Multi:
        """Return the question, with these instructions before those of the schema."""
        options = [Option(*pair) for pair in zip_longest(self.options, self.descriptions)]
        instructions = "\n".join(filter(None, (*before, self.instructions)))
        if self.several:
            return Multi(instructions, options)
        return Choice(instructions, options, self.nullable)

    def written(self, chosen: Sequence[Value]) -> str:
        """Return the chosen options as the client gets them; () for none of these."""
        values = [self._value(one) for one in chosen]
        if values and not self.is_json:
            return _text(values[0])
        value = values if self.several else values[0] if values else None
        return to_json(value if self.key is None else {self.key: value})

    def _value(self, chosen: Value) -> Json:
        """Return the client's value of an option, which a served question may spell otherwise."""
        if chosen in self.options:
            return self.values[self.options.index(chosen)]
        return next(v for v in self.values if normal(_text(v)) == normal(_text(chosen)))


def _text(value: Json) -> str:
    return value if isinstance(value, str) else to_json(value)


def require_few(entries: Collection[Json]) -> None:
    """Refuse more options than a question may have, before each of them is looked at."""
    if len(entries) > MOST_CHOICES + 1:  # null is no option
        what = f"there are {len(entries):,} entries, a choice has at most {MOST_CHOICES} options"
        raise Refusal("too_many_candidates", what)


def choices_of(schema: Object) -> Choices:
    """Return the options of a JSON schema: of an enum, or of constants in `anyOf`.

    They may be the items of an array, and either may be the only property of an object. A schema
    that may exclude an answer is refused.
    """
    key, part = None, _followed(schema, schema)
    if "properties" in part:
        key, inner = _property(part)
        part = _followed(inner, schema)
    instructions = part.get("description")
    if several := part.get("type") == "array":
        _require_keywords(part, {"type", "items", "uniqueItems"})
        part = _followed(part.get("items"), schema)
    pairs = _pairs(part, schema)
    options = [(value, text) for value, text in pairs if value is not None]
    if not options or (several and len(options) < len(pairs)):
        raise _no_choice("null is the only value of the enum, or one in an array")
    return Choices(
        tuple(value for value, _ in options),
        is_json=True,
        key=key,
        instructions=instructions if isinstance(instructions, str) else "",
        descriptions=tuple(text for _, text in options),
        nullable=len(options) < len(pairs),
        several=several,
    )


def _property(part: Object) -> tuple[str, Json]:
    _require_keywords(part, {"type", "properties", "required", "additionalProperties"})
    properties = part["properties"]
    if not isinstance(properties, Mapping) or len(properties) != 1:
        raise _no_choice(f"properties are {properties!r:.200}; expected one property")
    ((key, inner),) = properties.items()
    if part.get("type", "object") != "object" or part.get("required", []) not in ([], [key]):
        what = f"type is another than object, or properties are required beside {key!r:.80}"
        raise _no_choice(what)
    return key, inner


def _require_keywords(part: Object, known: Collection[str]) -> None:
    if words := sorted(part.keys() - _NOTES - {*known}):
        raise _no_choice(f"the keyword {words[0]!r:.80} cannot be applied here")


def _no_choice(what: str) -> Refusal:
    form = 'an enum such as {"enum": ["one", "other"]}, or anyOf constants'
    return Refusal("no_choices", f"response_format: {what}. A choice is {form}")


def _followed(part: Json, schema: Object) -> Object:
    """Return a part of a schema, or the part that its `$ref` names with the notes beside it."""
    notes: Object = {}
    for _ in range(_MOST_REFERENCES):
        if not isinstance(part, dict):
            raise _no_choice(f"{part!r:.40} is no object")
        if "$ref" not in part:
            return part | notes
        _require_keywords(part, {"$ref"})
        notes = {word: note for word, note in part.items() if word != "$ref"} | notes
        part = _target(part["$ref"], schema)
    raise _no_choice(f"a part refers to itself, or over {_MOST_REFERENCES} references")


def _target(reference: Json, schema: Object) -> Json:
    for place in ("$defs", "definitions"):
        definitions, name = schema.get(place), str(reference).removeprefix(f"#/{place}/")
        if isinstance(definitions, Mapping) and name != reference and name in definitions:
            return definitions[name]
    expected = "#/$defs/NAME or #/definitions/NAME of the same schema"
    raise _no_choice(f"{str(reference)!a:.80} is not there; expected {expected}")


def _pairs(part: Object, schema: Object) -> list[tuple[Json, str | None]]:
    if not isinstance(forms := part.get("anyOf"), list):
        return _constants(part)
    _require_keywords(part, {"type", "anyOf"})
    require_few(forms)
    pairs: list[tuple[Json, str | None]] = []
    for form in forms:
        pairs += _constants(_followed(form, schema))
        require_few(pairs)
    _require_types(pairs, part)
    return pairs


def _constants(part: Object) -> list[tuple[Json, str | None]]:
    description = part.get("description")
    if "const" in part:
        _require_keywords(part, {"type", "const"})
        pairs = [(part["const"], description if isinstance(description, str) else None)]
    elif isinstance(values := part.get("enum"), list) and values:
        _require_keywords(part, {"type", "enum"})
        require_few(values)
        pairs = [(value, None) for value in values]
    elif part.get("type") == "null":
        _require_keywords(part, {"type"})
        pairs = [(None, None)]
    else:
        raise _no_choice(f"{part!r:.80} has no enum and no const")
    _require_types(pairs, part)
    return pairs


def _require_types(pairs: Sequence[tuple[Json, str | None]], part: Object) -> None:
    """Refuse a value that is no text, number, boolean or null, or that a type excludes."""
    kinds = part.get("type", [])
    for value, _ in pairs:
        if (names := _TYPES.get(type(value))) is None:
            raise _no_choice(f"{value!a:.80} is no text, number, true or false")
        if "type" in part and not any(
            name == kinds or (isinstance(kinds, list) and name in kinds) for name in names
        ):
            raise _no_choice(f"the type {kinds!r:.40} excludes the answer {to_json(value):.80}")
