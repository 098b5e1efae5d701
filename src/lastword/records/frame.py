"""Reads records as pandas data frames, with arrays instead of Parquet's lists."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from lastword.records.columns import COLUMNS
from lastword.records.info import RunInfo, read_runs, run_name
from lastword.records.store import part_files, read_part

if TYPE_CHECKING:
    import pandas as pd


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
    if name == "candidates":
        return column.to_pylist()
    if name in ("methods", "t_readings"):
        return [None if pairs is None else _scores(pairs) for pairs in column.to_pylist()]
    if name in ("trajectory", "blind_trajectory"):
        return _matrices(column)
    return column.to_pandas()


def _scores(pairs: list[dict[str, Any]]) -> dict[str, np.ndarray | None]:
    read = {pair["key"]: pair["value"] for pair in pairs}
    return {name: None if u is None else np.array(u, dtype=float) for name, u in read.items()}


def _matrices(column: pa.ListArray) -> list[np.ndarray | None]:
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


def load_records(path: str | Path) -> "pd.DataFrame":
    """Return every record at or under a path, in the benchmark's order, one row per item.

    The columns are `run`, `model` and `template`, then `lastword.records.columns.COLUMNS`. `run` is
    the folder of the run relative to the path (`first` for `first/MODEL/BENCHMARK`, empty for the
    path itself); it distinguishes runs of one model on one benchmark. `trajectory` and
    `blind_trajectory` are arrays [candidates, depths], other lists of numbers arrays [candidates],
    `candidates` a list of texts, and `gates` a dictionary by gate. `benchmark` includes a template
    other than the default (`truthfulqa@own6`). Shards need not be merged.

    Args:
        path: A cell's folder, or any folder above.

    Raises:
        RecordError: There are no records, a part is damaged, or one run has two cells of one name.
    """
    import pandas as pd

    root = Path(path)
    frames = []
    for cell, info in read_runs(root, apart=True).items():
        parts = [read_part(path) for path in part_files(cell)]
        table = pa.concat_tables(parts or [COLUMNS.empty_table()])
        # By place; of repeated places the first counts.
        _, first = np.unique(table["place"].to_numpy(), return_index=True)
        frame = to_frame(table.take(first), info)
        frame.insert(0, "run", run_name(root, cell))
        frames.append(frame)
    return pd.concat(frames, ignore_index=True)
