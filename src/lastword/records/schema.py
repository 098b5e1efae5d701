"""The columns of Parquet: of every fact that is stored, by its type.

Nested numbers are lists of float64.
"""

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from lastword.records.record import Record, Row, kind
from lastword.rule.answer import Answer, Gate, Withheld
from lastword.rule.fact import facts
from lastword.rule.geometry import Columns, Inputs, Scores

# As files have had them since the first version; a newer column comes after these.
_ORDER = (
    "id benchmark kind place group prompt question prompt_tokens candidates candidate_tokens"
    " truthful trajectory t_scores blind_scores blind_trajectory blind_t_scores d_eff invariant"
    " regime operator decisive_layer lambda gates scores probabilities base_scores index base_index"
    " tied mc1_base mc1 mc2_base mc2 mc3_base mc3 methods seconds truncated boundary_moved withheld"
    " deferred error"
).split()

_NUMBERS = pa.list_(pa.float64())
# Pairs, as a map would hold them: `datasets` knows no maps.
_BY_NAME = pa.list_(pa.struct([("key", pa.string()), ("value", _NUMBERS)]))

TYPES: dict[Any, pa.DataType] = {
    str: pa.string(),
    bool: pa.bool_(),
    int: pa.int32(),
    float: pa.float64(),
    tuple[str, ...]: pa.list_(pa.string()),
    tuple[bool, ...]: pa.list_(pa.bool_()),
    tuple[int, ...]: pa.list_(pa.int32()),
    Scores: _NUMBERS,
    Columns: pa.list_(_NUMBERS),
    Inputs: pa.list_(_NUMBERS),
    Mapping[str, Gate]: pa.string(),
    Withheld: pa.string(),
    Mapping[str, Scores | None]: _BY_NAME,
}


def columns(*owners: type) -> pa.Schema:
    """The columns of what is stored of some dataclasses.

    Raises:
        TypeError: A fact's type has no form.
    """
    cells = (own for owner in owners for own in facts(owner) if own.column)
    types = {own.name: TYPES[kind(own)] for own in cells}
    names = [*_ORDER, *(name for name in types if name not in _ORDER)]
    return pa.schema([(name, types[name]) for name in names])


COLUMNS = columns(Record, Answer)

# Of runs with `--states` alone: float32 [depths, poolings, width] as bytes, little-endian.
STATES = "states"
ALL_COLUMNS = COLUMNS.append(pa.field(STATES, pa.binary()))


def to_table(rows: list[Row]) -> pa.Table:
    """Rows as an Arrow table; a column that a row lacks is null."""
    stateful = any(STATES in row for row in rows)
    return pa.Table.from_pylist(rows, schema=ALL_COLUMNS if stateful else COLUMNS)
