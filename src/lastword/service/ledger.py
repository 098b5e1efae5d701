"""Ledger: answers that can still be labelled, and the state of a service's tests.

With `--state` it is in a file or a database and outlives the process. Without it, it is in memory,
and does not store the values that drift has seen, which only a restart needs. It has no text of a
request, except under `--keep-texts`: then `labelled_rows` returns the labelled texts. All methods
are called within an `event`.
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
from lastword.service.database import Database, DatabaseError
from lastword.service.refusal import Refusal

# `given` has the answers, `texts` and `labels` what --keep-texts keeps, `seen` the values of drift,
# and `state` the tests. `kin` is the group that the labeller names: GROUP is a word of SQL.
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
# Deletes the answers before the first one that is young by either clock. Rows are in the order of
# arrival, so the subquery reads no more rows than are deleted.
_AGED = """
    DELETE FROM given WHERE rowid < (
        SELECT rowid FROM given WHERE given >= ? OR steady >= ? ORDER BY rowid LIMIT 1
    )
"""
_BEYOND = "DELETE FROM given WHERE rowid <= (SELECT MAX(rowid) FROM given) - ?"
_SAVE = "INSERT INTO state VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET value = excluded.value"
# Answers, texts, labels, labelled texts. Three requests with one text are three answers and one
# group: the tests count one label of a group (`first`), because its answers are not independent.
_COUNTS = """
    SELECT COUNT(*), COUNT(DISTINCT text), COUNT(*) FILTER (WHERE labelled = 1),
        COUNT(DISTINCT text) FILTER (WHERE labelled = 1) FROM given
