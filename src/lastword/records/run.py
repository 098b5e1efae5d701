"""Run: one folder of a cell, locked and open for writing, which survives kills and full disks.

`--shard i/n` writes to `shard-i-of-n/` in the cell; `merge` joins the shards. A folder has one
writer at a time.

A folder of another run and a failing disk raise `RecordError`; a folder that another process writes
to raises `RunLockedError`.
"""

import re
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
from filelock import FileLock

from lastword.errors import RecordError
from lastword.records.disk import locked, reported, write_durably
from lastword.records.info import RunInfo, agree, plan_lines, plan_of, read_run, write_run
from lastword.records.parts import join, part_name, part_paths, read_sound, set_aside


@dataclass(frozen=True)
class Shard:
    """Shard `index` of `count`, from 0: the groups whose number has this remainder."""

    index: int
    count: int

    @classmethod
    def parse(cls, text: str) -> "Shard":
        """Return the shard for `i/n`."""
        match = re.fullmatch(r"(\d+)/(\d+)", text)
        if match is None or int(match[1]) >= int(match[2]):
            raise RecordError(f"a shard is i/n with i from 0 to n-1, not {text!r}")
        return cls(int(match[1]), int(match[2]))

    def holds(self, group: int) -> bool:
        """Return True if a group of the plan belongs to this shard."""
        return group % self.count == self.index

    @property
    def folder(self) -> str:
        """The name of its folder inside the cell."""
        return f"shard-{self.index}-of-{self.count}"


@dataclass
class Run:
    """One folder of records, locked and open for writing; use as a context manager.

    Attributes:
        info: The run; once entered, the content of the cell's `run.json`, with its plan, so that
            restarts and shards group items the same way.
        shard: The part of the plan that is written here; None for all.
        gaps: Indices without a record, by unfinished group of this folder.
        counts: Number of records by group, and number of failed items among them.
        set_aside: Damaged parts, which are renamed and computed again.
    """

    cell: Path
    info: RunInfo
    shard: Shard | None = None
    gaps: dict[int, list[int]] = field(default_factory=dict)
    counts: dict[int, tuple[int, int]] = field(default_factory=dict)
    set_aside: list[Path] = field(default_factory=list)
    _lock: ExitStack = field(default_factory=ExitStack, repr=False)

    @property
    def folder(self) -> Path:
        """The folder of the parts."""
        return self.cell if self.shard is None else self.cell / self.shard.folder

    @property
    def plan(self) -> list[list[int]]:
        """The groups of items, as indices in the item list."""
        return plan_of(self.info)

    @property
    def records(self) -> int:
        """The number of records."""
        return sum(records for records, _ in self.counts.values())

    @property
    def failed(self) -> int:
        """The number of records of failed items."""
        return sum(failed for _, failed in self.counts.values())

    @property
    def plan_size(self) -> int:
        """The number of items in the plan, counted from the first."""
        return sum(line.count(" ") + 1 for line in self.info["plan"])

    @property
    def whole(self) -> bool:
        """True if nothing is left to do in this folder."""
        return not self.gaps and self.plan_size == self.info["items"]

    def __enter__(self) -> "Run":
        """Lock the folder, compare or write `run.json`, and read the parts."""
        with ExitStack() as stack:
            with reported(self.folder):
                self.folder.mkdir(parents=True, exist_ok=True)
                stack.enter_context(locked(self.folder))
            # Left by a killed process (`files.writing`); the lock shows that nobody writes them.
            for stray in self.folder.glob(".part-*.tmp"):
                stray.unlink()
            self.info = agree(self.cell, self.info)
            self.set_aside = [set_aside(path) for path in self.look()]
            self._lock = stack.pop_all()  # without an error the lock is held until `__exit__`
        return self

    def __exit__(self, *error: object) -> None:
        """Unlock the folder."""
        self._lock.close()

    def look(self) -> list[Path]:
        """Count the records and gaps of the parts, and return the damaged parts."""
        plan, torn = self.plan, []
        self._expect()
        for group, path in part_paths(self.folder).items():
            if (table := read_sound(path, plan, group)) is None:
                torn.append(path)
            else:
                self._count(group, table)
        return torn

    def extend(self, groups: Sequence[Sequence[int]]) -> None:
        """Add groups to the plan, unless another process has extended it in the meantime."""
        # The file is read again under the lock, because another shard may have extended the plan.
        before = len(self.info["plan"])
        with reported(self.cell), FileLock(self.cell / ".run-lock"):
            info = read_run(self.cell)
            if len(info["plan"]) == before:
                info["plan"] += plan_lines(groups)
                write_run(self.cell, info)
        self.info = info
        self._expect(before)

    def _expect(self, first: int = 0) -> None:
        """Count the groups from the first on as gaps."""
        shard = self.shard or Shard(0, 1)
        for group, places in enumerate(plan_of(self.info)[first:], start=first):
            if shard.holds(group):
                self.gaps[group] = places

    def keep(self, group: int, content: bytes) -> None:
        """Add records of a group, made by `serialise`, to its part; all or none are stored."""
        path = self.folder / part_name(group)
        content, table = join(path, content)
        write_durably(path, content)
        self._count(group, table)

    def _count(self, group: int, part: pa.Table) -> None:
        places = set(part["place"].to_pylist())
        self.counts[group] = part.num_rows, part.num_rows - part["error"].null_count
        rest = [p for p in self.gaps.get(group, ()) if p not in places]
        if rest:
            self.gaps[group] = rest
        else:
            self.gaps.pop(group, None)
