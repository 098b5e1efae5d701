"""Record: one item as it was asked, answered and judged, a row of Parquet.

`Record` and its `Answer` say what there is; what is written into a column and what is read from it
follow from the types of their fields (`FORMS`), and so do the columns (`records.schema`). `gates`
and `withheld` are JSON, as `Decision.to_dict` has them. A failed item keeps its text and has
`error`; what it would have said is null.
"""

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from types import NoneType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args, get_origin

import numpy as np

from lastword.errors import RecordError
from lastword.files.strict_json import to_json
from lastword.records.decision import Decision
from lastword.records.metrics import mc1, mc2, mc3
from lastword.rule.answer import Answer, Gate, Withheld
from lastword.rule.fact import Fact, fact, facts
from lastword.rule.geometry import Columns, Inputs, Scores
from lastword.rule.operators import OPERATORS
from lastword.text.items import Item

if TYPE_CHECKING:
    import pandas as pd

    from lastword.text.tokens import EncodedItem

Row = dict[str, Any]

# MC3 asks whether every truth beats every falsehood: a question for the set with several truths.
_COUNTS = {"mc1": ("mc1", None), "mc2": ("mc2", None), "mc3": ("mc2", None)}
_METRICS = {"mc1": mc1, "mc2": mc2, "mc3": mc3}


@dataclass(frozen=True, eq=False, kw_only=True)
class Record:
    """One item of a run; what it lacks is None."""

    model: str = field(default="", metadata=fact("Whose answer it is.", column=False))
    id: str | None = field(default=None, metadata=fact("Name of the item."))
    benchmark: str = field(
        default="", metadata=fact("Of the cell, with its template where that is not the default.")
    )
    kind: str | None = field(
        default=None, metadata=fact("The metric that the item is for; null for all.")
    )
    place: int = field(default=0, metadata=fact("In the benchmark's item list."))
    group: int = field(default=0, metadata=fact("Of the plan: items of one number shared a batch."))
    prompt: str = field(metadata=fact("Text before the answer."))
    question: str | None = field(default=None, metadata=fact("For people."))
    candidates: tuple[str, ...] = field(metadata=fact("The answers to choose from."))
    truthful: tuple[bool, ...] | None = field(default=None, metadata=fact("Which are right."))
    prompt_tokens: int | None = field(default=None, metadata=fact("How many the prompt has."))
    candidate_tokens: tuple[int, ...] | None = field(
        default=None, metadata=fact("How many each candidate has.")
    )
    blind_tokens: tuple[int, ...] | None = field(
        default=None, metadata=fact("The same after the blind prompt; null without one.")
    )
    boundary_moved: bool | None = field(
        default=None, metadata=fact("Whether the prompt's last token changed with the candidate.")
    )
    truncated: int | None = field(
        default=None, metadata=fact("Prompt tokens dropped to fit the context.")
    )
    answer: Answer | None = field(
        default=None, metadata=fact("Columns of its own; None where the item failed.", column=False)
    )
    mc1_base: float | None = field(default=None, metadata=fact("MC1 of the base scores."))
    mc1: float | None = field(default=None, metadata=fact("MC1 of the scores that decide."))
    mc2_base: float | None = field(default=None, metadata=fact("MC2 of the base scores."))
    mc2: float | None = field(default=None, metadata=fact("MC2 of the scores that decide."))
    mc3_base: float | None = field(default=None, metadata=fact("MC3 of the base scores."))
    mc3: float | None = field(default=None, metadata=fact("MC3 of the scores that decide."))
    seconds: float | None = field(
        default=None, metadata=fact("Its share of the time that its group took.")
    )
    error: str | None = field(default=None, metadata=fact("Why it could not be answered."))
    shared: str | None = field(
        default=None, metadata=fact("The item's own `group`: others of it are not independent.")
    )

    @property
    def decision(self) -> Answer:
        """The answer of an item that did not fail."""
        assert self.answer is not None, f"{self.id} failed"
        return self.answer

    @property
    def gain(self) -> float | None:
        """MC1 after minus before; None where the item does not count for it."""
        return None if self.mc1 is None or self.mc1_base is None else self.mc1 - self.mc1_base

    def to_row(self) -> Row:
        """Return what Parquet holds of it."""
        return _row(self) | ({} if self.answer is None else _row(self.answer))

    @classmethod
    def of(cls, frame: "pd.DataFrame") -> list["Record"]:
        """Return the records of a frame's rows, one by one."""
        rows = frame.to_dict("records")
        return [cls.read({str(name): value for name, value in row.items()}) for row in rows]

    @classmethod
    def read(cls, row: Mapping[str, Any]) -> "Record":
        """The record of a row of a data frame (`records.frame`).

        Args:
            row: By column; what is null, nan or left out is what its field has by default.

        Raises:
            RecordError: The row lacks what every item has.
        """
        own = _fields(cls, row) | {"model": str(row.get("model", ""))}
        try:
            if own.get("error") is None:
                shared = {name: own[name] for name in ("id", *_SHARED) if name in own}
                own_fields = _fields(Answer, row)
                operator = own_fields.get("operator", "base")
                method = "trace" if operator in OPERATORS else operator
                own["answer"] = Answer(**own_fields, **shared, method=method)
            return cls(**own)
        except TypeError as error:
            raise RecordError(f"a record is not whole: {error}") from error


