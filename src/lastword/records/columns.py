"""The Parquet schema of records."""

import pyarrow as pa

from lastword.records.decision import COLUMNS as _COLUMNS
from lastword.records.decision import Kind, Row

_NUMBERS = pa.list_(pa.float64())
_TYPES: dict[Kind, pa.DataType] = {
    "text": pa.string(),
    "whole": pa.int32(),
    "number": pa.float64(),
    "flag": pa.bool_(),
    "texts": pa.list_(pa.string()),
    "wholes": pa.list_(pa.int32()),
    "flags": pa.list_(pa.bool_()),
    "numbers": _NUMBERS,
    "matrix": pa.list_(_NUMBERS),
    # Lists of pairs instead of maps, which `datasets` does not support.
    "by name": pa.list_(pa.struct([("key", pa.string()), ("value", _NUMBERS)])),
}

# `error` is null for an answered item; a failed one has no other column but its text and position.
COLUMNS = pa.schema(
    [(name, _TYPES[column.kind]) for name, column in _COLUMNS.items() if column.kind is not None]
).append(pa.field("error", pa.string()))


def to_table(rows: list[Row]) -> pa.Table:
    """Return rows as an Arrow table; missing columns are null."""
    return pa.Table.from_pylist(rows, schema=COLUMNS)
