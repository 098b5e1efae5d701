"""Decision: an answered item as Python gives it: its JSON, its form in a notebook."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lastword.files.strict_json import strict
from lastword.rule.answer import Answer
from lastword.rule.fact import Fact, facts

if TYPE_CHECKING:
    import pandas as pd

SCHEMA = 1


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class Decision(Answer):
    """The answer of `Tracer.correct` (`rule.answer.Answer` has its fields) in its forms."""

    def _repr_html_(self) -> str:
        from lastword.records.table import notebook

        return notebook(self)

    def to_dict(self, *, full: bool = False) -> dict[str, Any]:
        """The JSON of a decision; `full` adds trajectories and t. What was not needed is null."""
        values = ((fact, fact.of(self)) for fact in facts(type(self)))
        content = {fact.name: plain(value) for fact, value in values if _in_json(fact, value, full)}
        name = {"id": content.pop("id")} if "id" in content else {}
        return {**name, "schema": SCHEMA, **content}


def _in_json(fact: Fact, value: Any, full: bool) -> bool:
    if fact.json in ("always", "never"):
        return fact.json == "always"
    return (full or fact.json == "given") and (value is not None or fact.json == "full")


def plain(value: Any) -> Any:
    """A fact's value as strict JSON has it."""
    if hasattr(value, "to_dict"):
        return plain(value.to_dict())
    if isinstance(value, Mapping):
        return {key: plain(own) for key, own in value.items()}
    return strict(value)


def to_frame(decisions: Iterable[Decision]) -> "pd.DataFrame":
    """A row a decision: its JSON with the candidates, each gate's numbers in columns of their own.

    The columns of a gate are `gates.NAME.value`, `gates.NAME.threshold` and `gates.NAME.holds`; a
    gate that a decision's regime does not have is null there.
    """
    import pandas as pd

    rows = ({**d.to_dict(), "id": d.id, "candidates": list(d.candidates)} for d in decisions)
    return pd.json_normalize([{"id": None, **record} for record in rows])
