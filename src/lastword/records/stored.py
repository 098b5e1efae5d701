"""Storage of cells: on disk with some columns in memory, or whole in memory.

A record has a few kilobytes, mostly texts and trajectories. Only `COUNT_COLUMNS` stay in memory, as
Arrow columns. Trajectories are read in slices, and whole records only for the few items that are
shown.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import pyarrow as pa
from jaxtyping import Int

from lastword.records.cells import COUNT_COLUMNS, SLICE, Cell
from lastword.records.columns import COLUMNS, to_table
from lastword.records.decision import Row
from lastword.records.frame import to_columns, to_frame
from lastword.records.info import RunInfo, read_runs
from lastword.records.ragged import Places
from lastword.records.store import part_files, read_part

if TYPE_CHECKING:
    import pandas as pd


Part: TypeAlias = Path | pa.Table  # a file, or records in memory


@dataclass(frozen=True, eq=False)
class Stored:
    """The parts of a cell; a `RecordSource` of its records.

    Attributes:
        ends: Cumulative number of records up to the end of each part [parts].
        places: Index in the cell of each record of the parts; -1 for a record that an earlier part
            has too [records of all parts].
    """

    info: RunInfo
    parts: tuple[Part, ...]
    ends: Int[np.ndarray, " parts"]
    places: Int[np.ndarray, " stored"]

    def slices(self, names: Sequence[str]) -> "Iterator[tuple[Places, pd.DataFrame]]":
        """Yield slices (see `RecordSource`); a valid column that no record has is null."""
        columns = [name for name in names if name in COLUMNS.names]
        tables: list[pa.Table] = []
        first = 0
        for place, part in enumerate(self.parts):
            tables.append(_table(part, columns))
            if sum(t.num_rows for t in tables) >= SLICE or place == len(self.parts) - 1:
                rows = self.places[first : self.ends[place]]
                table = pa.concat_tables(tables)
                yield (
                    rows[rows >= 0],
                    to_columns(table if rows.min() >= 0 else table.filter(rows >= 0)),
                )
                tables, first = [], self.ends[place]

    def whole(self, places: Places) -> "pd.DataFrame":
        """Return whole records; see `RecordSource`."""
        # `at` is the inverse of `places`: the row, counted over all parts, of each record.
        rows = np.flatnonzero(self.places >= 0)
        at = np.empty(len(rows), dtype=int)
        at[self.places[rows]] = rows
        # Each part is opened once, whatever the order of the places.
        distinct, inverse = np.unique(at[places], return_inverse=True)
        part = np.searchsorted(self.ends, distinct, side="right")
        tables = [COLUMNS.empty_table()]
        for number in np.unique(part):
            start = self.ends[number - 1] if number else 0
            table = _table(self.parts[number], COLUMNS.names)
            tables.append(table.take(distinct[part == number] - start))
        return to_frame(pa.concat_tables(tables).take(inverse), self.info)


def _table(part: Part, columns: Sequence[str]) -> pa.Table:
    if isinstance(part, pa.Table):
        return part.select([name for name in columns if name in part.column_names])
    return read_part(part, columns)


def cell_of(rows: Sequence[Row], info: RunInfo) -> Cell:
    """Return the cell made of records in memory."""
    return _cell(info, (to_table(list(rows)),))


def read_cells(path: Path) -> list[Cell]:
    """Return every cell at or under a path, with only `COUNT_COLUMNS` in memory."""
    return [_cell(info, tuple(part_files(folder))) for folder, info in read_runs(path).items()]


def _cell(info: RunInfo, parts: tuple[Part, ...]) -> Cell:
    names = ("place", *COUNT_COLUMNS)
    tables = [_table(part, names) for part in parts]
    ends = np.cumsum([table.num_rows for table in tables], dtype=int)
    table = pa.concat_tables([COLUMNS.empty_table().select(names), *tables])
    # Of repeated places the first counts.
    _, first = np.unique(table["place"].to_numpy(), return_index=True)
    places = np.full(table.num_rows, -1)
    places[first] = np.arange(len(first))
    columns = [table[name].combine_chunks().take(pa.array(first)) for name in COUNT_COLUMNS]
    records = to_columns(pa.table(columns, names=list(COUNT_COLUMNS)))
    return Cell(info["model"], info["benchmark"], records, Stored(info, parts, ends, places))
