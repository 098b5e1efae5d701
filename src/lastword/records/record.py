"""Record: one item with its answer and its metrics, a row of Parquet.

`gates` and `withheld` are JSON, as in `Decision.to_dict`. A failed item has its text and `error`;
the columns of its answer are null.
"""

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from lastword.errors import RecordError
from lastword.files.strict_json import to_json
from lastword.records.decision import Decision
from lastword.records.metrics import mc1, mc2, mc3
from lastword.rule.answer import Answer, Gate, Withheld
from lastword.rule.geometry import Columns, Scores
from lastword.rule.operators import OPERATORS
from lastword.text.items import Item
from lastword.text.tokens import EncodedItem

if TYPE_CHECKING:
    import pandas as pd

Row = dict[str, Any]

# Every metric with the kind of items that count for it. MC3 compares several truths with several
# falsehoods, so it belongs to the sets that MC2 counts.
_METRICS = {"mc1": (mc1, "mc1"), "mc2": (mc2, "mc2"), "mc3": (mc3, "mc2")}


@dataclass(frozen=True, eq=False, kw_only=True)
class Record:
    """One item of a run; fields that do not apply are None.

    Attributes:
        benchmark: The cell's benchmark, with its template if that is not the default.
        kind: The metric that the item is for; None for all.
        place: Index in the benchmark's item list.
        question: The question, for readers of reports.
        truthful: True for each candidate that is right.
        candidate_tokens: Number of each candidate's tokens.
        blind_tokens: Number of each candidate's tokens after the blind prompt; None without one.
        boundary_moved: True if the prompt's last token changed with the candidate.
        truncated: Prompt tokens dropped to fit the context.
        answer: The answer, in further columns; None if the item failed.
        mc1_base: MC1 of the base scores; mc2_base and mc3_base likewise.
        mc1: MC1 of the scores that decide; mc2 and mc3 likewise.
        seconds: Its share of the time that its group took, in seconds.
        shared: The item's `group`: items of one group are not independent.
        readings_disagree: True if the paper's readings of T and of I(M) choose different answers;
            None unless every reading was stored.
    """

    model: str = ""
    id: str | None = None
    benchmark: str = ""
    kind: str | None = None
    place: int = 0
    prompt: str
    question: str | None = None
    candidates: tuple[str, ...]
    truthful: tuple[bool, ...] | None = None
    prompt_tokens: int | None = None
    candidate_tokens: tuple[int, ...] | None = None
    blind_tokens: tuple[int, ...] | None = None
    boundary_moved: bool | None = None
    truncated: int | None = None
    answer: Answer | None = None
    mc1_base: float | None = None
    mc1: float | None = None
    mc2_base: float | None = None
    mc2: float | None = None
    mc3_base: float | None = None
    mc3: float | None = None
    seconds: float | None = None
    error: str | None = None
    shared: str | None = None
    readings_disagree: bool | None = None

    @property
    def decision(self) -> Answer:
        """The answer of an item that did not fail."""
        assert self.answer is not None, f"{self.id} failed"
        return self.answer

    @property
    def gain(self) -> float | None:
        """Corrected minus base MC1; None if the item does not count for it."""
        return None if self.mc1 is None or self.mc1_base is None else self.mc1 - self.mc1_base

    def to_row(self) -> Row:
        """Return the record as a row for Parquet."""
        row = {name: getattr(self, name) for name in _RECORD}
        if (answer := self.answer) is not None:
            row |= {name: getattr(answer, _FIELDS.get(name, name)) for name in _ANSWER}
            gates = {name: gate.to_dict() for name, gate in answer.gates.items()}
            withheld = answer.withheld
            row |= {
                "probabilities": answer.probabilities,
                "gates": json.dumps(gates),
                "withheld": None if withheld is None else to_json(withheld.to_dict()),
                "methods": _pairs(answer.methods),
                "t_readings": _pairs(answer.t_readings) or None,
            }
        return {name: _cell(value) for name, value in row.items()}

    @classmethod
    def of(cls, frame: "pd.DataFrame") -> list["Record"]:
        """Return the records of a frame's rows, one by one."""
        rows = frame.to_dict("records")
        return [cls.read({str(name): value for name, value in row.items()}) for row in rows]

    @classmethod
    def read(cls, row: Mapping[str, Any]) -> "Record":
        """Return the record in a row of a data frame (`records.frame`).

        Raises:
            RecordError: The row lacks a column that every item has.
        """
        values = _read(_RECORD, row) | {"model": str(row.get("model", ""))}
        try:
            if values.get("error") is None:
                names = ("id", *_ITEM_FIELDS, "truncated")
                same = {name: values[name] for name in names if name in values}
                answer = {_FIELDS.get(name, name): v for name, v in _read(_ANSWER, row).items()}
                operator = answer.get("operator", "base")
                method = "trace" if operator in OPERATORS else operator
                values["answer"] = Answer(**answer, **same, method=method)
            return cls(**values)
        except TypeError as error:
            raise RecordError(f"a record is not complete: {error}") from error


