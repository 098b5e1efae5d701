"""Columns of records: decisions as rows of Parquet, as data frames, and back."""

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from lastword.errors import RecordError
from lastword.files.strict_json import to_json
from lastword.records.decision import Decision, Withheld
from lastword.records.info import RunInfo
from lastword.rule.geometry import Columns, Scores
from lastword.rule.operators import OPERATORS, Gate
from lastword.text.items import Item

if TYPE_CHECKING:
    import pandas as pd

Row = dict[str, Any]

_NUMBERS = pa.list_(pa.float64())
_MATRIX = pa.list_(_NUMBERS)
_TEXTS, _WHOLES, _FLAGS = (pa.list_(t) for t in (pa.string(), pa.int32(), pa.bool_()))
# Lists of pairs instead of maps, which `datasets` does not support.
_BY_NAME = pa.list_(pa.struct([("key", pa.string()), ("value", _NUMBERS)]))

# `error` is null for an answered item; a failed one has no other column but its text and position.
COLUMNS = pa.schema(
    [
        ("id", pa.string()),
        ("benchmark", pa.string()),
        ("kind", pa.string()),
        ("place", pa.int32()),
        ("prompt", pa.string()),
        ("question", pa.string()),
        ("shared", pa.string()),
        ("candidates", _TEXTS),
        ("truthful", _FLAGS),
        ("prompt_tokens", pa.int32()),
        ("candidate_tokens", _WHOLES),
        ("blind_tokens", _WHOLES),
        ("boundary_moved", pa.bool_()),
        ("index", pa.int32()),
        ("base_index", pa.int32()),
        ("tied", pa.bool_()),
        ("regime", pa.string()),
        ("operator", pa.string()),
        ("d_eff", pa.float64()),
        ("invariant", pa.float64()),
        ("scores", _NUMBERS),
        ("probabilities", _NUMBERS),
        ("base_scores", _NUMBERS),
        ("gates", pa.string()),
        ("decisive_layer", pa.int32()),
        ("lambda", pa.float64()),
        ("truncated", pa.int32()),
        ("withheld", pa.string()),
        ("deferred", pa.bool_()),
        ("trajectory", _MATRIX),
        ("t_scores", _NUMBERS),
        ("blind_trajectory", _MATRIX),
        ("blind_t_scores", _NUMBERS),
        ("blind_scores", _NUMBERS),
        ("content_free_scores", _MATRIX),
        ("t_readings", _BY_NAME),
        ("methods", _BY_NAME),
        *(
            (f"{metric}{of}", pa.float64())
            for metric in ("mc1", "mc2", "mc3")
            for of in ("_base", "")
        ),
        ("seconds", pa.float64()),
        ("error", pa.string()),
    ]
)


def row_of(decision: Decision) -> Row:
    """Return a decision as a row for Parquet."""
    return {c.name: _cell(decision.value(c.name), c.type) for c in COLUMNS if c.name != "error"}


def failure(item: Item, error: str, **where: Any) -> Row:
    """Return the row of an item that could not be answered: its text, position and error."""
    text = {"id": item.id, "prompt": item.prompt, "question": item.question, "shared": item.group}
    truthful = None if item.truthful is None else list(item.truthful)
    lists = {"candidates": list(item.candidates), "truthful": truthful}
    return text | lists | where | {"error": error}


def _cell(value: Any, kind: pa.DataType) -> Any:
    """Return a value for Arrow: nan becomes null, and arrays become lists."""
    if isinstance(value, float) and math.isnan(value):
        return None
    if isinstance(value, dict) and kind == _BY_NAME:
        return [{"key": name, "value": _cell(u, _NUMBERS)} for name, u in value.items()]
    if isinstance(value, dict):
        return to_json(value)
    return value.tolist() if hasattr(value, "tolist") else value


def to_table(rows: list[Row]) -> pa.Table:
    """Return rows as an Arrow table; missing columns are null."""
    return pa.Table.from_pylist(rows, schema=COLUMNS)


