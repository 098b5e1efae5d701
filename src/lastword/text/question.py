"""Questions about a text: a choice, several options, a predicate, or a score of ordered levels."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from typing import Annotated, Any, ClassVar

from pydantic import PlainValidator, ValidationInfo
from pydantic.dataclasses import dataclass

from lastword.errors import InputError
from lastword.files.cells import text_fault
from lastword.files.fields import CONFIG, Flag, Text, checked, shown
from lastword.files.wording import counted

Value = str | bool | int

MOST_CHOICES = 255  # levels too


def _value(value: Any) -> Value:
    if not isinstance(value, Value):
        raise InputError(f"an option is a text, a boolean or an integer, not {shown(value)}")
    if isinstance(value, str) and (fault := text_fault(value)) is not None:
        raise InputError(f"an option {fault}")
    if isinstance(value, str) and not value.strip():
        raise InputError("an option is blank; give it text or drop it")
    return value


@dataclass(frozen=True, config=CONFIG)
class Option:
    """One possible answer.

    Attributes:
        value: The value in an answer: a text, a boolean or an integer.
        description: Its meaning, for the prompt; never scored.

    Raises:
        InputError: Another type, a blank value, or invalid text.
    """

    value: Annotated[Value, PlainValidator(_value)]
    description: Text | None = None

    _check = checked(lambda fault: InputError(f"an option: {fault}"))

    @property
    def text(self) -> str:
        """The text to score: the value, in digits for an integer, `true` or `false`."""
        return self.value if isinstance(self.value, str) else str(self.value).lower()


def _options(values: Any, info: ValidationInfo) -> tuple[Option, ...]:
    """Return values and objects as options; refuse too few or too many, and equal ones."""
    noun = str(info.field_name)[:-1]
    if not isinstance(values, Sequence) or isinstance(values, str | bytes):
        raise ValueError(f"is a list, not {shown(values)}")
    options = tuple(map(_option, values))
    if not 2 <= len(options) <= MOST_CHOICES:
        raise InputError(f"{counted(len(options), noun)}, expected 2 to {MOST_CHOICES}")
    kinds = [(type(option.value), option.value) for option in options]
    for option, kind in zip(options, kinds, strict=True):
        if kinds.count(kind) > 1:
            raise InputError(f"{shown(option.value)} occurs twice in {noun}s; remove one")
        if noun == "level" and not isinstance(option.value, str):
            raise InputError(f"a level is a text, not {shown(option.value)}: quote it")
    return options


def _option(value: Any) -> Option:
    if isinstance(value, Mapping):
        return Option(**{str(name): entry for name, entry in value.items()})
    return value if isinstance(value, Option) else Option(value)


Options = Annotated[Sequence[Value | Option], PlainValidator(_options)]


@dataclass(frozen=True, config=CONFIG)
class _Asked:
    """A question for the prompt, with options in the field `_listed`."""

    instructions: Text

    _check = checked(InputError)
    _listed: ClassVar[str] = "choices"

    @property
    def options(self) -> tuple[Option, ...]:
        """The options, in the caller's order; the levels of a score from the lowest."""
        return tuple(getattr(self, self._listed))


@dataclass(frozen=True, config=CONFIG)
class Choice(_Asked):
    """The question which one of some options applies to a text.

    Attributes:
        instructions: The question, for the prompt; may be empty.
        choices: 2 to 255 options, each a text, a boolean, an integer or an `Option`, no two equal.
            The text `true` and the boolean are different options.
        abstain: Answer "none of these" if the certificate defers.

    Raises:
        InputError: Too few or too many options, equal or invalid ones.
    """

    choices: Options
    abstain: Flag = False


@dataclass(frozen=True, config=CONFIG)
class Multi(_Asked):
    """The question which options apply to a text: none, one or several.

    Attributes:
        instructions: The question, for the prompt; may be empty.
        choices: The options, as in a `Choice`.

    Raises:
        InputError: Too few or too many options, equal or invalid ones.
    """

    choices: Options

    @property
    def predicates(self) -> "tuple[Predicate, ...]":
        """One predicate per option, in the caller's order."""
        return tuple(Predicate(self._statement(option)) for option in self.options)

    def _statement(self, option: Option) -> str:
        more = "" if option.description is None else f" ({option.description})"
        return f"{self.instructions}\nDoes this apply: {option.text}{more}?".lstrip()


@dataclass(frozen=True, config=CONFIG)
class Predicate(_Asked):
    """A question about a text with the answers yes and no.

    Attributes:
        instructions: The statement or question.
        yes: Description of yes, for the prompt.
        no: Description of no.

    Raises:
        InputError: There are neither instructions nor a description.
    """

    instructions: Text = ""
    yes: Text | None = None
    no: Text | None = None

    def __post_init__(self) -> None:
        """Refuse a predicate of nothing."""
        if not self.instructions.strip() and self.yes is None and self.no is None:
            raise InputError("a predicate needs instructions, or what counts as yes or as no")

    @property
    def options(self) -> tuple[Option, ...]:
        """Yes and no, in this order."""
        return Option("yes", self.yes), Option("no", self.no)


@dataclass(frozen=True, config=CONFIG)
class Score(_Asked):
    """The question which of some ordered levels a text has, and which level to expect.

    Attributes:
        instructions: The question, for the prompt; may be empty.
        levels: 2 to 255 levels from the lowest to the highest, counted from 0: each a text or an
            `Option` with a text, no two equal.

    Raises:
        InputError: Too few or too many levels, equal or invalid ones.
    """

    levels: Options
    _listed: ClassVar[str] = "levels"


Single = Choice | Predicate | Score
Question = Single | Multi

_KINDS = {kind.__name__.lower(): kind for kind in (Choice, Multi, Predicate, Score)}


def question_from(value: Any, name: str) -> Question:
    """Return a question from its JSON; an InputError has its name.

    An object with `type` (`choice`, `multi`, `predicate`, `score`), `instructions`, and `choices`,
    `levels`, or `yes` and `no`; a choice may have `abstain`. Each choice is a text, a boolean, an
    integer, or an object with `value` and `description`.
    """
    if not isinstance(value, Mapping):
        raise InputError(f"question {name!r} is {shown(value)}, expected an object")
    kind = value.get("type")
    if not isinstance(kind, str) or kind not in _KINDS:
        actual = "no type" if kind is None else f"the type {shown(kind)}"
        raise InputError(f"question {name!r} has {actual}; expected one of {', '.join(_KINDS)}")
    entries = {str(k): entry for k, entry in value.items() if k != "type" and entry is not None}
    try:
        return _KINDS[kind](**{"instructions": ""} | entries)
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
    for field in fields(question):
        if field.name in ("choices", "levels"):
            entries[field.name] = [
                each.value if each.description is None else asdict(each)
                for each in question.options
            ]
        elif (value := getattr(question, field.name)) not in (None, "", False):
            entries[field.name] = value
    return entries
