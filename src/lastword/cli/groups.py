"""Groups of options: a frozen dataclass that a command takes, each of its fields an option.

The dataclass may be the library's or a command's own: names, types and defaults are those of its
fields, and the help is the text beside each type, `Annotated[int, "How many."]`. A `typer.Option`
there adds what only a command line has: a range, another name.
"""

import copy
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import wraps
from inspect import Parameter
from types import MappingProxyType
from typing import Annotated, Any, TypeVar, get_args

import typer
from typer.models import OptionInfo

from lastword.model.options import helps

T = TypeVar("T")


@dataclass(frozen=True)
class Group:
    """Options that a command gets as one object.

    Attributes:
        read: Makes the object of the options' values.
        parameters: The options, as parameters that typer reads.
        leading: How many of them stand in the command's own order; the others stand last.
    """

    read: Callable[..., Any]
    parameters: Sequence[Parameter]
    leading: int | None = None


def options_of(kind: type, overrides: Mapping[str, Any] = MappingProxyType({})) -> list[Parameter]:
    """A dataclass as options, in the order of its fields.

    Args:
        kind: The dataclass.
        overrides: Annotations of fields that the command line has otherwise; None leaves one out.
    """
    told, parameters = helps(kind), []
    for f in fields(kind):
        annotation = overrides.get(f.name, f.type)
        if annotation is None:
            continue
        value_type, *marks = get_args(annotation)
        flag = (_switch(f.name, on=f.default is True),) if value_type is bool else ()
        written = (mark for mark in marks if isinstance(mark, OptionInfo))
        option = copy.copy(next(written, typer.Option(*flag)))
        option.help = option.help or told[f.name]
        default = Parameter.empty if f.default is MISSING else f.default
        parameters.append(parameter(f.name, Annotated[value_type, option], default))
    return parameters


def _switch(name: str, *, on: bool) -> str:
    """Write the flag of a field that is true or false; what is on unasked can be turned off."""
    flag = name.replace("_", "-")
    return f"--{flag}/--no-{flag}" if on else f"--{flag}"


def flattened(command: Callable[..., None]) -> Callable[..., None]:
    """The command as typer takes it: without groups, and with their options."""
    groups: dict[str, Group] = {}
    own: list[Parameter] = []
    last: list[Parameter] = []
    for parameter in inspect.signature(command, eval_str=True).parameters.values():
        group = _group_of(parameter.annotation)
        if group is None:
            own.append(parameter.replace(kind=Parameter.KEYWORD_ONLY))
        else:
            groups[parameter.name] = group
            own += group.parameters[: group.leading]
            last += [] if group.leading is None else group.parameters[group.leading :]

    @wraps(command)
    def run(**values: Any) -> None:
        objects = {
            name: group.read(**{p.name: values.pop(p.name) for p in group.parameters})
            for name, group in groups.items()
        }
        command(**values, **objects)

    for option in _marks([*own, *last], OptionInfo):
        option.show_envvar = option.envvar is not None  # all have one: told once, not of each
    run.__signature__ = inspect.Signature([*own, *last])  # type: ignore[attr-defined]
    run.__annotations__ = {p.name: p.annotation for p in (*own, *last)}
    return run


def _marks(parameters: Sequence[Parameter], kind: type[T]) -> Iterator[T]:
    """Yield what of a kind stands in the annotations of parameters."""
    for parameter in parameters:
        yield from (mark for mark in get_args(parameter.annotation)[1:] if isinstance(mark, kind))


def _group_of(annotation: Any) -> Group | None:
    for mark in get_args(annotation)[1:]:
        if isinstance(mark, Group):
            return mark
    if isinstance(annotation, type) and is_dataclass(annotation):
        return Group(annotation, options_of(annotation))
    return None


def parameter(name: str, annotation: Any, default: Any = None) -> Parameter:
    """An option as a parameter that typer reads."""
    return Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