def to_frame(table: pa.Table, info: RunInfo) -> "pd.DataFrame":
    """Return the records of a cell as a frame, with the model and template of its run."""
    import pandas as pd

    columns: dict[str, Any] = {
        "model": [info["model"]] * table.num_rows,
        "template": [info["template"]["name"]] * table.num_rows,
    }
    for name in table.column_names:
        columns[name] = _column(name, table[name].combine_chunks())
    return pd.DataFrame(columns)


def _column(name: str, column: pa.Array) -> Any:
    if name in ("gates", "withheld"):
        return [None if text is None else json.loads(text) for text in column.to_pylist()]
    if column.type == _TEXTS:
        return column.to_pylist()
    if column.type == _BY_NAME:
        return [None if pairs is None else _by_name(pairs) for pairs in column.to_pylist()]
    return _matrices(column) if column.type == _MATRIX else column.to_pandas()


def _by_name(pairs: list[dict[str, Any]]) -> dict[str, Scores | None]:
    read = {pair["key"]: pair["value"] for pair in pairs}
    return {name: None if u is None else np.array(u, dtype=float) for name, u in read.items()}


def _matrices(column: pa.ListArray) -> list[Columns | None]:
    """Convert lists of equal lists to arrays [candidates, depths], without Python numbers."""
    # `at` has the bounds of each item among the rows, and `starts` those of each row in `numbers`.
    rows = column.values
    starts, at = rows.offsets.to_numpy(), column.offsets.to_numpy()
    numbers = rows.values.to_numpy(zero_copy_only=False)
    spans = zip(column.is_valid().to_pylist(), at[:-1], at[1:], strict=True)
    return [
        numbers[starts[a] : starts[b]].reshape(b - a, -1) if valid else None
        for valid, a, b in spans
    ]


def without_nan(row: Mapping[Any, Any]) -> Row:
    """Return a row of a data frame with None for nan, which frames have instead of null."""
    empty = {name for name, cell in row.items() if isinstance(cell, float) and math.isnan(cell)}
    return {name: None if name in empty else cell for name, cell in row.items()}


def _gates(gates: Mapping[str, Mapping[str, Any]]) -> dict[str, Gate]:
    # JSON has no infinity: it is text.
    values = {name: gate["value"] for name, gate in gates.items()}
    values |= {name: float(text) for name, text in values.items() if isinstance(text, str)}
    return {n: Gate(values[n], gate["threshold"], gate["holds"]) for n, gate in gates.items()}


# The function that converts a cell of a data frame to a field of a decision.
_PUT: dict[pa.DataType, Callable[[Any], Any]] = {
    pa.string(): str,
    pa.int32(): int,
    pa.float64(): float,
    pa.bool_(): bool,
    _TEXTS: tuple,
    _WHOLES: lambda value: tuple(map(int, value)),
    _FLAGS: lambda value: tuple(map(bool, value)),
    _NUMBERS: lambda value: np.asarray(value, dtype=float),
    _MATRIX: lambda value: np.asarray(value, dtype=float),
    _BY_NAME: dict,
}
_OF_JSON: dict[str, Callable[[Any], Any]] = {"gates": _gates, "withheld": Withheld.from_dict}
# The columns of a decision's fields with their functions; a schema is slow to iterate over.
_READ = [
    (column.name, _OF_JSON.get(column.name, _PUT[column.type]))
    for column in COLUMNS
    if column.name in ("lambda", *(field.name for field in fields(Decision)))
]


def read(row: Mapping[Any, Any]) -> Decision:
    """Return the decision in a row of a data frame; RecordError if the item has no answer."""
    cells = without_nan(row)
    values: dict[str, Any] = {"model": str(row.get("model", ""))}
    for name, convert in _READ:
        if (cell := cells.get(name)) is not None:
            values["mixing" if name == "lambda" else name] = convert(cell)
    operator = values.get("operator", "base")
    try:
        return Decision(**values, method="trace" if operator in OPERATORS else operator)
    except TypeError as error:
        raise RecordError(f"a record is not complete: {error}") from error


def decisions(frame: "pd.DataFrame") -> list[Decision]:
    """Return the decisions in the rows of a frame."""
    return [read(row) for row in frame.to_dict("records")]