"""


@dataclass(frozen=True)
class Entry:
    """The stored part of an answer, without text.

    Attributes:
        candidates: Number of candidates.
        base: Indices of the candidates with the model's top score; empty for a probe's answer.
        shown: Indices of the candidates with the top score of the given answer.
        overridden: True if correction changed the answer.
    """

    candidates: int
    base: list[int]
    shown: list[int]
    overridden: bool

    @classmethod
    def of(cls, decision: Decision) -> "Entry":
        """Return the entry of a decision."""
        base, answer = (tied_first(s).tolist() for s in (decision.base_scores, decision.scores))
        return cls(len(decision.candidates), base, answer, decision.corrected)

    def judge(self, right: Sequence[int]) -> tuple[bool, bool]:
        """Return whether correction broke the answer, and whether it fixed it.

        Ties count against correction: the model is right if one of its top candidates is, the
        given answer only if all are.
        """
        before = any(place in right for place in self.base)
        after = all(place in right for place in self.shown)
        return self.overridden and before and not after, self.overridden and after and not before


class Ledger:
    """The answers and the state of all services under one certificate.

    Args:
        state: The file or the database's address; None for memory.
        certificate: Fingerprint of the certificate.
        items: Maximum number of answers that are remembered.
        seconds: Time for which an answer is remembered. It is forgotten only if it is too old by
            both clocks, because either may be wrong.
        clock: Seconds since the epoch, which somebody may set.
        steady: Seconds that never jump, but do not count while no service runs.

    Attributes:
        fault: The reason why a readable file cannot be written (a full disk), or None.
        shared: True if other services may have written since the last event.
        event: A transaction, as `Database.event`.

    Raises:
        InputError: The state cannot be used, is in use, or belongs to another certificate.
    """

    fault: DatabaseError | None = None

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
        # `_place` is the last row of `seen` that this service has read or written.
        self._durable, self._place, owner = state is not None, 0, None
        database = Database(state)
        self.shared, self.event, self.close = database.shared, database.event, database.close
        self._execute = database.execute
        try:
            with self.event():
                for table in _TABLES:
                    self._execute(table.format(order=database.order))
                ((latest,),) = self._execute("SELECT MAX(steady) FROM given")
                # Continues the steady clock of the service that wrote the last answer.
                self._before = (latest or 0.0) - self._steady()
                if (owner := self.state("certificate")) in (None, certificate):
                    # The time makes SQLite write, which shows if the disk is full.
                    self.save(certificate=certificate, opened=clock())
        except DatabaseError as error:
            if owner != certificate:
                raise InputError(f"cannot keep state in {database.name}: {error}") from error
            self.fault = error
        if owner not in (None, certificate):
            self.close()
            what = "keeps the state of another certificate; name another"
            raise InputError(f"{database.name} {what}")

    def _oldest(self) -> tuple[float, float]:
        """Return the earliest time of a remembered answer, by each clock."""
        return self._clock() - self._seconds, self._before + self._steady() - self._seconds

    def knows(self, text: str) -> bool:
        """Return True if an answer to this text is remembered."""
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
        """Store an answer and the state of drift after it, and forget old answers.

        Args:
            name: The answer's id.
            entry: The answer's entry.
            statistics: The values of the answer that drift has seen.
            drift: `Drift.state()`.
            text: Digest of the request's text.
            content: The request in words, under `--keep-texts`.
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
            if drift["seen"].get(statistic) == 1:  # its test has just started
                self._execute("DELETE FROM seen WHERE statistic = ?", (statistic,))
        rows = ", ".join(["(?, ?)"] * len(statistics))
        values = [value for pair in statistics.items() for value in pair]
        self._execute(f"INSERT INTO seen (statistic, value) VALUES {rows}", values)
        ((self._place,),) = self._execute("SELECT MAX(rowid) FROM seen")
        self.save(drift=drift)

    def find(self, name: str) -> Entry:
        """Return an answer that has no label yet.

        Raises:
            Refusal: The answer is unknown or forgotten, or has a label.
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

    def first(self, name: str, group: str | None) -> bool:
        """Return True if no answer to the same text, or of this group, has a label."""
        return not self._execute(
            "SELECT 1 FROM given WHERE labelled = 1 "
            "AND (text = (SELECT text FROM given WHERE id = ?) OR kin = ?) LIMIT 1",
            (name, group),
        )

    def counts(self) -> dict[str, int]:
        """Count the remembered answers, those with labels, and the texts of each."""
        names = ("answers", "groups", "labels", "labelled_groups")
        (row,) = self._execute(_COUNTS)
        return dict(zip(names, row, strict=True))

    def label(self, name: str, group: str | None, right: Sequence[int] = (), **state: Any) -> None:
        """Mark an answer as labelled, and save the state after it."""
        for (content,) in self._execute("SELECT content FROM texts WHERE id = ?", (name,)):
            label = json.loads(content) | {"right": list(right), "group": group}
            row = (name, json.dumps(label))
            self._execute("INSERT INTO labels (id, content) VALUES (?, ?)", row)
        self._execute("UPDATE given SET labelled = 1, kin = ? WHERE id = ?", (group, name))
        self.save(**state)

    def save(self, **state: Any) -> None:
        """Store values as JSON, by name."""
        for name, value in state.items():
            self._execute(_SAVE, (name, json.dumps(value)))

    def state(self, name: str) -> Any:
        """Return a stored value, or None."""
        rows = self._execute("SELECT value FROM state WHERE name = ?", (name,))
        try:
            return json.loads(rows[0][0]) if rows else None
        except ValueError as error:
            raise InputError(
                f"the state has no valid JSON as {name}: name another --state"
            ) from error

    def seen(self, *, anew: bool = True) -> dict[str, list[float]]:
        """Return each statistic's values: all, or those stored since the last call."""
        values: dict[str, list[float]] = {}
        row = "SELECT rowid, statistic, value FROM seen WHERE rowid > ? ORDER BY rowid"
        for place, statistic, value in self._execute(row, (0 if anew else self._place,)):
            self._place = place
            values.setdefault(statistic, []).append(value)
        return values


def labelled_rows(state: str) -> tuple[list[dict[str, str]], int]:
    """Return the labels in a state as rows for `lastword try`, and the number of those left out.

    Answers with several right options are left out. No service may have a file open.

    Raises:
        InputError: The file does not exist, is in use, or is not a state.
    """
    database = Database(state)
    if not database.shared and not Path(state).is_file():
        raise InputError(f"no state in {state}: expected that of `lastword serve --state`")
    try:
        with database.event(alone=False):
            read = dict(database.execute("SELECT id, content FROM labels ORDER BY rowid"))
    except DatabaseError as error:
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
