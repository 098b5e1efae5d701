"""Ledger: answers that may still be labelled, and where the tests of a service stand; SQLite.

In a file (`--state`) it outlives the process: every event is one transaction of a write-ahead log,
so that a process that is killed loses at most the event in hand. Without a file it is in memory,
and the values that drift has seen, which are only needed for a restart, are not kept at all. No
text of a request is in it.
"""

import hashlib
import json
import sqlite3
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from lastword.errors import InputError
from lastword.records.decision import Decision
from lastword.rule.geometry import tied_first
from lastword.service.refusal import Refusal
from lastword.trust.groups import copies

_TABLES = """
    CREATE TABLE IF NOT EXISTS answers (
        id TEXT PRIMARY KEY, given REAL NOT NULL, entry TEXT NOT NULL, labelled INTEGER NOT NULL,
        steady REAL NOT NULL DEFAULT 0, kin TEXT
    );
    CREATE TABLE IF NOT EXISTS marks (
        mark TEXT PRIMARY KEY, answer TEXT NOT NULL REFERENCES answers (id) ON DELETE CASCADE
    );
    CREATE INDEX IF NOT EXISTS by_answer ON marks (answer);
    CREATE TABLE IF NOT EXISTS seen (statistic TEXT NOT NULL, value REAL NOT NULL);
    CREATE TABLE IF NOT EXISTS state (name TEXT PRIMARY KEY, value TEXT NOT NULL);
"""


_ADDED = {"steady": "REAL NOT NULL DEFAULT 0", "kin": "TEXT"}  # columns that older files lack
# Counting 100,000 answers anew takes 20 ms, and everybody may ask how many there are.
_TOTALS = """
    CREATE INDEX IF NOT EXISTS by_kin ON answers (kin, labelled);
    CREATE TABLE IF NOT EXISTS totals (answers, groups, labels, labelled_groups);
    INSERT INTO totals
        SELECT COUNT(*), COUNT(DISTINCT kin), TOTAL(labelled),
            COUNT(DISTINCT kin) FILTER (WHERE labelled)
        FROM answers GROUP BY NULL HAVING NOT EXISTS (SELECT 1 FROM totals);
    INSERT INTO totals SELECT 0, 0, 0, 0 WHERE NOT EXISTS (SELECT 1 FROM totals);
    CREATE TRIGGER IF NOT EXISTS added AFTER INSERT ON answers BEGIN
        UPDATE totals SET answers = answers + 1,
            groups = groups + (1 = (SELECT COUNT(*) FROM (
                SELECT 1 FROM answers WHERE kin = NEW.kin LIMIT 2)));
    END;
    CREATE TRIGGER IF NOT EXISTS labelled AFTER UPDATE OF labelled ON answers BEGIN
        UPDATE totals SET labels = labels + NEW.labelled - OLD.labelled,
            labelled_groups = labelled_groups + (1 = (SELECT COUNT(*) FROM (
                SELECT 1 FROM answers WHERE kin = NEW.kin AND labelled = 1 LIMIT 2)));
    END;
    CREATE TRIGGER IF NOT EXISTS moved AFTER UPDATE OF kin ON answers BEGIN
        UPDATE totals SET
            groups = groups - NOT EXISTS (SELECT 1 FROM answers WHERE kin = OLD.kin),
            labelled_groups = labelled_groups - (OLD.labelled AND NOT EXISTS (
                SELECT 1 FROM answers WHERE kin = OLD.kin AND labelled = 1
            )) + (OLD.labelled AND 1 = (SELECT COUNT(*) FROM (
                SELECT 1 FROM answers WHERE kin = NEW.kin AND labelled = 1 LIMIT 2)));
    END;
    CREATE TRIGGER IF NOT EXISTS forgotten AFTER DELETE ON answers BEGIN
        UPDATE totals SET answers = answers - 1, labels = labels - OLD.labelled,
            groups = groups - (OLD.kin IS NOT NULL AND NOT EXISTS (
                SELECT 1 FROM answers WHERE kin = OLD.kin)),
            labelled_groups = labelled_groups - (OLD.kin IS NOT NULL AND OLD.labelled AND NOT EXISTS
                (SELECT 1 FROM answers WHERE kin = OLD.kin AND labelled = 1));
    END;
"""
# The answers before the oldest that is young by either clock; those stand in the order of their
# coming, so that no more are looked at than go.
_AGED = """
    DELETE FROM answers WHERE rowid < (
        SELECT rowid FROM answers WHERE given >= ? OR steady >= ? ORDER BY rowid LIMIT 1
    )
"""

LARGEST = 100  # answers of a group from which on its name takes no more: copies it takes always


