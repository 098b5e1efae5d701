"""Cells as they are stored: on disk with some columns in memory, or whole in memory.

A record is some kilobytes, of which texts and trajectories are most. What is counted and judged
over all items at once (`COUNT_COLUMNS`) is kept as Arrow columns; trajectories pass through memory
a slice at a time, and whole records are read of the few that are shown.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from jaxtyping import Int

from lastword.files.folder import Folder
from lastword.records.cells import COUNT_COLUMNS, SLICE, Cell
from lastword.records.columns import Places
from lastword.records.frame import to_columns, to_frame
from lastword.records.info import RunInfo, read_runs
from lastword.records.parts import part_files, read_part
from lastword.records.record import Row
from lastword.records.schema import ALL_COLUMNS, COLUMNS, STATES, to_table

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, eq=False)
class Disk:
    """The parts of a cell; a `RecordSource` of its records.

    Attributes:
        ends: How many records the parts have up to the end of each [parts].
        places: Where each record of the parts stands in the cell; -1 where another part has it too
            and comes first [records of all parts].
    """

    info: RunInfo
    parts: tuple[Folder, ...]
    ends: Int[np.ndarray, " parts"]
    places: Int[np.ndarray, " stored"]

    def slices(self, names: Sequence[str]) -> "Iterator[tuple[Places, pd.DataFrame]]":
        """Yield slices as `RecordSource` does; a valid column that no record has is null."""
        columns = [name for name in names if name in ALL_COLUMNS.names]
        tables: list[pa.Table] = []
        first = 0
        for place, path in enumerate(self.parts):
            tables.append(read_part(path, columns))
            much = STATES in columns or sum(t.num_rows for t in tables) >= SLICE
            if much or place == len(self.parts) - 1:
                rows = self.places[first : self.ends[place]]
                table = pa.concat_tables(tables)
                yield (
                    rows[rows >= 0],
                    to_columns(table if rows.min() >= 0 else table.filter(rows >= 0)),
                )
                tables, first = [], self.ends[place]

    def whole(self, places: Places) -> "pd.DataFrame":
        """Return whole records, as `RecordSource` does."""
        rows = np.flatnonzero(self.places >= 0)
        at = np.empty(len(rows), dtype=int)
        at[self.places[rows]] = rows
        distinct, inverse = np.unique(at[places], return_inverse=True)
        part = np.searchsorted(self.ends, distinct, side="right")
        tables = [COLUMNS.empty_table()]
        for number in np.unique(part):
            start = self.ends[number - 1] if number else 0
            tables.append(read_part(self.parts[number]).take(distinct[part == number] - start))
        return to_frame(pa.concat_tables(tables).take(inverse), self.info)


@dataclass(frozen=True, eq=False)
class Memory:
    """The records of a cell as an Arrow table, one row per item; a `RecordSource` of them."""

    info: RunInfo
    table: pa.Table

    def slices(self, names: Sequence[str]) -> "Iterator[tuple[Places, pd.DataFrame]]":
        """Yield columns as `RecordSource` says; one that a record can have and none has is null."""
        columns = [name for name in names if name in self.table.column_names]
        yield np.arange(self.table.num_rows), to_columns(self.table.select(columns))

    def whole(self, places: Places) -> "pd.DataFrame":
        """Return everything about some records, as `RecordSource` says."""
        return to_frame(self.table.take(places), self.info)


def cell_of(rows: Sequence[Row], info: RunInfo) -> Cell:
    """Return the cell of records in memory, in the order of their places."""
    table = to_table(sorted(rows, key=itemgetter("place")))
    records = to_columns(table.select(list(COUNT_COLUMNS)))
    return Cell(info["model"], info["benchmark"], records, Memory(info, table))


def read_cells(path: Folder) -> list[Cell]:
    """Every cell at or under a path; of its records what is counted, the rest left on disk.

    Raises:
        RecordError: No records, a torn part, or two different runs of one cell.
    """
    return [_read(folder, info) for folder, info in read_runs(path).items()]


def _read(folder: Folder, info: RunInfo) -> Cell:
    parts = tuple(part_files(folder))
    tables = [read_part(path, ("place", *COUNT_COLUMNS)) for path in parts]
    ends = np.cumsum([table.num_rows for table in tables], dtype=int)
    table = pa.concat_tables([COLUMNS.empty_table().select(["place", *COUNT_COLUMNS]), *tables])
    _, first = np.unique(table["place"].to_numpy(), return_index=True)
    places = np.full(table.num_rows, -1)
    places[first] = np.arange(len(first))
    columns = [table[name].combine_chunks().take(pa.array(first)) for name in COUNT_COLUMNS]
    records = to_columns(pa.table(columns, names=list(COUNT_COLUMNS)))
    source = Disk(info, parts, ends, places)
    return Cell(info["model"], info["benchmark"], records, source)
