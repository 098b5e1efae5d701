"""The rows that a person labels: `OUT/labels.csv`, with one row per text.

    id,text,round,label
    17,Where is my parcel?,1,shipping
    4,I want my money back,2,

Round 1 has the first rows of a table without labels. Later rounds have the rows on which a fixed
probe and the model differ, or that it answers with confidence. Labels come from the page of
`lastword label`, or from any editor of tables.
"""

import logging
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from threading import Condition

import numpy as np

from lastword.errors import InputError
from lastword.files.cells import cell_text, csv_line, text_fault, visible
from lastword.files.rows import read_objects
from lastword.files.wording import counted
from lastword.files.writing import write_text
from lastword.trust.groups import SEED

_log = logging.getLogger("lastword")

FILE = "labels.csv"
_COLUMNS = ("id", "text", "round", "label")

Rounds = dict[int, dict[str, str | None]]
"""Labels by row, by round; None for a row without a label."""


class Repeated(InputError):
    """The row is not the one that waits for a label."""


class Labelling:
    """The rows of `labels.csv`, by round, in the order in which they are shown.

    Several threads may use it; `change` is notified after each label and each new round. `skipped`
    are rows that the person has left without a label.

    Raises:
        InputError: A row or column of the file is missing, or a row was edited or is there twice.
    """

    def __init__(self, out: Path, texts: Mapping[str, str]) -> None:
        self.path, self.texts, self.change = out / FILE, texts, Condition()
        self.rounds, self.skipped = Rounds(), set[str]()
        self.read()

    def read(self) -> None:
        """Read the file. Rows are matched by text, because a spreadsheet may rewrite their ids."""
        rounds, seen, rewritten = Rounds(), set[str](), dict[str, str]()
        ids = {_key(visible(text)): id for id, text in reversed([*self.texts.items()])}
        rows = read_objects(self.path) if self.path.exists() else []
        for place, row in enumerate(rows, start=2):
            if missing := [name for name in _COLUMNS[1:] if name not in row]:
                raise InputError(
                    f"{self.path} has no column {missing[0]!r}. Restore its first line"
                )
            text, number, label = (cell_text(row[name]).strip() for name in _COLUMNS[1:])
            where, id = f"{self.path}, line {place}", ids.get(_key(text))
            if id is None or not number.isdecimal():
                what = "its round is not a number" if id else "its text is not in the table"
                raise InputError(f"{where}: {what}. Restore the row, and add labels only")
            if id in seen:
                raise InputError(f"{where}: the row is there twice. Remove one of them")
            seen.add(id)
            if (told := cell_text(row.get("id", id)).strip()) != id.strip():
                rewritten[id] = told
            rounds.setdefault(int(number), {})[id] = label or None
        if rewritten:
            id, told = next(iter(rewritten.items()))
            _warn(
                f"{self.path}: {counted(len(rewritten), 'id')} rewritten, such as {told!r} for "
                f"{id!r}; the rows are matched by their texts"
            )
        with self.change:
            self.rounds = rounds
            order = [*self.rows]
            last = max((order.index(id) for id in order if self.rows[id]), default=0)
            self.skipped |= {*order[:last]}  # rows are labelled in order
            self.change.notify_all()

    def draw(self, number: int, rows: Iterable[str]) -> None:
        """Begin a round with rows that have no label, in place of those from its number on."""
        kept = {each: labels for each, labels in self.rounds.items() if each < number}
        self.rounds = kept | {number: dict.fromkeys(rows)}
        self._write()

    def _write(self) -> None:
        """Write the file; it is on the disk when this returns."""
        rows = [
            (id, self.texts[id], number, label or "")
            for number, labels in sorted(self.rounds.items())
            for id, label in labels.items()
        ]
        self.path.parent.mkdir(parents=True, exist_ok=True)
        write_text(self.path, "".join(map(csv_line, [_COLUMNS, *rows])))

    @property
    def round(self) -> int:
        """The number of the last round; 0 if there is none."""
        return max(self.rounds, default=0)

    @property
    def rows(self) -> dict[str, str | None]:
        """The labels of the last round by row."""
        return self.rounds.get(self.round, {})

    @property
    def done(self) -> list[str]:
        """The rows of the last round that have a label or were skipped."""
        return [id for id, label in self.rows.items() if label or id in self.skipped]

    @property
    def complete(self) -> bool:
        """True if each row of the last round has a label or was skipped."""
        return self.next() is None

    def next(self) -> str | None:
        """Return the first row of the last round without a label; None if there is none."""
        done = {*self.done}
        return next((id for id in self.rows if id not in done), None)

    def give(self, row: str, label: str | None) -> None:
        """Label the next row, or skip it with None. The label is on the disk when this returns.

        Raises:
            Repeated: The row is not the next one.
        """
        with self.change:
            if row != self.next():
                raise Repeated(f"row {row} has been labelled already, perhaps in another tab")
            self._set(row, label)
            self.skipped |= {row} if label is None else set()
            self.change.notify_all()

    def undo(self) -> str | None:
        """Undo the last label of this round, and return its row; None if there is none.

        A complete round cannot be changed, because its labels are in use.
        """
        with self.change:
            if self.complete or not (done := self.done):
                return None
            self._set(done[-1], None)
            self.skipped.discard(done[-1])
            return done[-1]

    def _set(self, row: str, label: str | None) -> None:
        """Store a label; if the disk refuses, the row keeps what it had."""
        before, self.rows[row] = self.rows[row], label
        try:
            self._write()
        except OSError:
            self.rows[row] = before
            raise


@cache
def _warn(message: str) -> None:
    _log.warning(message)  # once, though a trial reads the file several times


def _key(text: str) -> str:
    return " ".join(text.split())  # a spreadsheet may change the ends of lines


def random_order(texts: Mapping[str, str]) -> list[str]:
    """Return the ids of the rows in the random order in which they are labelled.

    Blank and unreadable texts are left out, and of equal texts all but one.
    """
    ids = [*texts]
    order = [ids[i] for i in np.random.default_rng(SEED).permutation(len(ids))]
    first = {_key(texts[id]): id for id in reversed(order) if not text_fault(texts[id])}
    return [id for id in order if (key := _key(texts[id])) and first.get(key) == id]