@dataclass(frozen=True)
class Entry:
    """What is kept of an answer: places, no text.

    Attributes:
        candidates: How many candidates it chose from.
        base: The candidates that share the top of the model's own scores.
        shown: Those that share the top of the scores that stood.
        overridden: Whether correction changed the answer.
    """

    candidates: int
    base: list[int]
    shown: list[int]
    overridden: bool

    @classmethod
    def of(cls, decision: Decision) -> "Entry":
        """What is kept of a decision."""
        base, answer = (tied_first(s).tolist() for s in (decision.base_scores, decision.scores))
        return cls(len(decision.candidates), base, answer, decision.corrected)

    def judge(self, right: Sequence[int]) -> tuple[bool, bool]:
        """Whether correction broke the answer, and whether it fixed it; ties count against it.

        Args:
            right: Places of the right candidates.
        """
        before = any(place in right for place in self.base)
        after = all(place in right for place in self.shown)
        return self.overridden and before and not after, self.overridden and after and not before


def connect(name: str) -> sqlite3.Connection:
    """A database of one service at a time, whose callers take turns by a lock of their own.

    Raises:
        sqlite3.Error: It cannot be used, or is in use.
    """
    connection = sqlite3.connect(name, timeout=1, check_same_thread=False)
    connection.execute("PRAGMA locking_mode = EXCLUSIVE")
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = NORMAL")  # else each answer waits for the disk
    connection.execute("PRAGMA foreign_keys = ON")
    return connection


