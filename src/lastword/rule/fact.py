"""Fact: what is known of a field beside its type, so that each of its forms follows from one line.

`fact` is the metadata of a dataclass's field, and `facts` reads all of a class back: JSON
(`records.decision`), Parquet and frames (`records.record`, `records.schema`) and the service's
answer (`service.schema`) are made from those alone. The classes are dataclasses and no pydantic
models: the rule is pure and the core has no pydantic, nothing that comes from outside is read into
them, and a million are made. The service, which has pydantic, builds its model from the same lines.
"""

from dataclasses import dataclass, fields, replace
from functools import cache
from typing import Any, Literal, get_type_hints

# When JSON has a fact: always; where there is one; where everything is asked for; where everything
# is asked for and there is one; never.
Presence = Literal["always", "given", "full", "full, given", "never"]


@dataclass(frozen=True)
class Fact:
    """One field, or a property that is told beside it.

    Attributes:
        doc: What it says, in one sentence.
        name: Its key in JSON and its column; the attribute's name where that is left out.
        json: When JSON has it.
        column: Whether records have a column of it.
        reason: Whether it is a reason of the rule, which falls away where other scores decide.
        also: Properties that JSON has after it.
        also_columns: Properties that JSON has after it, and that records have a column of.
        attribute: What holds it.
        type: The attribute's type.
    """

    doc: str
    name: str = ""
    json: Presence = "always"
    column: bool = True
    reason: bool = False
    also: tuple[str, ...] = ()
    also_columns: tuple[str, ...] = ()
    attribute: str = ""
    type: Any = None

    def of(self, owner: object) -> Any:
        """Return its value."""
        return getattr(owner, self.attribute)


def fact(doc: str, **form: Any) -> dict[str, Fact]:
    """Return the metadata of a field; `form` as `Fact` has it."""
    return {"fact": Fact(doc, **form)}


def facts(owner: type) -> tuple[Fact, ...]:
    """Return every fact of a dataclass in order; a property stands after the field that names it.

    Raises:
        TypeError: A field without a fact.
    """
    return _facts(owner)


@cache
def _facts(owner: type) -> tuple[Fact, ...]:
    types, listed = get_type_hints(owner), list[Fact]()
    for field in fields(owner):
        if "fact" not in field.metadata:
            raise TypeError(f"{owner.__name__}.{field.name} has no fact: say what it is by `fact`")
        own: Fact = field.metadata["fact"]
        name = own.name or field.name
        listed.append(replace(own, name=name, attribute=field.name, type=types[field.name]))
        for name in (*own.also, *own.also_columns):
            getter = getattr(owner, name).fget
            doc, type = getter.__doc__.splitlines()[0], get_type_hints(getter)["return"]
            column = name in own.also_columns
            listed.append(Fact(doc, name, own.json, column, attribute=name, type=type))
    return tuple(listed)
