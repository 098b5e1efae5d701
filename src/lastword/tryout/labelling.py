"""Labelling: hands out rows to browser tabs and stores their labels in the journal."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from threading import Condition
from typing import Any

from lastword.errors import InputError
from lastword.tryout.journal import Journal, row_digest

_LEASE_SECONDS = 60.0  # a row that one tab shows is not offered to others for this long
_PAUSE_SECONDS = 120.0  # longer gaps between labels are breaks, and do not count for the pace
_PACE_OF = 20  # number of last labels that the pace is computed from


class Repeated(InputError):
    """The row has a label already."""


@dataclass
class _Lease:
    tab: str
    since: float


class Labelling:
    """Labels of a table's rows, round by round. Several threads may use it.

    Args:
        table: Name of the table, for errors.
        texts: The text of each row of the table by its id.
        options: The labels to choose from.
        journal: The journal; labels in it are loaded.

    Attributes:
        change: Condition that is notified after each label and each new round.
        round: The number of the round, from 1.

    Raises:
        InputError: A row with a label was edited or removed.
    """

    def __init__(
        self, table: str, texts: Mapping[str, str], options: Sequence[str], journal: Journal
    ) -> None:
        self.texts, self.options, self.change = texts, tuple(options), Condition()
        self._journal, self._labels = journal, dict[int, dict[str, str | None]]()
        self._leases, self._tabs = dict[str, _Lease](), dict[str, str]()
        first: dict[str, str] = journal.header["rows"]
        labelled = {entry["row"]: entry["text"] for entry in journal.entries if "row" in entry}
        for row, digest in (first | labelled).items():
            if row not in texts or row_digest(texts[row]) != digest:
                what = "was edited" if row in texts else "is gone"
                raise InputError(
                    f"{table}, row {row}: the row {what} since labelling began. Restore it, or "
                    "choose another folder with --out"
                )
        for entry in journal.entries:
            labels = self._labels.setdefault(entry["round"], {})
            if "undo" in entry:
                labels.pop(entry["undo"], None)
            else:
                labels[entry["row"]] = entry["label"]
        self.open(1, tuple(first))

    def open(self, number: int, rows: Sequence[str]) -> None:
        """Begin a round, whose rows are shown in this order."""
        with self.change:
            self.round, self._rows = number, tuple(rows)
            self._leases.clear()
            self._tabs.clear()
            self.change.notify_all()

    @property
    def labels(self) -> dict[str, str | None]:
        """The labels of this round by row; None for a skipped row."""
        return self.labels_of(self.round)

    def labels_of(self, number: int) -> dict[str, str | None]:
        """Return the labels of a round by row; None for a skipped row."""
        return dict(self._labels.get(number, {}))

    @property
    def rows(self) -> int:
        """The number of rows in this round."""
        return len(self._rows)

    @property
    def complete(self) -> bool:
        """True if each row of this round has a label or was skipped."""
        return len(self._labels.get(self.round, {})) == len(self._rows)

    @property
    def seconds_per_label(self) -> float | None:
        """The median time from one label to the next in seconds; None before the second label."""
        times = [entry["time"] for entry in self._journal.entries]
        steps = [b - a for a, b in pairwise(times) if 0 < b - a < _PAUSE_SECONDS]
        return median(steps[-_PACE_OF:]) if steps else None

    def next(self, tab: str) -> str | None:
        """Lease a row without a label to a tab, and return its id; None if none is available."""
        with self.change:
            labels, now = self._labels.get(self.round, {}), time.monotonic()
            waiting = [row for row in self._rows if row not in labels]
            # First the row that the tab has already, then those of no tab, then of silent tabs.
            mine = [row for row in waiting if self._held(row) == tab]
            free = [row for row in waiting if self._held(row) is None]
            old = now - _LEASE_SECONDS
            stale = [row for row in waiting if row not in free and self._leases[row].since < old]
            row = next(iter([*mine, *free, *stale]), None)
            if row is not None:
                self._leases[row] = _Lease(tab, now)
            return row

    def give(self, tab: str, row: str, label: str | None) -> None:
        """Label a row, or skip it with None. The label is on the disk when this returns.

        Raises:
            Repeated: The row has a label already.
            InputError: The row is not in this round, or the label is not an option.
            OSError: The label cannot be written.
        """
        with self.change:
            if row not in self._rows:
                raise InputError(f"row {row} is not a row of this round")
            labels = self._labels.setdefault(self.round, {})
            if row in labels:
                raise Repeated(f"row {row} has been labelled already, perhaps in another tab")
            if label is not None and label not in self.options:
                raise InputError(f"{label!r} is not one of {', '.join(self.options)}")
            content: dict[str, Any] = {"row": row, "text": row_digest(self.texts[row])}
            self._write(content | {"label": label})
            labels[row] = label
            self._tabs[row] = tab
            self._leases.pop(row, None)
            self.change.notify_all()

    def undo(self, tab: str) -> str | None:
        """Undo the tab's last label of this round, and return its row; None if there is none.

        A complete round cannot be changed, because its labels are in use.

        Raises:
            OSError: The change cannot be written.
        """
        with self.change:
            labels = self._labels.get(self.round, {})
            # After a restart nobody knows which tab gave a label, so any tab may undo it.
            mine = [row for row in labels if self._tabs.get(row, tab) == tab]
            if not mine or self.complete:
                return None
            row = mine[-1]
            self._write({"undo": row})
            del labels[row]
            for other in [name for name in self._leases if self._held(name) == tab]:
                del self._leases[other]
            self._leases[row] = _Lease(tab, time.monotonic())
            return row

    def close(self) -> None:
        """Close the journal."""
        with self.change:
            self._journal.close()

    def _held(self, row: str) -> str | None:
        lease = self._leases.get(row)
        return None if lease is None else lease.tab

    def _write(self, content: dict[str, Any]) -> None:
        self._journal.add({"round": self.round} | content | {"time": round(time.time(), 1)})
