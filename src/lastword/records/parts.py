"""Parts: Parquet files, each with the records of one group of a cell's plan.

A part has all records of its group, or those that exist so far; the indices of its records show the
work that is done. A part is written to a temporary file, synced and renamed, and then its folder is
synced, so that it is complete or does not exist. A longer part replaces it in the same way.

A damaged part, and a file with other content, raise `RecordError`.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lastword.errors import RecordError, one_line
from lastword.records.columns import COLUMNS, to_table
from lastword.records.info import read_run, read_runs
from lastword.records.record import Row

_PART = re.compile(r"part-(\d{5,})\.parquet")
_SHARD = re.compile(r"shard-\d+-of-\d+")


def part_name(group: int) -> str:
    """Return the file name of a group's part."""
    return f"part-{group:05d}.parquet"


def part_paths(folder: Path) -> dict[int, Path]:
    """Return the part files of a folder by group number, ascending."""
    files = {path.name: path for path in folder.iterdir()}
    matches = filter(None, map(_PART.fullmatch, sorted(files)))
    return {int(match[1]): files[match[0]] for match in matches}


def part_folders(cell: Path) -> list[Path]:
    """Return the folders of a cell with parts: the cell's, then its shards'."""
    return [cell, *sorted(path for path in cell.iterdir() if _SHARD.fullmatch(path.name))]


def part_files(cell: Path) -> list[Path]:
    """Return every part of a cell, from its folder and then its shards."""
    return [path for folder in part_folders(cell) for path in part_paths(folder).values()]


def missing_places(cell: Path) -> list[int]:
    """Return the indices of a cell's items without a record, in the cell or in its shards."""
    stored = np.zeros(read_run(cell)["items"], dtype=bool)
    for path in part_files(cell):
        stored[_table(path, path, ["place"])["place"].to_numpy()] = True
    places: list[int] = np.flatnonzero(~stored).tolist()
    return places


def unfinished(path: Path) -> list[str]:
    """Return one sentence per incomplete cell at or under a path."""
    sentences = []
    for cell, run in read_runs(path).items():
        if gaps := missing_places(cell):
            sentences.append(
                f"{run['model']} on {run['benchmark']} is not finished: {len(gaps)} of "
                f"{run['items']} items are missing; start `lastword eval` again"
            )
    return sentences


def serialise(rows: Sequence[Row]) -> bytes:
    """Return rows as the bytes of a Parquet file, with zstd and a checksum per page."""
    return _to_bytes(to_table(list(rows)))


def _to_bytes(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd", write_page_checksum=True, version="2.6")
    return bytes(sink.getvalue())


def read_sound(path: Path, plan: Sequence[Sequence[int]], group: int) -> pa.Table | None:
    """Return the records of a part; None if it is damaged or has indices of another group."""
    try:
        table = read_part(path)
    except RecordError:
        return None
    places = table["place"].to_pylist()
    members = set(plan[group]) if group < len(plan) else set()
    return table if len({*places}) == len(places) and members.issuperset(places) else None


def read_part(path: Path, columns: Sequence[str] | None = None) -> pa.Table:
    """Return the records of one part."""
    names = COLUMNS.names if columns is None else list(columns)
    return _conform(_table(path, path, names), path, pa.schema(map(COLUMNS.field, names)))


def _table(source: Any, path: Path, columns: list[str] | None = None) -> pa.Table:
    try:
        with pq.ParquetFile(source, page_checksum_verification=True) as file:
            return file.read(columns)
    except (OSError, ValueError, pa.ArrowException) as error:
        why = one_line(getattr(error, "strerror", None) or error)[:160]
        raise RecordError(
            f"{path} cannot be read ({why}); start the run again to repeat it"
        ) from error


def join(path: Path, content: bytes) -> tuple[bytes, pa.Table]:
    """Return a part with new records added, as bytes and table; new ones replace old ones."""
    table = _table(pa.BufferReader(content), path)
    table = _conform(table, path)
    if not path.exists():
        return content, table
    old, new = read_part(path, COLUMNS.names), table["place"].combine_chunks()
    others = old.filter(pc.invert(pc.is_in(old["place"], new)))
    if not others.num_rows:
        return content, table
    table = pa.concat_tables([others, table])
    return _to_bytes(table), table


def _conform(table: pa.Table, path: Path, schema: pa.Schema = COLUMNS) -> pa.Table:
    """Return the table with this version's columns; missing columns are null."""
    columns = []
    for column in schema:
        if column.name not in table.column_names:
            columns.append(pa.nulls(table.num_rows, column.type))
            continue
        if (kind := table.schema.field(column.name).type) != column.type:
            raise RecordError(
                f"{path}: column {column.name} is {kind}, expected {column.type}; "
                "read it with the version of lastword that wrote it"
            )
        columns.append(table[column.name])
    return pa.table(columns, schema=schema)


def set_aside(path: Path) -> Path:
    """Rename a damaged part so that it is not read, and return its new path."""
    for attempt in range(1, 1000):
        torn = path.with_name(f"{path.name}.torn-{attempt}")
        if not torn.exists():
            path.rename(str(torn))  # works even on a full disk
            return torn
    raise RecordError(f"{path} was damaged a thousand times; check the disk")
