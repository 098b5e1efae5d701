"""Ledger: answers that may still be labelled, and the state of a service's tests.

In a file or a database (`--state`) it outlives the process. Without either it is in memory, and
the values that drift has seen, which are only needed for a restart, are not kept at all. No text
of a request is in it, unless `--keep-texts` asks for it: then `labelled_rows` gives what was
labelled. All calls are made within an `event`.
"""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from lastword.errors import InputError
from lastword.records.decision import Decision
from lastword.rule.geometry import tied_first
from lastword.service.database import Database, Unkept
from lastword.service.refusal import Refusal

_TABLES = (
    """
    CREATE TABLE IF NOT EXISTS given (
        {order} id TEXT PRIMARY KEY, given DOUBLE PRECISION NOT NULL,
        steady DOUBLE PRECISION NOT NULL, entry TEXT NOT NULL, text TEXT NOT NULL, kin TEXT,
        labelled INTEGER NOT NULL DEFAULT 0
    )
    """,
    "CREATE INDEX IF NOT EXISTS by_text ON given (text, labelled)",
    "CREATE INDEX IF NOT EXISTS by_kin ON given (kin) WHERE kin IS NOT NULL",
    """
    CREATE TABLE IF NOT EXISTS texts (
        id TEXT PRIMARY KEY REFERENCES given (id) ON DELETE CASCADE, content TEXT NOT NULL
    )
    """,
    "CREATE TABLE IF NOT EXISTS labels ({order} id TEXT PRIMARY KEY, content TEXT NOT NULL)",
    """
    CREATE TABLE IF NOT EXISTS seen (
        {order} statistic TEXT NOT NULL, value DOUBLE PRECISION NOT NULL
    )
    """,
    "CREATE TABLE IF NOT EXISTS state (name TEXT PRIMARY KEY, value TEXT NOT NULL)",
)
# The answers before the oldest that is young by either clock; those stand in the order of their
# coming, so that no more are looked at than go.
_AGED = """
    DELETE FROM given WHERE rowid < (
        SELECT rowid FROM given WHERE given >= ? OR steady >= ? ORDER BY rowid LIMIT 1
    )
"""
_BEYOND = "DELETE FROM given WHERE rowid <= (SELECT MAX(rowid) FROM given) - ?"
_SAVE = "INSERT INTO state VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET value = excluded.value"
# Answers, texts, labels, labelled texts. A text that was asked three times is three answers and one
# group: the tests take one label of it (`first`), for the others would say the same thing again.
_COUNTS = """
    SELECT COUNT(*), COUNT(DISTINCT text), COUNT(*) FILTER (WHERE labelled = 1),
        COUNT(DISTINCT text) FILTER (WHERE labelled = 1) FROM given
"""


@dataclass(frozen=True)
class Entry:
    """The stored part of an answer: places, no text."""

    candidates: int
    base: list[int]  # who share the top of the model's scores; none of a probe's answer
    shown: list[int]  # who share the top of the scores that stood
    overridden: bool

    @classmethod
    def of(cls, decision: Decision) -> "Entry":
        """Return what the ledger keeps of a decision."""
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