_SHARED = ("candidates", "truthful", "truncated")


class Form(NamedTuple):
    """Write a type into its column, and read it from there."""

    write: Callable[[Any], Any]
    read: Callable[[Any], Any]


def _read_gates(gates: str | Mapping[str, Any]) -> dict[str, Gate]:
    read = json.loads(gates) if isinstance(gates, str) else gates
    # A frame that pandas made of dictionaries has None for a gate that another row has.
    gates = {name: dict(gate) for name, gate in read.items() if gate is not None}
    for gate in gates.values():
        if isinstance(gate["value"], str):  # an infinity
            gate["value"] = float(gate["value"])
    return {name: Gate(g["value"], g["threshold"], g["holds"]) for name, g in gates.items()}


def _read_withheld(withheld: str | Mapping[str, Any]) -> Withheld:
    read = json.loads(withheld) if isinstance(withheld, str) else withheld
    return Withheld(**{**read, "scores": np.asarray(read["scores"], dtype=float)})


def _read_matrix(value: Any) -> Columns:
    matrix: Columns = np.stack([np.asarray(row, dtype=float) for row in value])
    return matrix


FORMS: dict[Any, Form] = {
    str: Form(str, str),
    bool: Form(bool, bool),
    int: Form(int, int),
    float: Form(lambda v: None if math.isnan(v) else v, float),
    tuple[str, ...]: Form(list, lambda v: tuple(map(str, v))),
    tuple[bool, ...]: Form(list, lambda v: tuple(map(bool, v))),
    tuple[int, ...]: Form(list, lambda v: tuple(map(int, v))),
    Scores: Form(np.ndarray.tolist, lambda v: np.asarray(v, dtype=float)),
    Columns: Form(np.ndarray.tolist, _read_matrix),
    Inputs: Form(np.ndarray.tolist, _read_matrix),
    Mapping[str, Gate]: Form(
        lambda gates: json.dumps({name: gate.to_dict() for name, gate in gates.items()}),
        _read_gates,
    ),
    Withheld: Form(lambda w: to_json(w.to_dict()), _read_withheld),
    Mapping[str, Scores | None]: Form(
        lambda m: [{"key": n, "value": None if u is None else u.tolist()} for n, u in m.items()],
        dict,
    ),
}


def kind(own: Fact) -> Any:
    """The type that a fact is stored by, null aside.

    Raises:
        TypeError: It has no form.
    """
    kinds = [kind for kind in get_args(own.type) if kind is not NoneType]
    plain = kinds[0] if NoneType in get_args(own.type) else own.type
    plain = str if get_origin(plain) is Literal else plain
    if plain not in FORMS:
        raise TypeError(f"{own.name} is {own.type}, and no column has a form for that: see FORMS")
    return plain


@cache
def _columns(owner: type) -> tuple[tuple[Fact, Form, bool], ...]:
    """List what is stored of a dataclass: each fact, its form, and whether it is a field."""
    names = {own.name for own in fields(owner)}
    columns = [own for own in facts(owner) if own.column]
    return tuple((own, FORMS[kind(own)], own.attribute in names) for own in columns)


def _row(owner: Record | Answer) -> Row:
    cls: type = type(owner)
    values = ((own.name, how, own.of(owner)) for own, how, _ in _columns(cls))
    return {name: None if value is None else how.write(value) for name, how, value in values}


def _fields(owner: type, row: Mapping[str, Any]) -> dict[str, Any]:
    return {
        own.attribute: how.read(cell)
        for own, how, is_field in _columns(owner)
        # A data frame may have nan for null.
        if is_field and (cell := row.get(own.name)) is not None
        if not (isinstance(cell, float) and math.isnan(cell))
    }


@dataclass(frozen=True)
class Place:
    """Place a record in its run, by the fields that `Record` has."""

    benchmark: str
    kind: str | None
    place: int
    group: int


def record(where: Place, encoded: "EncodedItem", decision: Decision, seconds: float) -> Row:
    """Return the row of an answered item."""
    prompt, blind = encoded.prompt, encoded.blind
    return Record(
        **_identity(where, encoded.item),
        prompt_tokens=prompt.prompt_tokens,
        candidate_tokens=prompt.candidate_tokens,
        blind_tokens=None if blind is None else blind.candidate_tokens,
        boundary_moved=prompt.boundary_moved,
        truncated=prompt.truncated,
        seconds=seconds,
        answer=decision,
        **_metrics(where.kind, encoded.item.truthful, decision),
    ).to_row()


def failure(where: Place, item: Item, error: str) -> Row:
    """The row of an item that could not be answered: its text and why."""
    return Record(**_identity(where, item), error=error).to_row()


def _identity(where: Place, item: Item) -> dict[str, Any]:
    own = {name: getattr(item, name) for name in ("id", "prompt", "question", *_SHARED[:2])}
    return vars(where) | own | {"shared": item.group}


def _metrics(kind: str | None, truthful: tuple[bool, ...] | None, answer: Answer) -> dict[str, Any]:
    scores: dict[str, float] = {}
    for name, metric in _METRICS.items():
        if truthful is not None and kind in _COUNTS[name]:
            scores[f"{name}_base"] = metric(answer.base_scores, truthful)
            scores[name] = metric(answer.scores, truthful)
    return scores
