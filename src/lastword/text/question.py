"""Questions about a text: a choice, several options, a predicate, or a score of ordered levels."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from lastword.errors import InputError
from lastword.files.cells import text_fault
from lastword.files.wording import counted

Value = str | bool

MOST_CHOICES = 255  # levels too


@dataclass(frozen=True)
class Option:
    """One possible answer.

    Attributes:
        value: The value in an answer: a text or a boolean.
        description: Its meaning, for the prompt; never scored.

    Raises:
        InputError: Another type, a blank value, or invalid text.
    """

    value: Value
    description: str | None = None

    def __post_init__(self) -> None:
        """Refuse an invalid value."""
        if not isinstance(self.value, Value):
            kind, value = type(self.value).__name__, self.value
            raise InputError(
                f"an option is a text or a boolean, not {kind} {value!r:.80}: quote it"
            )
        if isinstance(self.value, str) and not self.value.strip():
            raise InputError("an option is blank; give it text or drop it")
        _require_text("an option", self.text)
        if self.description is not None:
            _require_text(f"the description of {self.value!r}", self.description)

    @property
    def text(self) -> str:
        """The text to score: the value, or `true` or `false` for a boolean."""
        return self.value if isinstance(self.value, str) else str(self.value).lower()


@dataclass(frozen=True)
class _OfChoices:
    """Fields of a choice and of a question with several answers."""

    instructions: str
    choices: Sequence[Value | Option]

    def __post_init__(self) -> None:
        """Convert plain values to options, and refuse invalid ones."""
        _require_text("instructions", self.instructions)
        object.__setattr__(self, "choices", _options(self.choices, "choices"))

    @property
    def options(self) -> tuple[Option, ...]:
        """The options, in the caller's order."""
        return _as_options(self.choices)


@dataclass(frozen=True)
class Choice(_OfChoices):
    """The question which one of some options applies to a text.

    Attributes:
        instructions: The question, for the prompt; may be empty.
        choices: 2 to 255 options, each a text, a boolean or an `Option`, no two equal. The text
            `true` and the boolean are different options.
        abstain: Answer "none of these" if the certificate defers.

    Raises:
        InputError: Too few or too many options, equal or invalid ones.
    """

    abstain: bool = False

    def __post_init__(self) -> None:
        """Convert plain values to options, and refuse invalid ones."""
        super().__post_init__()
        if not isinstance(self.abstain, bool):
            raise InputError(f"abstain is true or false, not {self.abstain!r:.80}")


@dataclass(frozen=True)
class Multi(_OfChoices):
    """The question which options apply to a text: none, one or several.

    Attributes:
        instructions: The question, for the prompt; may be empty.
        choices: The options, as in a `Choice`.

    Raises:
        InputError: Too few or too many options, equal or invalid ones.
    """

    @property
    def predicates(self) -> "tuple[Predicate, ...]":
        """One predicate per option, in the caller's order."""
        return tuple(Predicate(self._statement(option)) for option in self.options)

    def _statement(self, option: Option) -> str:
        more = "" if option.description is None else f" ({option.description})"
        return f"{self.instructions}\nDoes this apply: {option.text}{more}?".lstrip()


@dataclass(frozen=True)
class Predicate:
    """A question about a text with the answers yes and no.

    Attributes:
        instructions: The statement or question.
        yes: Description of yes, for the prompt.
        no: Description of no.

    Raises:
        InputError: There are neither instructions nor a description.
    """

    instructions: str = ""
    yes: str | None = None
    no: str | None = None

    def __post_init__(self) -> None:
        """Refuse a predicate of nothing."""
        _require_text("instructions", self.instructions)
        if not self.instructions.strip() and self.yes is None and self.no is None:
            raise InputError("a predicate needs instructions, or what counts as yes or as no")

    @property
    def options(self) -> tuple[Option, ...]:
        """Yes and no, in this order."""
        return Option("yes", self.yes), Option("no", self.no)


@dataclass(frozen=True)
class Score:
    """The question which of some ordered levels a text has, and which level to expect.

    Attributes:
        instructions: The question, for the prompt; may be empty.
        levels: 2 to 255 levels from the lowest to the highest, counted from 0: each a text or an
            `Option` with a text, no two equal.

    Raises:
        InputError: Too few or too many levels, equal or invalid ones.
    """

    instructions: str
    levels: Sequence[str | Option]

    def __post_init__(self) -> None:
        """Convert texts to options, and refuse invalid ones."""
        _require_text("instructions", self.instructions)
        options = _options(self.levels, "levels")
        if any(isinstance(option.value, bool) for option in options):
            raise InputError("a level is a text, not a boolean: quote it")
        object.__setattr__(self, "levels", options)

    @property
    def options(self) -> tuple[Option, ...]:
        """The levels, from 0."""
        return _as_options(self.levels)


Single = Choice | Predicate | Score
Question = Single | Multi