_ITEM_FIELDS = ("candidates", "truthful")  # of an item, its answer and its record


def _pairs(scores: Mapping[str, Any]) -> list[Row]:
    return [{"key": name, "value": _cell(u)} for name, u in scores.items()]


def _cell(value: Any) -> Any:
    """Return a value for Arrow: nan becomes null, tuples and arrays become lists."""
    if isinstance(value, float) and math.isnan(value):
        return None
    if isinstance(value, tuple):
        return list(value)
    return value.tolist() if hasattr(value, "tolist") else value


def _read_gates(gates: str | Mapping[str, Any]) -> dict[str, Gate]:
    read = json.loads(gates) if isinstance(gates, str) else gates
    # pandas adds None for a gate that only other rows have.
    gates = {name: dict(gate) for name, gate in read.items() if gate is not None}
    for gate in gates.values():
        if isinstance(gate["value"], str):  # JSON has no infinity
            gate["value"] = float(gate["value"])
    return {name: Gate(g["value"], g["threshold"], g["holds"]) for name, g in gates.items()}


def _read_withheld(withheld: str | Mapping[str, Any]) -> Withheld:
    read = json.loads(withheld) if isinstance(withheld, str) else withheld
    return Withheld(**{**read, "scores": _numbers(read["scores"])})


def _read_matrix(value: Any) -> Columns:
    matrix: Columns = np.stack([np.asarray(row, dtype=float) for row in value])
    return matrix


def _numbers(value: Any) -> Scores:
    return np.asarray(value, dtype=float)


def _tuple_of(convert: Callable[[Any], Any]) -> Callable[[Any], tuple[Any, ...]]:
    return lambda values: tuple(map(convert, values))


# The function that converts each column to a field, of a record and of its answer.
_RECORD: dict[str, Callable[[Any], Any]] = {
    **dict.fromkeys(("id", "benchmark", "kind", "prompt", "question", "error", "shared"), str),
    **dict.fromkeys(("place", "prompt_tokens", "truncated"), int),
    **dict.fromkeys(("mc1_base", "mc1", "mc2_base", "mc2", "mc3_base", "mc3", "seconds"), float),
    "candidates": _tuple_of(str),
    "truthful": _tuple_of(bool),
    "candidate_tokens": _tuple_of(int),
    "blind_tokens": _tuple_of(int),
    "boundary_moved": bool,
    "readings_disagree": bool,
}
_ANSWER: dict[str, Callable[[Any], Any]] = {
    **dict.fromkeys(("index", "base_index", "decisive_layer"), int),
    **dict.fromkeys(("tied", "deferred"), bool),
    **dict.fromkeys(("regime", "operator"), str),
    **dict.fromkeys(("d_eff", "invariant", "lambda"), float),
    **dict.fromkeys(
        ("scores", "base_scores", "t_scores", "blind_scores", "blind_t_scores"), _numbers
    ),
    **dict.fromkeys(("trajectory", "blind_trajectory", "content_free_scores"), _read_matrix),
    "gates": _read_gates,
    "withheld": _read_withheld,
    "methods": dict,
    "t_readings": dict,
}
_FIELDS = {"lambda": "mixing"}  # fields of an answer whose column has another name


def _read(columns: Mapping[str, Callable[[Any], Any]], row: Mapping[str, Any]) -> Row:
    return {
        name: convert(cell)
        for name, convert in columns.items()
        # Data frames have nan instead of null.
        if (cell := row.get(name)) is not None
        if not (isinstance(cell, float) and math.isnan(cell))
    }


@dataclass(frozen=True)
class Place:
    """The position of a record in its run; the fields are those of `Record`."""

    benchmark: str
    kind: str | None
    place: int


def record(
    where: Place,
    encoded: EncodedItem,
    decision: Decision,
    seconds: float,
    readings_disagree: bool | None = None,
) -> Row:
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
        readings_disagree=readings_disagree,
        answer=decision,
        **_metrics(where.kind, encoded.item.truthful, decision),
    ).to_row()


def failure(where: Place, item: Item, error: str) -> Row:
    """Return the row of an item that could not be answered, with its text and the error."""
    return Record(**_identity(where, item), error=error).to_row()


def _identity(where: Place, item: Item) -> dict[str, Any]:
    names = ("id", "prompt", "question", *_ITEM_FIELDS)
    identity = {name: getattr(item, name) for name in names}
    return vars(where) | identity | {"shared": item.group}


def _metrics(kind: str | None, truthful: tuple[bool, ...] | None, answer: Answer) -> dict[str, Any]:
    scores: dict[str, float] = {}
    for name, (metric, counted_kind) in _METRICS.items():
        if truthful is not None and kind in (None, counted_kind):
            scores[f"{name}_base"] = metric(answer.base_scores, truthful)
            scores[name] = metric(answer.scores, truthful)
    return scores
