"""Groups of options: a frozen dataclass that a command takes, each of its fields an option.

The dataclass may be the library's or a command's own: names, types and defaults are those of its
fields, and the help is the text beside each type, `Annotated[int, "How many."]`. A `typer.Option`
there adds what only a command line has: a range, another name.
"""

import copy
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import wraps
from inspect import Parameter
from types import MappingProxyType
from typing import Annotated, Any, get_args, get_origin

import typer
from typer.models import ParameterInfo

from lastword.model.options import helps


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
    """Return a dataclass as options, in the order of its fields."""
    told, parameters = helps(kind), []
    for f in fields(kind):
        if (annotation := overrides.get(f.name, f.type)) is not None:
            default = Parameter.empty if f.default is MISSING else f.default
            parameters.append(parameter(f.name, annotation, default, told.get(f.name)))
    return parameters


def parameter(
    name: str, annotation: Any, default: Any = None, told: str | None = None
) -> Parameter:
    """Return an option, or an argument, as a parameter that typer reads.

    Args:
        name: Its name; `as_json` is written `--json`, and `list_` `--list`.
        annotation: Its type, with its help and what typer has of it beside it.
        default: Its value where it is left out.
        told: Its help, where the annotation has none.
    """
    kind, *marks = get_args(annotation) if get_origin(annotation) is Annotated else [annotation]
    flag = [_switch(name, on=default is True)] if kind is bool else []
    written = (mark for mark in marks if isinstance(mark, ParameterInfo))
    mark = copy.copy(next(written, typer.Option(*flag)))
    mark.help = mark.help or next((text for text in marks if isinstance(text, str)), told)
    return Parameter(
        name, Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, mark]
    )


def _switch(name: str, *, on: bool) -> str:
    """Write the flag of a field that is true or false; what is on unasked can be turned off."""
    flag = name.removeprefix("as_").strip("_").replace("_", "-")
    return f"--{flag}/--no-{flag}" if on else f"--{flag}"


def flattened(command: Callable[..., None]) -> Callable[..., None]:
    """Return the command as typer takes it: without groups, and with their options."""
    groups: dict[str, Group] = {}
    own: list[Parameter] = []
    last: list[Parameter] = []
    for given in inspect.signature(command, eval_str=True).parameters.values():
        group = _group_of(given.annotation)
        if group is None:
            own.append(parameter(given.name, given.annotation, given.default))
        else:
            groups[given.name] = group
            own += group.parameters[: group.leading]
            last += [] if group.leading is None else group.parameters[group.leading :]

    @wraps(command)
    def run(**values: Any) -> None:
        objects = {
            name: group.read(**{p.name: values.pop(p.name) for p in group.parameters})
            for name, group in groups.items()
        }
        command(**values, **objects)

    for option in (mark for p in (*own, *last) for mark in get_args(p.annotation)[1:]):
        option.show_envvar = option.envvar is not None  # all have one: told once, not of each
    run.__signature__ = inspect.Signature([*own, *last])  # type: ignore[attr-defined]
    run.__annotations__ = {p.name: p.annotation for p in (*own, *last)}
    return run


def _group_of(annotation: Any) -> Group | None:
    for mark in get_args(annotation)[1:]:
        if isinstance(mark, Group):
            return mark
    if isinstance(annotation, type) and is_dataclass(annotation):
        return Group(annotation, options_of(annotation))
    return None