class Ledger:
    """Answers and state of one service under one certificate.

    Args:
        path: The file; None keeps all in memory.
        certificate: Fingerprint of the certificate.
        items: Most answers that are remembered.
        seconds: How long one is remembered, by both clocks: either alone may stand wrong.
        clock: Seconds since the epoch, which may be set.
        steady: Seconds that never jump; those in which no service ran do not count.

    Attributes:
        fault: Why a file that can be read takes nothing, as on a full disk; None where it does.

    Raises:
        InputError: The file cannot be used, is in use, or belongs to another certificate.
    """

    fault: sqlite3.Error | None = None

    def __init__(
        self,
        path: Path | None,
        certificate: str,
        *,
        items: int,
        seconds: float,
        clock: Callable[[], float] = time.time,
        steady: Callable[[], float] = time.monotonic,
    ) -> None:
        self._items, self._seconds, self._clock, self._steady = items, seconds, clock, steady
        self._durable = path is not None
        owner = None
        try:
            self._open(":memory:" if path is None else str(path))
            owner = self.state("certificate")
            if owner not in (None, certificate):
                raise InputError(
                    f"{path} keeps the state of another certificate; name another file"
                )
            with self._connection:
                self.save(certificate=certificate)
        except sqlite3.Error as error:
            if owner != certificate:
                raise InputError(f"cannot keep state in {path}: {error}") from error
            self.fault = error

    def _open(self, name: str) -> None:
        self._connection = connect(name)
        self._connection.executescript(_TABLES)
        columns = [row[1] for row in self._connection.execute("PRAGMA table_info(answers)")]
        for name, kind in _ADDED.items():
            if name not in columns:
                self._connection.execute(f"ALTER TABLE answers ADD COLUMN {name} {kind}")
        self._connection.executescript(_TOTALS)
        (latest,) = self._connection.execute("SELECT MAX(steady) FROM answers").fetchone()
        self._before = (latest or 0.0) - self._steady()

    def _oldest(self) -> tuple[float, float]:
        """When what is just remembered was given, by either clock."""
        return self._clock() - self._seconds, self._before + self._steady() - self._seconds

    def close(self) -> None:
        """Let the file go."""
        self._connection.close()

    def kin(self, marks: Iterable[str]) -> list[str]:
        """The groups of remembered answers that share a mark, as `trust.groups` has them.

        A name (a group, a pair) joins no group of `LARGEST` answers: who names one for everything
        would else silence the tests. Copies say nothing new however many there are.
        """
        groups: dict[str, bool] = {}
        for mark in marks:
            row = self._connection.execute(
                "SELECT kin FROM marks JOIN answers ON answer = id WHERE mark = ?", (_digest(mark),)
            ).fetchone()
            if row is not None:
                groups[row[0]] = groups.get(row[0], False) or copies(mark)
        return sorted(kin for kin, same in groups.items() if same or not self._full(kin))

    def _full(self, kin: str) -> bool:
        """Whether a group has so many remembered answers that its name takes no more."""
        rows = "SELECT COUNT(*) FROM (SELECT 1 FROM answers WHERE kin = ? LIMIT ?)"
        (count,) = self._connection.execute(rows, (kin, LARGEST)).fetchone()
        return bool(count >= LARGEST)

    def remember(
        self,
        name: str,
        entry: Entry,
        statistics: Mapping[str, float],
        drift: Mapping[str, Any],
        marks: Sequence[str] = (),
    ) -> None:
        """One answer that was given, and where drift stands after it.

        Args:
            name: Its id.
            entry: What is kept of it.
            statistics: What drift saw of it.
            drift: `Drift.state()`.
            marks: What it shares with the others of its group; digests of them are kept.
        """
        row = (name, self._clock(), json.dumps(asdict(entry)), self._before + self._steady())
        with self._connection as connection:
            connection.execute(
                "INSERT INTO answers (id, given, entry, labelled, steady, kin) "
                "VALUES (?, ?, ?, 0, ?, ?)",
                (*row, self._join(self.kin(marks), name)),
            )
            connection.executemany(
                "INSERT OR REPLACE INTO marks VALUES (?, ?)", [(_digest(m), name) for m in marks]
            )
            connection.execute(_AGED, self._oldest())
            connection.execute(
                "DELETE FROM answers WHERE rowid <= (SELECT MAX(rowid) FROM answers) - ?",
                (self._items,),
            )
            if self._durable:
                self._keep(statistics, drift)

    def _join(self, kin: Sequence[str], name: str) -> str:
        """The group of an answer; the groups that it connects become one, the largest."""
        if len(kin) < 2:
            return kin[0] if kin else name
        count = "SELECT COUNT(*) FROM answers WHERE kin = ?"
        sizes = {one: self._connection.execute(count, (one,)).fetchone() for one in kin}
        largest = max(kin, key=sizes.__getitem__)
        self._connection.executemany(
            "UPDATE answers SET kin = ? WHERE kin = ?",
            [(largest, one) for one in kin if one != largest],
        )
        return largest

    def _keep(self, statistics: Mapping[str, float], drift: Mapping[str, Any]) -> None:
        for statistic in statistics:
            if drift["seen"].get(statistic) == 1:  # its test has just started again
                self._connection.execute("DELETE FROM seen WHERE statistic = ?", (statistic,))
        self._connection.executemany("INSERT INTO seen VALUES (?, ?)", statistics.items())
        self.save(drift=drift)

    def find(self, name: str) -> Entry:
        """An answer that waits for its label.

        Raises:
            Refusal: It was never given, is forgotten, or has its label.
        """
        row = self._connection.execute(
            "SELECT entry, labelled FROM answers WHERE id = ? AND (given >= ? OR steady >= ?)",
            (name, *self._oldest()),
        ).fetchone()
        if row is None:
            raise Refusal(
                "unknown_answer",
                f"no answer with this id is remembered: {self._items} are, for "
                f"{self._seconds:g} seconds; send feedback sooner",
            )
        if row[1]:
            raise Refusal("repeated_feedback", "this answer has its label; the first one counts")
        return Entry(**json.loads(row[0]))

    def first(self, name: str) -> bool:
        """Whether no answer of the same group that is remembered has a label."""
        row = self._connection.execute(
            "SELECT 1 FROM answers WHERE labelled = 1 "
            "AND kin = (SELECT kin FROM answers WHERE id = ?) LIMIT 1",
            (name,),
        ).fetchone()
        return row is None

    def counts(self) -> dict[str, int]:
        """How many answers are remembered, how many have labels, and the groups that each make."""
        names = ("answers", "groups", "labels", "labelled_groups")
        row = self._connection.execute(f"SELECT {', '.join(names)} FROM totals").fetchone()
        return {name: int(count) for name, count in zip(names, row, strict=True)}

    def label(self, name: str, **state: Any) -> None:
        """Mark an answer as labelled, and keep what changed by it, at once."""
        with self._connection as connection:
            connection.execute("UPDATE answers SET labelled = 1 WHERE id = ?", (name,))
            self.save(**state)

    def save(self, **state: Any) -> None:
        """Keep values by name, as JSON, within the caller's transaction."""
        rows = [(name, json.dumps(value)) for name, value in state.items()]
        self._connection.executemany("INSERT OR REPLACE INTO state VALUES (?, ?)", rows)

    def state(self, name: str) -> Any:
        """A value that was kept; None where none was."""
        row = self._connection.execute("SELECT value FROM state WHERE name = ?", (name,)).fetchone()
        return None if row is None else json.loads(row[0])

    def seen(self) -> dict[str, list[float]]:
        """Values of each statistic since its test started."""
        values: dict[str, list[float]] = {}
        for statistic, value in self._connection.execute("SELECT statistic, value FROM seen"):
            values.setdefault(statistic, []).append(value)
        return values


def _digest(mark: str) -> str:
    return hashlib.sha256(mark.encode(errors="replace")).hexdigest()