class Ledger:
    """Answers and state of the services under one certificate.

    Args:
        state: The file or the database's address; None keeps all in memory.
        certificate: Fingerprint of the certificate.
        items: Most answers that are remembered.
        seconds: How long one is remembered, by both clocks: either alone may stand wrong.
        clock: Seconds since the epoch, which may be set.
        steady: Seconds that never jump; those in which no service ran do not count.

    Attributes:
        fault: Why a file that can be read takes nothing, as on a full disk; None where it does.
        shared: True if other services may have written since the last event.
        event: What is done within is done as a whole, or not at all (`Database.event`).

    Raises:
        InputError: It cannot be used, is in use, or belongs to another certificate.
    """

    fault: Unkept | None = None

    def __init__(
        self,
        state: str | Path | None,
        certificate: str,
        *,
        items: int,
        seconds: float,
        clock: Callable[[], float] = time.time,
        steady: Callable[[], float] = time.monotonic,
    ) -> None:
        self._items, self._seconds, self._clock, self._steady = items, seconds, clock, steady
        self._durable, self._place, owner = state is not None, 0, None
        database = Database(state)
        self.shared, self.event, self.close = database.shared, database.event, database.close
        self._execute = database.execute
        try:
            with self.event():
                for table in _TABLES:
                    self._execute(table.format(order=database.order))
                ((latest,),) = self._execute("SELECT MAX(steady) FROM given")
                self._before = (latest or 0.0) - self._steady()
                if (owner := self.state("certificate")) in (None, certificate):
                    # A time, for SQLite writes nothing over itself, and a disk may be full.
                    self.save(certificate=certificate, opened=clock())
        except Unkept as error:
            if owner != certificate:
                raise InputError(f"cannot keep state in {database.name}: {error}") from error
            self.fault = error
        if owner not in (None, certificate):
            self.close()
            what = "keeps the state of another certificate; name another"
            raise InputError(f"{database.name} {what}")

    def _oldest(self) -> tuple[float, float]:
        """Return the times of the oldest remembered answer, by either clock."""
        return self._clock() - self._seconds, self._before + self._steady() - self._seconds

    def knows(self, text: str) -> bool:
        """Return True if an answer to the same text is remembered."""
        return bool(self._execute("SELECT 1 FROM given WHERE text = ? LIMIT 1", (text,)))

    def remember(
        self,
        name: str,
        entry: Entry,
        statistics: Mapping[str, float],
        drift: Mapping[str, Any],
        text: str,
        content: Mapping[str, Any] | None = None,
    ) -> None:
        """Store an answer, and the state of drift after it.

        Args:
            name: Its id.
            entry: What is kept of it.
            statistics: What drift saw of it.
            drift: `Drift.state()`.
            text: Digest of what was asked.
            content: What was asked, in words, where that is to be kept.
        """
        row = (name, self._clock(), self._before + self._steady(), json.dumps(asdict(entry)), text)
        self._execute(
            "INSERT INTO given (id, given, steady, entry, text) VALUES (?, ?, ?, ?, ?)", row
        )
        if content is not None:
            self._execute("INSERT INTO texts VALUES (?, ?)", (name, json.dumps(content)))
        self._execute(_AGED, self._oldest())
        self._execute(_BEYOND, (self._items,))
        if not (self._durable and statistics):
            return
        for statistic in statistics:
            if drift["seen"].get(statistic) == 1:  # its test began anew
                self._execute("DELETE FROM seen WHERE statistic = ?", (statistic,))
        rows = ", ".join(["(?, ?)"] * len(statistics))
        values = [value for pair in statistics.items() for value in pair]
        self._execute(f"INSERT INTO seen (statistic, value) VALUES {rows}", values)
        ((self._place,),) = self._execute("SELECT MAX(rowid) FROM seen")
        self.save(drift=drift)

    def find(self, name: str) -> Entry:
        """Return an answer that waits for its label.

        Raises:
            Refusal: It was never given, is forgotten, or has its label.
        """
        rows = self._execute(
            "SELECT entry, labelled FROM given WHERE id = ? AND (given >= ? OR steady >= ?)",
            (name, *self._oldest()),
        )
        if not rows:
            raise Refusal(
                "unknown_answer",
                f"no answer with this id is remembered: {self._items} are, for "
                f"{self._seconds:g} seconds; send feedback sooner",
            )
        ((entry, labelled),) = rows
        if labelled:
            raise Refusal("repeated_feedback", "this answer has its label; the first one counts")
        return Entry(**json.loads(entry))

    def first(self, name: str, kin: str | None) -> bool:
        """Return True if no answer of the same text or group has a label."""
        return not self._execute(
            "SELECT 1 FROM given WHERE labelled = 1 "
            "AND (text = (SELECT text FROM given WHERE id = ?) OR kin = ?) LIMIT 1",
            (name, kin),
        )

    def counts(self) -> dict[str, int]:
        """Count the answers that are remembered, those with labels, and the texts of each."""
        names = ("answers", "groups", "labels", "labelled_groups")
        (row,) = self._execute(_COUNTS)
        return dict(zip(names, row, strict=True))

    def label(self, name: str, kin: str | None, right: Sequence[int] = (), **state: Any) -> None:
        """Mark an answer as labelled, and store the changed state."""
        for (content,) in self._execute("SELECT content FROM texts WHERE id = ?", (name,)):
            label = json.loads(content) | {"right": list(right), "group": kin}
            row = (name, json.dumps(label))
            self._execute("INSERT INTO labels (id, content) VALUES (?, ?)", row)
        self._execute("UPDATE given SET labelled = 1, kin = ? WHERE id = ?", (kin, name))
        self.save(**state)

    def save(self, **state: Any) -> None:
        """Keep values by name, as JSON."""
        for name, value in state.items():
            self._execute(_SAVE, (name, json.dumps(value)))

    def state(self, name: str) -> Any:
        """Return a stored value, or None."""
        rows = self._execute("SELECT value FROM state WHERE name = ?", (name,))
        try:
            return json.loads(rows[0][0]) if rows else None
        except ValueError as error:
            raise InputError(f"the state has no JSON as {name}: name another --state") from error

    def seen(self, *, anew: bool = True) -> dict[str, list[float]]:
        """Values of each statistic since its test started, or since this ledger saw it last."""
        values: dict[str, list[float]] = {}
        row = "SELECT rowid, statistic, value FROM seen WHERE rowid > ? ORDER BY rowid"
        for place, statistic, value in self._execute(row, (0 if anew else self._place,)):
            self._place = place
            values.setdefault(statistic, []).append(value)
        return values


def labelled_rows(state: str) -> tuple[list[dict[str, str]], int]:
    """Return the labels in a state as rows that `lastword try` takes, and how many are left.

    Answers of which more than one option was right are left out. No service may have a file open.

    Raises:
        InputError: There is no such file, it is in use, or it is none.
    """
    database = Database(state)
    if not database.shared and not Path(state).is_file():
        raise InputError(f"no state in {state}: expected what `lastword serve --state` names")
    try:
        with database.event(alone=False):
            read = dict(database.execute("SELECT id, content FROM labels ORDER BY rowid"))
    except Unkept as error:
        what = "" if database.shared else "; stop the service first"
        raise InputError(f"cannot read labels in {database.name}: {error}{what}") from error
    finally:
        database.close()
    labels = {name: json.loads(content) for name, content in read.items()}
    rows = [_row(name, entry) for name, entry in labels.items() if len(entry["right"]) == 1]
    return rows, len(labels) - len(rows)


def _row(name: str, entry: Mapping[str, Any]) -> dict[str, str]:
    return {
        "id": name,
        "text": entry["text"],
        "label": entry["choices"][entry["right"][0]],
        "choices": json.dumps(entry["choices"], ensure_ascii=False),
        "instructions": entry["instructions"],
        "group": entry["group"] or "",
    }
