"""Ledger: answers that may still be labelled, and where the tests of a service stand; SQLite.

In a file (`--state`) it outlives the process: every event is one transaction of a write-ahead log,
so that a process that is killed loses at most the event in hand. Without a file it is in memory,
and the values that drift has seen, which are only needed for a restart, are not kept at all. No
text of a request is in it, unless `--keep-texts` asks for it: then `labelled_rows` gives what was
labelled.
"""

import json
import sqlite3
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from lastword.errors import InputError
from lastword.records.decision import Decision
from lastword.rule.geometry import tied_first
from lastword.service.refusal import Refusal

_TABLES = """
    CREATE TABLE IF NOT EXISTS given (
        id TEXT PRIMARY KEY, given REAL NOT NULL, steady REAL NOT NULL, entry TEXT NOT NULL,
        text TEXT NOT NULL, kin TEXT, labelled INTEGER NOT NULL DEFAULT 0
    );
    CREATE INDEX IF NOT EXISTS by_text ON given (text, labelled);
    CREATE INDEX IF NOT EXISTS by_kin ON given (kin) WHERE kin IS NOT NULL;
    CREATE TABLE IF NOT EXISTS texts (
        id TEXT PRIMARY KEY REFERENCES given (id) ON DELETE CASCADE, content TEXT NOT NULL
    );
    CREATE TABLE IF NOT EXISTS labels (id TEXT PRIMARY KEY, content TEXT NOT NULL);
    CREATE TABLE IF NOT EXISTS seen (statistic TEXT NOT NULL, value REAL NOT NULL);
    CREATE TABLE IF NOT EXISTS state (name TEXT PRIMARY KEY, value TEXT NOT NULL);
"""
# The answers before the oldest that is young by either clock; those stand in the order of their
# coming, so that no more are looked at than go.
_AGED = """
    DELETE FROM given WHERE rowid < (
        SELECT rowid FROM given WHERE given >= ? OR steady >= ? ORDER BY rowid LIMIT 1
    )
"""
_BEYOND = "DELETE FROM given WHERE rowid <= (SELECT MAX(rowid) FROM given) - ?"
# Answers, texts, labels, labelled texts. A text that was asked three times is three answers and one
# group: the tests take one label of it (`first`), for the others would say the same thing again.
_COUNTS = """
    SELECT COUNT(*), COUNT(DISTINCT text), TOTAL(labelled),
        COUNT(DISTINCT text) FILTER (WHERE labelled) FROM given
"""


