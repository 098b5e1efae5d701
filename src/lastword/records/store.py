"""Store: records on disk that outlive a kill, a full disk and a torn file.

`OUT/<model>/<benchmark>[@template]/` is a cell: `run.json` says what is run, with the plan, which
grows as the run comes to its items, and each `part-*.parquet` holds records of one group of the
plan: all of them, or as many as there are so far. What is done is what places there are records of.
A part is written to a temporary file, synced, renamed, and its folder synced, so that it is there
whole or not at all; a longer one takes its place in the same way. `--shard i/n` writes into
`shard-i-of-n/` of the cell; `merge` joins those. A folder has one writer at a time.
`OUT/README.md` lists the cells for `datasets` (`card`). All of it may lie on object storage
(`files.folder`), where an object is there whole or not at all by itself.
"""

import json
import os
import re
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from filelock import Timeout
from upath import UPath

from lastword.errors import RecordError, RunLockedError
from lastword.files import locking
from lastword.files.folder import Folder, failures, inside, locate, reason, write_whole
from lastword.files.locking import Lock
from lastword.records import card
from lastword.records.record import COLUMNS, Row, to_table

if TYPE_CHECKING:
    import pandas as pd

SCHEMA = 1
RUN_FILE = "run.json"
_PART = re.compile(r"part-(\d{5,})\.parquet")
_SHARD = re.compile(r"shard-\d+-of-\d+")

# What may differ between two starts of one run: when, where, how it was asked for, from which copy
# of the data, and the noise that the check at load measured.
_CIRCUMSTANCE = ("created", "asked", "device", "machine", "check", "dataset.source")

RunInfo = dict[str, Any]


@dataclass(frozen=True)
class Shard:
    """Part `index` of `count`, counted from 0: the groups of the plan with that remainder."""

    index: int
    count: int

    @classmethod
    def parse(cls, text: str) -> "Shard":
        """A shard from `i/n`.

        Raises:
            RecordError: Not two numbers, or i is not below n.
        """
        match = re.fullmatch(r"(\d+)/(\d+)", text)
        if match is None or int(match[1]) >= int(match[2]):
            raise RecordError(f"a shard is i/n with i from 0 to n-1, not {text!r}")
        return cls(int(match[1]), int(match[2]))

    def holds(self, group: int) -> bool:
        """Whether a group of the plan belongs to this shard."""
        return group % self.count == self.index

    @property
    def folder(self) -> str:
        """Name of its folder inside the cell."""
        return f"shard-{self.index}-of-{self.count}"


