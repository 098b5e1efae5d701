"""Store: the folder of a cell, with `run.json` and Parquet parts, which survives kills.

A part holds some of the cell's records and never changes. It is written to a temporary file, synced
and renamed, and then its folder is synced, so that it is complete or does not exist. The indices of
the stored records show the work that is done; a restart computes the others. The shards of a run
write to one folder, or to folders of several machines that `merge` joins.

A damaged part, a folder of another run and a failing disk raise `RecordError`; a folder that
another process writes to raises `RunLockedError`.
"""

import json
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from filelock import FileLock, Timeout

from lastword.errors import RecordError, RunLockedError, one_line
from lastword.files.writing import write_whole
from lastword.records.columns import COLUMNS, Row, to_table
from lastword.records.info import (
    RUN_FILE,
    RunInfo,
    cell_folder,
    differences,
    find_cells,
    read_run,
    read_runs,
    require_same,
)

PART_SECONDS = 20.0  # records of this time are stored together


@dataclass(frozen=True)
class Shard:
    """Shard `index` of `count`, from 0: the items whose index has this remainder."""

    index: int = 0
    count: int = 1

    @classmethod
    def parse(cls, text: str) -> "Shard":
        """Return the shard for `i/n`."""
        match = re.fullmatch(r"(\d+)/(\d+)", text)
        if match is None or int(match[1]) >= int(match[2]):
            raise RecordError(f"a shard is i/n with i from 0 to n-1, not {text!r}")
        return cls(int(match[1]), int(match[2]))

    @property
    def suffix(self) -> str:
        """The end of its files' names; empty for the only shard."""
        return "" if self.count == 1 else f".{self.index}-of-{self.count}"


WHOLE = Shard()


@dataclass
class Run:
    """A cell's folder, locked and open for writing; use as a context manager.

    `failed` is True for each stored item of the shard that failed, by index, and `set_aside` has
    damaged parts, which are renamed and computed again.
    """

    cell: Path
    info: RunInfo
    shard: Shard = WHOLE
    failed: dict[int, bool] = field(default_factory=dict)
    set_aside: list[Path] = field(default_factory=list)
    _lock: ExitStack = field(default_factory=ExitStack, repr=False)

    @property
    def missing(self) -> list[int]:
        """The indices of the shard's items without a record."""
        places = range(self.shard.index, self.info["items"], self.shard.count)
        return [place for place in places if place not in self.failed]

    def __enter__(self) -> "Run":
        """Lock the shard, compare or write `run.json`, and read the parts."""
        with ExitStack() as stack:
            with reported(self.cell):
                self.cell.mkdir(parents=True, exist_ok=True)
                stack.enter_context(_locked(self.cell, self.shard))
            # Left by a killed process (`files.writing`); the lock shows that nobody writes them.
            for stray in self.cell.glob(f".part-{'[0-9]' * 5}{self.shard.suffix}.parquet.*.tmp"):
                stray.unlink()
            self.info = _agree(self.cell, self.info)
            self.set_aside = [_set_aside(path) for path in self.look()]
            self._lock = stack.pop_all()  # without an error the lock is held until `__exit__`
        return self

    def __exit__(self, *error: object) -> None:
        """Unlock the shard."""
        self._lock.close()

    def look(self) -> list[Path]:
        """Count the records of the parts, and return the damaged parts."""
        damaged = []
        for path in part_files(self.cell):
            if (table := _sound(path, self.info["items"])) is None:
                damaged.append(path)
            else:
                self._count(table)
        return damaged

    def fill(self, groups: Iterable[Sequence[Row]], advance: Callable[[int], None]) -> None:
        """Store rows as they are computed; `advance` is called with the number of each group."""
        tables: list[pa.Table] = []
        start = time.monotonic()
        for group in groups:
            tables.append(to_table(list(group)))  # a fourth of the memory that its rows take
            if time.monotonic() - start >= PART_SECONDS:
                self.keep(*tables)
                tables, start = [], time.monotonic()
            advance(len(group))
        self.keep(*tables)

    def keep(self, *tables: pa.Table) -> None:
        """Store records in a part; all or none are stored."""
        table = pa.concat_tables([COLUMNS.empty_table(), *tables])
        if table.num_rows:
            first, sink = pc.min(table["place"]).as_py(), pa.BufferOutputStream()
            pq.write_table(table, sink, compression="zstd", write_page_checksum=True, version="2.6")
            name = f"part-{first:05d}{self.shard.suffix}.parquet"
            self._write(name, bytes(sink.getvalue()), table)

    def copy(self, path: Path) -> None:
        """Copy a part that has a missing record."""
        table = _sound(path, self.info["items"])
        if table is not None and not self.failed.keys() >= {*table["place"].to_pylist()}:
            self._write(path.name, path.read_bytes(), table)

    def _write(self, name: str, content: bytes, table: pa.Table) -> None:
        with reported(self.cell):
            write_whole(_unused(self.cell / name), content)
        self._count(table)

    def _count(self, table: pa.Table) -> None:
        failed = table["error"].is_valid().to_pylist()
        for place, fails in zip(table["place"].to_pylist(), failed, strict=True):
            if place % self.shard.count == self.shard.index:
                self.failed.setdefault(place, fails)