_KINDS: dict[str, type[Question]] = {
    "choice": Choice,
    "multi": Multi,
    "predicate": Predicate,
    "score": Score,
}
_LISTS, _TEXTS = ("choices", "levels"), {"instructions", "yes", "no"}


def question_from(value: Any, name: str) -> Question:
    """Return a question from its JSON.

    Args:
        value: An object with `type` (`choice`, `multi`, `predicate`, `score`), `instructions`, and
            `choices`, `levels`, or `yes` and `no`; a choice may have `abstain`. Each choice is a
            text, a boolean, or an object with `value` and `description`.
        name: Name of the question, for messages.

    Raises:
        InputError: It is not a question.
    """
    if not isinstance(value, Mapping):
        raise InputError(f"question {name!r} is {type(value).__name__}, expected an object")
    kind = value.get("type")
    if kind is None:
        raise InputError(f"question {name!r} has no type; give one of {', '.join(_KINDS)}")
    if not isinstance(kind, str) or kind not in _KINDS:
        raise InputError(f"question {name!r} has type {kind!r}; known: {', '.join(_KINDS)}")
    keys = [field.name for field in fields(_KINDS[kind])]
    if more := [key for key in value if key not in ("type", *keys)]:
        names = ", ".join(("type", *keys))
        raise InputError(f"question {name!r} has the key {more[0]!r}; a {kind} has {names}")
    arguments = {key: value[key] for key in keys if value.get(key) is not None}
    try:
        for key in arguments.keys() & _TEXTS:
            _require_text(key, arguments[key])
        lists = {key: _entries(value, key) for key in keys if key in _LISTS}
        return _KINDS[kind](**{"instructions": ""} | arguments | lists)
    except InputError as error:
        raise InputError(f"question {name!r}: {error}") from error


def question_digest(question: Question) -> str:
    """Return a digest of a question's kind, instructions and options."""
    options = [[option.text, option.description] for option in question.options]
    if isinstance(question, Choice):  # the order of its options does not matter
        options.sort(key=str)
    parts = [type(question).__name__, question.instructions, options]
    return hashlib.sha256(json.dumps(parts, ensure_ascii=False).encode()).hexdigest()


def question_to(question: Question) -> dict[str, Any]:
    """Return the JSON of a question for `question_from`, without empty fields."""
    entries: dict[str, Any] = {"type": type(question).__name__.lower()}
    if question.instructions:
        entries["instructions"] = question.instructions
    match question:
        case Choice() | Multi():
            entries["choices"] = [_written(option) for option in question.options]
            if isinstance(question, Choice) and question.abstain:
                entries["abstain"] = True
        case Score():
            entries["levels"] = [_written(option) for option in question.options]
        case Predicate():
            described = {"yes": question.yes, "no": question.no}
            entries |= {key: text for key, text in described.items() if text is not None}
    return entries


def _written(option: Option) -> Any:
    if option.description is None:
        return option.value
    return {"value": option.value, "description": option.description}


def _entries(value: Mapping[str, Any], key: str) -> list[Any]:
    entries = value.get(key)
    if not isinstance(entries, list | tuple):
        actual = "is missing" if entries is None else f"is {type(entries).__name__}"
        raise InputError(f"{key} {actual}, expected a list")
    return [_entry(entry, key) for entry in entries]


def _entry(entry: Any, key: str) -> Option:
    described = entry if isinstance(entry, Mapping) else {"value": entry}
    if "value" not in described or set(described) - {"value", "description"}:
        names = ", ".join(map(repr, described))
        raise InputError(f"an entry of {key} has value and description, not {names}")
    if (description := described.get("description")) is not None:
        _require_text("description", description)
    return Option(described["value"], description)


def _options(values: Any, name: str) -> tuple[Option, ...]:
    """Return plain values as options; refuse too few or too many, and equal ones."""
    if isinstance(values, str | bytes) or not isinstance(values, Sequence):
        raise InputError(f"{name} is a list, not {type(values).__name__}")
    options = _as_options(values)
    if not 2 <= len(options) <= MOST_CHOICES:
        raise InputError(f"{counted(len(options), name[:-1])}, expected 2 to {MOST_CHOICES}")
    keys: set[tuple[type, Value]] = set()
    for option in options:
        if (key := (type(option.value), option.value)) in keys:
            raise InputError(f"{option.value!r:.80} occurs twice in {name}; remove one")
        keys.add(key)
    return options


def _as_options(values: Sequence[Value | Option]) -> tuple[Option, ...]:
    return tuple(v if isinstance(v, Option) else Option(v) for v in values)


def _require_text(name: str, text: Any) -> None:
    if not isinstance(text, str):
        raise InputError(f"{name} is a text, not {type(text).__name__}")
    if (fault := text_fault(text)) is not None:
        raise InputError(f"{name} {fault}")
