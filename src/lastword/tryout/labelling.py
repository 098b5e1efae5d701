"""Labelling: the labels of a table's rows, round by round, in an SQLite database.

Rounds after the first are the looks of the second round. A row without a number waits for its
label; a row with a number and without a label was skipped.
"""

import sqlite3
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from statistics import median
from threading import Condition
from typing import Any

from lastword.errors import InputError
from lastword.model.weights.identity import text_digest

FILE = "labels.sqlite"
_PAUSE_SECONDS = 120.0  # longer gaps between labels are breaks, and do not count for the pace
_PACE_OF = 20  # number of last labels that the pace is computed from
_TABLES = (
    "CREATE TABLE IF NOT EXISTS task (question TEXT NOT NULL)",
    "CREATE TABLE IF NOT EXISTS labels (round INTEGER NOT NULL, place INTEGER NOT NULL, "
    "row TEXT NOT NULL, text TEXT NOT NULL, number INTEGER, label TEXT, time REAL, "
    "PRIMARY KEY (round, row))",
)


class Repeated(InputError):
    """The row has a label already."""


class Labelling:
    """Labels of a table's rows. Several threads may use it.

    Args:
        path: The database; it is created if it does not exist.
        texts: The text of each row of the table by its id.
        options: The labels to choose from.
        question: Digest of the question.
        first: The rows of round one, unless the database has some.

    Attributes:
        change: Condition that is notified after each label and each new round.
        round: The number of the round, from 1.

    Raises:
        InputError: The database cannot be used or has labels of another question, or one of its
            rows was edited or removed.
    """

    def __init__(
        self,
        path: Path,
        texts: Mapping[str, str],
        options: Sequence[str],
        question: str,
        first: Sequence[str],
    ) -> None:
        self.texts, self.options, self.change = texts, tuple(options), Condition()
        self.round, self._path = 1, path
        try:
            for table in _TABLES:
                self._do(table)
            self._do("INSERT INTO task SELECT ? WHERE NOT EXISTS (SELECT * FROM task)", question)
            ((stored,),) = self._do("SELECT question FROM task")
            rows = self._do("SELECT row, text FROM labels")
        except sqlite3.Error as error:
            raise InputError(
                f"cannot use {path}: {error}. Restore the file, or choose another folder with --out"
            ) from error
        if stored != question:
            raise InputError(
                f"{path} has labels of another question. Give the same --choices, --instructions "
                "and --describe, or choose another folder with --out"
            )
        for row, digest in rows:
            if row not in texts or text_digest(texts[row]) != digest:
                what = "was edited" if row in texts else "is gone"
                raise InputError(
                    f"row {row} of the table {what} since labelling began. Restore it, or choose "
                    "another folder with --out"
                )
        self.open(1, first)

    def open(self, number: int, rows: Sequence[str]) -> None:
        """Begin or continue a round; a new one shows these rows in this order."""
        with self.change:
            self.round = number
            if not self.rows and rows:
                marks = ", ".join(["(?, ?, ?, ?)"] * len(rows))
                values = list[str | float | None]()
                for place, row in enumerate(rows):
                    values += number, place, row, text_digest(self.texts[row])
                self._do(
                    f"INSERT INTO labels (round, place, row, text) VALUES {marks}",
                    *values,
                )
            self.change.notify_all()

    @property
    def rows(self) -> tuple[str, ...]:
        """The rows of this round."""
        return self.rows_of(self.round)

    def rows_of(self, number: int) -> tuple[str, ...]:
        """Return the rows of a round in the order in which they are shown."""
        rows = self._do("SELECT row FROM labels WHERE round = ? ORDER BY place", number)
        return tuple(row for (row,) in rows)

    @property
    def labels(self) -> dict[str, str | None]:
        """The labels of this round by row; None for a skipped row."""
        return self.labels_of(self.round)

    def labels_of(self, number: int) -> dict[str, str | None]:
        """Return the labels of a round by row, the last one last; None for a skipped row."""
        return dict(
            self._do(
                "SELECT row, label FROM labels WHERE round = ? AND number NOT NULL ORDER BY number",
                number,
            )
        )

    @property
    def complete(self) -> bool:
        """True if each row of this round has a label or was skipped."""
        return self.next() is None

    @property
    def seconds_per_label(self) -> float | None:
        """The median time from one label to the next in seconds; None before the second label."""
        rows = self._do("SELECT time FROM labels WHERE number NOT NULL ORDER BY time")
        steps = [b - a for (a,), (b,) in pairwise(rows) if 0 < b - a < _PAUSE_SECONDS]
        return median(steps[-_PACE_OF:]) if steps else None

    def next(self) -> str | None:
        """Return the id of the first row without a label in this round; None if there is none."""
        rows = self._do(
            "SELECT row FROM labels WHERE round = ? AND number IS NULL ORDER BY place LIMIT 1",
            self.round,
        )
        return next((row for (row,) in rows), None)

    def give(self, row: str, label: str | None) -> None:
        """Label a row, or skip it with None. The label is on the disk when this returns.

        Raises:
            Repeated: The row has a label already.
            InputError: The row is not in this round, or the label is not an option.
            sqlite3.Error: The label cannot be written.
        """
        with self.change:
            if row not in self.rows:
                raise InputError(f"row {row} is not a row of this round")
            if row in self.labels:
                raise Repeated(f"row {row} has been labelled already, perhaps in another tab")
            if label is not None and label not in self.options:
                raise InputError(f"{label!r} is not one of {', '.join(self.options)}")
            self._do(
                "UPDATE labels SET label = ?, time = ?, "
                "number = (SELECT COALESCE(MAX(number), 0) + 1 FROM labels) "
                "WHERE round = ? AND row = ?",
                label,
                time.time(),
                self.round,
                row,
            )
            self.change.notify_all()

    def undo(self) -> str | None:
        """Undo the last label of this round, and return its row; None if there is none.

        A complete round cannot be changed, because its labels are in use.

        Raises:
            sqlite3.Error: The change cannot be written.
        """
        with self.change:
            if self.complete or not (labels := self.labels):
                return None
            row = [*labels][-1]
            self._do(
                "UPDATE labels SET label = NULL, time = NULL, number = NULL "
                "WHERE round = ? AND row = ?",
                self.round,
                row,
            )
            return row

    def _do(self, statement: str, *values: str | float | None) -> list[tuple[Any, ...]]:
        """Run a statement, which is on the disk when this returns, and return its rows."""
        with closing(sqlite3.connect(self._path)) as base, base:
            return base.execute(statement, values).fetchall()