@dataclass
class Run:
    """One folder of records, locked and open for writing; use as a context manager.

    Attributes:
        cell: Folder of the cell.
        info: What is run; once entered, what the cell's `run.json` says (its plan is kept, so that
            a restart packs the same, and all shards do).
        shard: Which part of the plan is written here; None for all.
        lacking: Of each group of this folder that is not done, the places without a record.
        done: How many records each group has, and how many of them are of items that failed.
        set_aside: Parts that were torn; renamed, and to be done again.
    """

    cell: Folder
    info: RunInfo
    shard: Shard | None = None
    lacking: dict[int, list[int]] = field(default_factory=dict)
    done: dict[int, tuple[int, int]] = field(default_factory=dict)
    set_aside: list[Folder] = field(default_factory=list)
    _lock: Lock | None = field(default=None, repr=False)

    @property
    def folder(self) -> Folder:
        """Where the parts are."""
        return self.cell if self.shard is None else self.cell / self.shard.folder

    @property
    def plan(self) -> list[list[int]]:
        """Groups of places in the item list."""
        return plan_of(self.info)

    @property
    def records(self) -> int:
        """How many records there are."""
        return sum(records for records, _ in self.done.values())

    @property
    def failed(self) -> int:
        """How many of them are of items that failed."""
        return sum(failed for _, failed in self.done.values())

    @property
    def planned(self) -> int:
        """How many of the run's items are in the plan, from the first on."""
        return sum(line.count(" ") + 1 for line in self.info["plan"])

    @property
    def whole(self) -> bool:
        """Whether nothing is left to do in this folder."""
        return not self.lacking and self.planned == self.info["items"]

    def __enter__(self) -> "Run":
        """Lock the folder, compare or write `run.json`, and look through the parts.

        Raises:
            RunLockedError: Another process writes here.
            RecordError: The cell holds another run, or cannot be written.
        """
        with _reported(self.folder):
            if isinstance(self.folder, Path):  # on object storage there is none to make
                self.folder.mkdir(parents=True, exist_ok=True)
            self._lock = lock(self.folder)
        try:
            self._take_up()
        except BaseException:
            self._lock.release()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Let the next process in."""
        assert self._lock is not None
        self._lock.release()

    def look(self) -> list[Folder]:
        """Count what the parts hold and what is lacking; the parts that are torn."""
        plan, torn = self.plan, []
        self._expect()
        for group, path in parts(self.folder).items():
            if (table := read_sound(path, plan, group)) is None:
                torn.append(path)
            else:
                self._count(group, table)
        return torn

    def extend(self, groups: Sequence[Sequence[int]]) -> None:
        """Add groups to the plan, unless another process that runs the cell has planned on first.

        Raises:
            RecordError: The disk is full or refuses.
        """
        before = len(self.info["plan"])
        with _reported(self.cell), locking.lock(self.cell / ".run-lock"):
            known = read_run(self.cell)
            if len(known["plan"]) == before:
                known["plan"] += plan_lines(groups)
                _write_run(self.cell, known)
        self.info = known
        self._expect(before)

    def _expect(self, first: int = 0) -> None:
        """Count the groups from the first on as lacking."""
        shard = self.shard or Shard(0, 1)
        for group, places in enumerate(plan_of(self.info)[first:], start=first):
            if shard.holds(group):
                self.lacking[group] = places

    def keep(self, group: int, content: bytes) -> None:
        """Keep records of a group, as `serialise` made them, beside its others, all or none.

        Raises:
            RecordError: The disk is full or refuses; the parts that are there stay whole.
        """
        path = self.folder / part_name(group)
        table = _conform(_table(pa.BufferReader(content), path), path)
        if path.exists() and (others := _others(read_part(path), table)).num_rows:
            table = pa.concat_tables([others, table])
            content = _to_bytes(table)
        write_durably(path, content)
        self._count(group, table)

    def _take_up(self) -> None:
        for stray in self.folder.glob(".part-*.tmp"):
            stray.unlink()
        self.info = _agree(self.cell, self.info)
        self.set_aside = [_set_aside(path) for path in self.look()]

    def _count(self, group: int, part: pa.Table) -> None:
        held = set(part["place"].to_pylist())
        self.done[group] = part.num_rows, part.num_rows - part["error"].null_count
        rest = [p for p in self.lacking.get(group, ()) if p not in held]
        if rest:
            self.lacking[group] = rest
        else:
            self.lacking.pop(group, None)


def cell_folder(out: Folder, model: str, benchmark: str) -> Folder:
    """Folder of a cell: `OUT/<model>/<benchmark>`, each as one safe name."""
    return out / folder_name(model) / folder_name(benchmark)


def folder_name(name: str) -> str:
    """A name that every file system takes: `/` is `--`, what is not a word is `-`."""
    safe = re.sub(r"[^\w.@+=-]", "-", name.replace("/", "--"))
    return safe if safe.strip(".") else f"-{safe}"


def part_name(group: int) -> str:
    """File name of a group's part."""
    return f"part-{group:05d}.parquet"


def parts(folder: Folder) -> dict[int, Folder]:
    """The part files of a folder by group, ascending."""
    found = {path.name: path for path in folder.iterdir()}
    matches = filter(None, map(_PART.fullmatch, sorted(found)))
    return {int(match[1]): found[match[0]] for match in matches}


def serialise(rows: Sequence[Row]) -> bytes:
    """Rows as the bytes of a Parquet file: zstd, a checksum on every page."""
    return _to_bytes(to_table(list(rows)))