def part_files(cell: Path) -> list[Path]:
    """Return the parts of a cell, sorted."""
    return sorted(cell.glob("part-*.parquet"))


def missing_places(cell: Path) -> list[int]:
    """Return the indices of a cell's items without a record."""
    stored = [read_part(path, ["place"])["place"].to_numpy() for path in part_files(cell)]
    places = np.setdiff1d(range(read_run(cell)["items"]), np.concatenate([[], *stored]))
    return [*map(int, places)]


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


def read_part(path: Path, columns: Sequence[str] | None = None) -> pa.Table:
    """Return the records of one part."""
    names = COLUMNS.names if columns is None else list(columns)
    try:
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            table = file.read(names)
    except (OSError, ValueError, pa.ArrowException) as error:
        why = one_line(getattr(error, "strerror", None) or error)[:160]
        raise RecordError(
            f"{path} cannot be read ({why}); start the run again to repeat it"
        ) from error
    expected = pa.schema(map(COLUMNS.field, names))
    if not table.schema.equals(expected):
        raise RecordError(
            f"{path} has other columns than this version of lastword writes; run `lastword eval` "
            "again, into another --out"
        )
    return table


def merge(sources: Sequence[Path], out: Path | None = None) -> list[Run]:
    """Copy the parts of one cell from several places into one folder; None counts them only.

    The sources are not changed. Nothing is written if two runs of a cell differ. The `missing`
    items of a run have no record in any source.
    """
    targets: dict[Path, list[Path]] = {}
    for cell in dict.fromkeys(chain.from_iterable(find_cells(s) for s in sources)):
        info = read_run(cell)
        target = cell if out is None else cell_folder(out, info["model"], info["benchmark"])
        targets.setdefault(target, []).append(cell)
    for target, cells in targets.items():
        require_same([*([target] if (target / RUN_FILE).exists() else []), *cells])
    runs = []
    for target, cells in targets.items():
        with Run(target, read_run(cells[0])) as run:
            for path in (path for cell in cells if cell != target for path in part_files(cell)):
                run.copy(path)
        runs.append(run)
    return runs


@contextmanager
def reported(path: Path) -> Iterator[None]:
    """Convert file system errors in the block to a `RecordError` with one line."""
    try:
        yield
    except OSError as error:
        raise RecordError(
            f"cannot write {path}: {error.strerror or error}; the existing records are "
            "complete: free some space or choose another --out, and start again"
        ) from error


@contextmanager
def _locked(cell: Path, shard: Shard) -> Iterator[None]:
    try:
        acquired = FileLock(cell / f".lock{shard.suffix}").acquire(timeout=0)
    except Timeout as error:
        raise RunLockedError(
            f"another process writes to {cell}; wait for it, or share the work by --shard i/n"
        ) from error
    with acquired:
        yield


def _agree(cell: Path, info: RunInfo) -> RunInfo:
    """Return the `run.json` of a folder, which later runs must equal; the first writes it."""
    # Shards may start at the same time; the lock lets one of them write the file.
    path = cell / RUN_FILE
    with reported(cell), FileLock(cell / ".run-lock"):
        if not path.exists():
            created = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
            content = {**info, "created": created}
            write_whole(path, json.dumps(content, indent=1, allow_nan=False).encode())
        first = read_run(cell)
    if phrases := differences(first, info):
        raise RecordError(
            f"{cell} has another run: {'; '.join(phrases)}; "
            "choose another --out, or run with the same settings"
        )
    return first


def _sound(path: Path, items: int) -> pa.Table | None:
    """Return the records of a part; None if it is damaged or has indices of another cell."""
    try:
        table = read_part(path)
    except RecordError:
        return None
    places = table["place"].to_pylist()
    belong = all(0 <= place < items for place in places)
    return table if belong and len({*places}) == len(places) else None


def _set_aside(path: Path) -> Path:
    torn = _unused(path.with_name(f"{path.name}.torn"))
    path.rename(torn)  # works even on a full disk
    return torn


def _unused(path: Path) -> Path:
    """Return the path, or one with a number if a file has this name."""
    numbered = (path.with_stem(f"{path.stem}-{count}") for count in range(1, 1_000))
    return next((free for free in chain([path], numbered) if not free.exists()), path)
