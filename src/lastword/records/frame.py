"""Reads records as pandas data frames, with arrays instead of Parquet's lists."""

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from lastword.records.columns import COLUMNS, to_frame
from lastword.records.info import read_runs, run_name
from lastword.records.store import part_files, read_part

if TYPE_CHECKING:
    import pandas as pd


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