def _to_bytes(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd", write_page_checksum=True, version="2.6")
    return bytes(sink.getvalue())


def read_sound(path: Folder, plan: Sequence[Sequence[int]], group: int) -> pa.Table | None:
    """The records of one part; None where it is torn or holds others than its group's."""
    try:
        table = read_part(path)
    except RecordError:
        return None
    places = table["place"].to_pylist()
    allowed = set(plan[group]) if group < len(plan) else set()
    return table if len({*places}) == len(places) and allowed.issuperset(places) else None


def read_part(path: Folder, columns: Sequence[str] | None = None) -> pa.Table:
    """The records of one part.

    Args:
        path: The part.
        columns: Which of `COLUMNS`; None for all.

    Raises:
        RecordError: The file is torn, or holds something else.
    """
    names = COLUMNS.names if columns is None else list(columns)
    return _conform(_table(path, path, names), path, pa.schema(map(COLUMNS.field, names)))


def _table(source: Any, path: Folder, columns: list[str] | None = None) -> pa.Table:
    try:
        if isinstance(source, UPath):
            source = pa.BufferReader(source.read_bytes())
        with pq.ParquetFile(source, page_checksum_verification=True) as file:
            return file.read(columns)
    except failures(ValueError, pa.ArrowException) as error:
        raise RecordError(
            f"{path} cannot be read ({reason(error)[:160]}); start the run again and it is redone"
        ) from error


def _others(table: pa.Table, newer: pa.Table) -> pa.Table:
    """The records of a table but those that a newer one has too."""
    return table.filter(pc.invert(pc.is_in(table["place"], newer["place"].combine_chunks())))


def _conform(table: pa.Table, path: Folder, schema: pa.Schema = COLUMNS) -> pa.Table:
    """The columns that this version knows: one that came later is null, one that it lacks is left.

    Raises:
        RecordError: A column of another type.
    """
    columns = []
    for wanted in schema:
        if wanted.name not in table.column_names:
            columns.append(pa.nulls(table.num_rows, wanted.type))
        elif table.schema.field(wanted.name).type == wanted.type:
            columns.append(table[wanted.name])
        elif pa.types.is_map(table.schema.field(wanted.name).type):  # pairs, until version 0.2
            columns.append(table[wanted.name].cast(wanted.type))
        else:
            came = table.schema.field(wanted.name).type
            raise RecordError(
                f"{path}: column {wanted.name} is {came}, expected {wanted.type}; "
                "read it with the version of lastword that wrote it"
            )
    return pa.table(columns, schema=schema)


def read_run(folder: Folder) -> RunInfo:
    """What a folder's `run.json` says.

    Raises:
        RecordError: Missing, unreadable or of another schema.
    """
    path = folder / RUN_FILE
    try:
        info = json.loads(path.read_text(encoding="utf-8"))
    except failures(ValueError) as error:
        raise RecordError(f"cannot read {path}: {error}; choose another --out") from error
    if not isinstance(info, dict) or info.get("schema") != SCHEMA:
        came = info.get("schema") if isinstance(info, dict) else None
        raise RecordError(f"{path} has schema {came}; this version of lastword reads {SCHEMA}")
    return info


def differences(old: RunInfo, new: RunInfo) -> list[str]:
    """What makes two runs different, one phrase each; empty where records may stand together."""
    was, now = (dict(_flat(json.loads(json.dumps(info)))) for info in (old, new))
    names = [n for n in dict.fromkeys([*was, *now]) if not _circumstantial(n)]
    return [
        f"{n} was {_short(was.get(n))} and is {_short(now.get(n))}"
        for n in names
        if not _same(was.get(n), now.get(n))
    ]


def plan_of(info: RunInfo) -> list[list[int]]:
    """The plan that a run records: a line of places a group."""
    return [[int(place) for place in line.split()] for line in info["plan"]]


def plan_lines(groups: Iterable[Sequence[int]]) -> list[str]:
    """A plan as a run records it."""
    return [" ".join(map(str, group)) for group in groups]


def find_cells(path: Folder) -> list[Folder]:
    """Every cell at or under a path, sorted: the folders with a `run.json`.

    Raises:
        RecordError: There is none.
    """
    found = sorted(file.parent for file in path.rglob(RUN_FILE)) if path.is_dir() else []
    if not found:
        raise RecordError(f"no records in {path}; expected a folder that `lastword eval` wrote")
    return found


def part_folders(cell: Folder) -> list[Folder]:
    """The folders of a cell that hold parts: its own, then its shards'."""
    return [cell, *sorted(path for path in cell.iterdir() if _SHARD.fullmatch(path.name))]


def missing_places(cell: Folder) -> list[int]:
    """Places of a cell that have no record yet, in the cell or in its shards.

    Raises:
        RecordError: A torn part.
    """
    held = np.zeros(read_run(cell)["items"], dtype=bool)
    for path in part_files(cell):
        held[_table(path, path, ["place"])["place"].to_numpy()] = True
    missing: list[int] = np.flatnonzero(~held).tolist()
    return missing


@contextmanager
def listed(root: Folder) -> Iterator[None]:
    """Records that the block writes under `root` stand on its card after it, also if it fails.

    Raises:
        RecordError: The README that is there is no card, said before the block; or a full disk.
    """
    card.read(root)
    try:
        yield
    except BaseException:
        with suppress(RecordError):  # the first error is told
            _list(root)
        raise
    _list(root)


def _list(root: Folder) -> None:
    """Write the card: each cell whose records are there, and each of its parts once."""
    with _reported(root), locking.lock(root / ".card-lock"):  # nobody writes an older list
        cells = {inside(root, c).replace("/", "--"): _listing(root, c) for c in find_cells(root)}
        card.write(root, {name: files for name, files in cells.items() if files})


def _listing(root: Folder, cell: Folder) -> list[str]:
    """The parts of a cell, as one pattern where they all lie in its own folder."""
    files: dict[int, Folder] = {}
    for group, path in chain.from_iterable(parts(f).items() for f in part_folders(cell)):
        # Several places may hold a group: the part that got furthest.
        files[group] = max(files[group], path, key=_places) if group in files else path
    if files and all(path.parent == cell for path in files.values()):
        return [f"{inside(root, cell)}/part-*.parquet"]
    return [inside(root, files[group]) for group in sorted(files)]


def _places(part: Folder) -> int:
    return int(_table(part, part, ["place"]).num_rows)


def load_records(path: str | Folder) -> "pd.DataFrame":
    """Every record at or under a path, in the benchmark's order, one row an item.

    Columns are those of `lastword.records.record.COLUMNS` after `model` and `template`.
    `trajectory` and `blind_trajectory` are arrays [candidates, depths], other lists of numbers
    arrays [candidates], `candidates` a list of texts, `gates` a dictionary by gate. `benchmark`
    carries the template where that is not the default (`truthfulqa@own6`). Shards that were not
    merged are read too.

    Args:
        path: A cell's folder, or any folder above (`runs/`, `s3://bucket/runs`).

    Raises:
        RecordError: No records, a torn part, or two different runs of one cell.
    """
    import pandas as pd

    from lastword.records.frame import to_frame

    frames = [to_frame(_cell_table(cell), info) for cell, info in read_runs(locate(path)).items()]
    return pd.concat(frames, ignore_index=True)


def read_runs(path: Folder) -> dict[Folder, RunInfo]:
    """What every cell at or under a path is a run of.

    Raises:
        RecordError: No records, or two different runs of one cell.
    """
    seen: dict[tuple[str, str], Folder] = {}
    runs = {cell: read_run(cell) for cell in find_cells(path)}
    for cell, info in runs.items():
        name = (info["model"], info["benchmark"])
        if name in seen:
            raise RecordError(
                f"{seen[name]} and {cell} are both {' on '.join(name)}; load one of them"
            )
        seen[name] = cell
    return runs


@dataclass(frozen=True)
class Merged:
    """What a merge left in one cell.

    Attributes:
        folder: The cell.
        items: How many items the run has.
        missing: How many of them no source had a record of.
    """

    folder: Folder
    items: int
    missing: int


def merge(sources: Sequence[Folder], out: Folder | None = None) -> list[Merged]:
    """Join the parts of shards, and of one cell from several places, into their cells.

    The sources stay as they are. Nothing is written where any two runs of a cell differ.

    Args:
        sources: Folders that `lastword eval` wrote, at any level.
        out: Root of the joined cells; None joins each shard into the cell that it lies in.

    Raises:
        RecordError: No records, runs that differ, or a disk that refuses.
        RunLockedError: A cell or shard is being written.
    """
    targets: dict[Folder, list[Folder]] = {}
    roots = dict.fromkeys([] if out is None else [out])
    for cell in dict.fromkeys(chain.from_iterable(find_cells(s) for s in sources)):
        info = read_run(cell)
        target = cell if out is None else cell_folder(out, info["model"], info["benchmark"])
        targets.setdefault(target, []).append(cell)
        if cell == cell_folder(root := cell.parent.parent, info["model"], info["benchmark"]):
            roots.setdefault(root if out is None else out)
    for target, cells in targets.items():
        _require_same([*([target] if (target / RUN_FILE).exists() else []), *cells])
    with ExitStack() as stack:
        for root in roots:
            stack.enter_context(listed(root))
        return [_merge_cell(target, cells) for target, cells in targets.items()]


@contextmanager
def _reported(path: Folder) -> Iterator[None]:
    """An error of the file system as a `RecordError` in one line."""
    try:
        yield
    except failures() as error:
        raise RecordError(
            f"cannot write {path}: {reason(error)}; the records that are there are "
            "whole: make room or choose another --out, and start again"
        ) from error


def write_durably(path: Folder, content: bytes) -> None:
    """A file that is there whole or not at all, also after a crash.

    Raises:
        RecordError: The disk is full or refuses.
    """
    with _reported(path):
        write_whole(path, content)


def lock(folder: Folder) -> Lock:
    """The folder's lock, held; it is free soon after the process ends, however it ends.

    Raises:
        RunLockedError: Another process holds it.
    """
    held = locking.lock(folder / ".lock")
    try:
        held.acquire(timeout=0)
    except Timeout as error:
        raise RunLockedError(
            f"another process writes to {folder}; wait for it, or share the work by --shard i/n"
        ) from error
    return held


def _set_aside(path: Folder) -> Folder:
    """A torn part under another name, so that it can be looked at and is not read."""
    for attempt in range(1, 1000):
        torn = path.with_name(f"{path.name}.torn-{attempt}")
        if not torn.exists():
            path.rename(str(torn))  # takes no room on a full disk
            return torn
    raise RecordError(f"{path} was torn a thousand times; look at the disk under it")


def _agree(cell: Folder, info: RunInfo) -> RunInfo:
    """The run that a cell holds: the first comer's, which later ones must be, but for the plan.

    A plan may depend on the memory that was free; the first one stands, so that all pack the same.
    """
    with _reported(cell), locking.lock(cell / ".run-lock"):
        if not (cell / RUN_FILE).exists():
            _write_run(cell, {"created": _now(), **info})
        known = read_run(cell)
    differing = differences(known, info | {"plan": known.get("plan")})
    if differing:
        raise RecordError(
            f"{cell} holds another run: {'; '.join(differing)}; "
            "choose another --out, or run with the same settings"
        )
    return known


def _write_run(cell: Folder, info: RunInfo) -> None:
    text = json.dumps(info, indent=1, allow_nan=False)
    write_durably(cell / RUN_FILE, text.encode())


def _require_same(cells: Sequence[Folder]) -> None:
    first, plan = read_run(cells[0]), list[str]()
    for other in cells:
        run = read_run(other)
        short, long = sorted([plan, run["plan"]], key=len)
        if long[: len(short)] == short:  # one run had got further than the other
            plan, run["plan"] = long, first["plan"]
        differing = differences(first, run)
        if differing:
            raise RecordError(f"{cells[0]} and {other} hold different runs: {'; '.join(differing)}")


def part_files(cell: Folder) -> list[Folder]:
    """Every part of a cell, of its own folder and of its shards'."""
    return [path for folder in part_folders(cell) for path in parts(folder).values()]


def _cell_table(cell: Folder) -> pa.Table:
    """The records of a cell from its own folder and its shards, by place, each place once."""
    tables = [read_part(path) for path in part_files(cell)]
    table = pa.concat_tables(tables or [COLUMNS.empty_table()])
    _, first = np.unique(table["place"].to_numpy(), return_index=True)
    return table.take(first)


def _merge_cell(target: Folder, cells: Sequence[Folder]) -> Merged:
    infos = [read_run(cell) for cell in cells]
    longest = max((info["plan"] for info in infos), key=len)
    info = {k: v for k, v in infos[0].items() if k != "created"} | {"plan": longest}
    with Run(target, info) as run:
        if further := plan_of(info)[len(run.info["plan"]) :]:
            run.extend(further)
        plan = run.plan
        for folder in chain.from_iterable(part_folders(cell) for cell in cells):
            if folder != target:
                _take_over(run, folder, plan)
        return Merged(target, info["items"], info["items"] - run.records)


def _take_over(run: Run, folder: Folder, plan: Sequence[Sequence[int]]) -> None:
    # Where we cannot write, in an archive on a read-only disk, nobody does.
    with nullcontext() if _is_archive(folder) else _locked(folder):
        for group, path in parts(folder).items():
            if group in run.lacking and read_sound(path, plan, group) is not None:
                run.keep(group, path.read_bytes())


@contextmanager
def _locked(folder: Folder) -> Iterator[None]:
    held = lock(folder)
    try:
        yield
    finally:
        held.release()


def _is_archive(folder: Folder) -> bool:
    return isinstance(folder, Path) and not os.access(folder, os.W_OK)


def _flat(value: Any, name: str = "") -> Iterable[tuple[str, Any]]:
    if not isinstance(value, dict):
        return [(name, value)]
    return chain.from_iterable(_flat(v, f"{name}.{k}" if name else k) for k, v in value.items())


def _circumstantial(name: str) -> bool:
    return any(name == known or name.startswith(f"{known}.") for known in _CIRCUMSTANCE)


def _same(a: Any, b: Any) -> bool:
    """Equal, but for the last bits of a float: I(M) is a sum whose order a machine chooses."""
    if isinstance(a, float) and isinstance(b, float):
        return a == b or abs(a - b) <= 1e-9 * max(abs(a), abs(b))
    return bool(a == b)


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
