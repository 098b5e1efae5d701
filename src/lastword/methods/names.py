"""The names of methods: each file registers its methods here, and options follow after `@`."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from lastword.errors import InputError
from lastword.methods.contract import AGGREGATIONS, Aggregation, Facts, Method

Make = TypeVar("Make", bound=Callable[..., Method])


@dataclass(frozen=True)
class MethodEntry:
    """A registered method.

    Attributes:
        make: Function that makes the method from facts of the model and, if it has one, a number.
        number: Description of the number after `@`; empty if it takes none.
        needed: True if that number has no default.
        aggregates: True if it accepts `@sum`, `@mean` and `@bytes`.
        compared: The name by which it is compared by default; empty if only by request.
    """

    make: Callable[..., Method]
    summary: str
    source: str
    number: str = ""
    needed: bool = False
    aggregates: bool = False
    compared: str = ""


_ENTRIES: dict[str, MethodEntry] = {}
METHODS: Mapping[str, MethodEntry] = _ENTRIES


def method(
    name: str,
    summary: str,
    source: str,
    *,
    number: str = "",
    needed: bool = False,
    aggregates: bool = False,
    compared: str | None = None,
) -> Callable[[Make], Make]:
    """Return a decorator that registers a function that makes a method; see `MethodEntry`.

    It is compared by default under its name, unless `compared` is another name or empty.
    """

    def register(make: Make) -> Make:
        by_default = name if compared is None else compared
        _ENTRIES[name] = MethodEntry(make, summary, source, number, needed, aggregates, by_default)
        return make

    return register


def entry(name: str) -> MethodEntry:
    """Return a registered method by its full name, which may include options.

    Raises:
        InputError: No such method.
    """
    plain = name.partition("@")[0]
    if plain not in METHODS:
        raise InputError(f"no method {plain}; known: {', '.join(METHODS)}")
    return METHODS[plain]


def resolve(names: Sequence[str], facts: Facts) -> dict[str, Method]:
    """Return methods by their full names, in order, each once.

    Raises:
        InputError: No such method, or an option that it does not take.
    """
    return {name: _make(name, facts) for name in dict.fromkeys(names)}


def correction_of(name: str, facts: Facts) -> Method:
    """Return a method that can decide items.

    Raises:
        InputError: No such method, or one that needs whole vocabularies.
    """
    correction = _make(name, facts)
    if correction.needs.token_scorer is not None:
        raise InputError(
            f"{name} needs the whole vocabulary, so it is not a correction: use `lastword compare`"
        )
    return correction


def _make(name: str, facts: Facts) -> Method:
    row = entry(name)
    aggregation: dict[str, Aggregation] = {}
    numbers: list[float] = []
    for text in name.split("@")[1:]:
        if row.aggregates and text in AGGREGATIONS and not aggregation:
            aggregation["aggregation"] = text
        elif row.number and not numbers:
            numbers.append(_number(text, name, row))
        else:
            raise InputError(f"method {name} takes no @{text}; {_options(row)}")
    if row.needed and not numbers:
        raise InputError(f"method {name} needs {row.number}: {name}@0.75")
    return replace(row.make(facts, *numbers, **aggregation), name=name)


def _options(row: MethodEntry) -> str:
    options = [row.number] if row.number else []
    options += [f"one of {', '.join(AGGREGATIONS)}"] * row.aggregates
    return f"it takes {' and '.join(options) or 'no option'}"


def _number(text: str, name: str, row: MethodEntry) -> float:
    try:
        return float(text)
    except ValueError as error:
        raise InputError(f"method {name}: expected {row.number}, got {text!r}") from error