@dataclass(frozen=True)
class Entry:
    """What is kept of an answer: places, no text."""

    candidates: int
    base: list[int]  # who share the top of the model's own scores; none of a probe's answer
    shown: list[int]  # who share the top of the scores that stood
    overridden: bool

    @classmethod
    def of(cls, decision: Decision) -> "Entry":
        """What is kept of a decision."""
        base, answer = (tied_first(s).tolist() for s in (decision.base_scores, decision.scores))
        return cls(len(decision.candidates), base, answer, decision.corrected)

    @property
    def known(self) -> bool:
        """True if a label says whether the answer was broken or fixed."""
        return bool(self.base)

    def judge(self, right: Sequence[int]) -> tuple[bool, bool]:
        """Return whether correction broke the answer, and fixed it; ties count against it."""
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
        (latest,) = self._connection.execute("SELECT MAX(steady) FROM given").fetchone()
        self._before = (latest or 0.0) - self._steady()

    def _oldest(self) -> tuple[float, float]:
        """When what is just remembered was given, by either clock."""
        return self._clock() - self._seconds, self._before + self._steady() - self._seconds

    def close(self) -> None:
        """Let the file go."""
        self._connection.close()

    def knows(self, text: str) -> bool:
        """True if an answer to the same text is remembered."""
        row = "SELECT 1 FROM given WHERE text = ? LIMIT 1"
        return self._connection.execute(row, (text,)).fetchone() is not None

    def remember(
        self,
        name: str,
        entry: Entry,
        statistics: Mapping[str, float],
        drift: Mapping[str, Any],
        text: str,
        content: Mapping[str, Any] | None = None,
    ) -> None:
        """Keep one answer that was given, and where drift stands after it.

        Args:
            name: Its id.
            entry: What is kept of it.
            statistics: What drift saw of it.
            drift: `Drift.state()`.
            text: Digest of what was asked.
            content: What was asked, in words, where that is to be kept.
        """
        row = (name, self._clock(), self._before + self._steady(), json.dumps(asdict(entry)), text)
        with self._connection as connection:
            connection.execute(
                "INSERT INTO given (id, given, steady, entry, text) VALUES (?, ?, ?, ?, ?)", row
            )
            if content is not None:
                connection.execute("INSERT INTO texts VALUES (?, ?)", (name, json.dumps(content)))
            connection.execute(_AGED, self._oldest())
            connection.execute(_BEYOND, (self._items,))
            if not self._durable:
                return
            anew = [(name,) for name in statistics if drift["seen"].get(name) == 1]
            connection.executemany("DELETE FROM seen WHERE statistic = ?", anew)
            connection.executemany("INSERT INTO seen VALUES (?, ?)", statistics.items())
            self.save(drift=drift)

    def find(self, name: str) -> Entry:
        """An answer that waits for its label.

        Raises:
            Refusal: It was never given, is forgotten, or has its label.
        """
        row = self._connection.execute(
            "SELECT entry, labelled FROM given WHERE id = ? AND (given >= ? OR steady >= ?)",
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

    def first(self, name: str, kin: str | None) -> bool:
        """True if no answer of the same text, or of the group that its labeller names, has one."""
        row = self._connection.execute(
            "SELECT 1 FROM given WHERE labelled = 1 "
            "AND (text = (SELECT text FROM given WHERE id = ?) OR kin = ?) LIMIT 1",
            (name, kin),
        ).fetchone()
        return row is None

    def counts(self) -> dict[str, int]:
        """Count the answers that are remembered, those with labels, and the texts of each."""
        names = ("answers", "groups", "labels", "labelled_groups")
        row = self._connection.execute(_COUNTS).fetchone()
        return {name: int(count) for name, count in zip(names, row, strict=True)}

    def label(self, name: str, kin: str | None, right: Sequence[int] = (), **state: Any) -> None:
        """Mark an answer as labelled, and keep what changed by it, at once."""
        with self._connection as connection:
            row = "SELECT content FROM texts WHERE id = ?"
            if (kept := connection.execute(row, (name,)).fetchone()) is not None:
                label = json.loads(kept[0]) | {"right": list(right), "group": kin}
                row = "INSERT INTO labels VALUES (?, ?)"
                connection.execute(row, (name, json.dumps(label)))
            row = "UPDATE given SET labelled = 1, kin = ? WHERE id = ?"
            connection.execute(row, (kin, name))
            self.save(**state)

    def save(self, **state: Any) -> None:
        """Keep values by name, as JSON, within the caller's transaction."""
        rows = [(name, json.dumps(value)) for name, value in state.items()]
        self._connection.executemany("INSERT OR REPLACE INTO state VALUES (?, ?)", rows)

    def state(self, name: str) -> Any:
        """A value that was kept; None where none was."""
        row = self._connection.execute("SELECT value FROM state WHERE name = ?", (name,)).fetchone()
        try:
            return None if row is None else json.loads(row[0])
        except ValueError as error:
            raise InputError(f"the state has no JSON as {name}: name another --state") from error

    def seen(self) -> dict[str, list[float]]:
        """Values of each statistic since its test started."""
        values: dict[str, list[float]] = {}
        for statistic, value in self._connection.execute("SELECT statistic, value FROM seen"):
            values.setdefault(statistic, []).append(value)
        return values


def labelled_rows(path: Path) -> tuple[list[dict[str, str]], int]:
    """Return the labels in a state file as rows that `lastword try` takes, and how many are left.

    Answers of which more than one option was right are left out. No service may have the file open.

    Raises:
        InputError: There is no such file, it is in use, or it is none.
    """
    if not path.is_file():
        raise InputError(f"no state in {path}: expected the file of `lastword serve --state`")
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as own:
            stored = own.execute("SELECT id, content FROM labels ORDER BY rowid").fetchall()
    except sqlite3.Error as error:
        raise InputError(
            f"cannot read labels in {path}: {error}; stop the service first"
        ) from error
    read = {name: json.loads(content) for name, content in stored}
    rows = [_row(name, own) for name, own in read.items() if len(own["right"]) == 1]
    return rows, len(read) - len(rows)


def _row(name: str, own: Mapping[str, Any]) -> dict[str, str]:
    return {
        "id": name,
        "text": own["text"],
        "label": own["choices"][own["right"][0]],
        "choices": json.dumps(own["choices"], ensure_ascii=False),
        "instructions": own["instructions"],
        "group": own["group"] or "",
    }
