"""The Parquet columns of records; nested numbers are lists of float64."""

import pyarrow as pa

from lastword.records.record import Row

_NUMBERS = pa.list_(pa.float64())
# Lists of pairs instead of maps, which `datasets` does not support.
_BY_NAME = pa.list_(pa.struct([("key", pa.string()), ("value", _NUMBERS)]))

# The order must not change, so that old files can be read; new columns come last.
COLUMNS = pa.schema(
    [
        ("id", pa.string()),
        ("benchmark", pa.string()),
        ("kind", pa.string()),
        ("place", pa.int32()),
        ("prompt", pa.string()),
        ("question", pa.string()),
        ("prompt_tokens", pa.int32()),
        ("candidates", pa.list_(pa.string())),
        ("candidate_tokens", pa.list_(pa.int32())),
        ("truthful", pa.list_(pa.bool_())),
        ("trajectory", pa.list_(_NUMBERS)),
        ("t_scores", _NUMBERS),
        ("blind_scores", _NUMBERS),
        ("blind_trajectory", pa.list_(_NUMBERS)),
        ("blind_t_scores", _NUMBERS),
        ("d_eff", pa.float64()),
        ("invariant", pa.float64()),
        ("regime", pa.string()),
        ("operator", pa.string()),
        ("decisive_layer", pa.int32()),
        ("lambda", pa.float64()),
        ("gates", pa.string()),
        ("scores", _NUMBERS),
        ("probabilities", _NUMBERS),
        ("base_scores", _NUMBERS),
        ("index", pa.int32()),
        ("base_index", pa.int32()),
        ("tied", pa.bool_()),
        ("mc1_base", pa.float64()),
        ("mc1", pa.float64()),
        ("mc2_base", pa.float64()),
        ("mc2", pa.float64()),
        ("mc3_base", pa.float64()),
        ("mc3", pa.float64()),
        ("methods", _BY_NAME),
        ("seconds", pa.float64()),
        ("truncated", pa.int32()),
        ("boundary_moved", pa.bool_()),
        ("withheld", pa.string()),
        ("deferred", pa.bool_()),
        ("error", pa.string()),
        ("blind_tokens", pa.list_(pa.int32())),
        ("shared", pa.string()),
        ("content_free_scores", pa.list_(_NUMBERS)),
        ("t_readings", _BY_NAME),
        ("readings_disagree", pa.bool_()),
    ]
)


def to_table(rows: list[Row]) -> pa.Table:
    """Return rows as an Arrow table; missing columns are null."""
    return pa.Table.from_pylist(rows, schema=COLUMNS)
