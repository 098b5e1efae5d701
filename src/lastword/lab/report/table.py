"""Tables of a report as data, and their writers to Markdown and CSV.

Texts in a table are untrusted (names of models and benchmarks), so each writer escapes them for its
format. An undefined number is nan: an en dash for readers, `nan` in CSV. CSV has unrounded numbers,
in the unit of their column.
"""

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from lastword.errors import RecordError
from lastword.files.cells import csv_line

EN_DASH = "–"
MARK = "†"  # after a text that a note of the table explains

_MARKDOWN = {c: f"\\{c}" for c in "\\|*_`[]~#$"} | {"&": "&amp;", "<": "&lt;", ">": "&gt;"}

Value = str | int | float


class Heading(NamedTuple):
    """The name of a column, and the format of its numbers: `.2f`, `.3g`; empty for counts."""

    name: str
    form: str = ""

    @classmethod
    def of(cls, text: str) -> "Heading":
        """Return `Items` (text or counts), `MC1 .2` (decimals), `ΔMC1 +.2`, `p .3g` (digits)."""
        form = re.fullmatch(r"(.+) ([+]?[.]\d)(g?)", text)
        return cls(form[1], form[2] + (form[3] or "f")) if form else cls(text)


def points(*shares: float) -> list[float]:
    """Return shares in points."""
    return [100 * float(share) for share in shares]


@dataclass(frozen=True)
class ReportTable:
    """A table as data.

    Attributes:
        name: File name without suffix.
        rows: Values by column; nan if undefined.
        notes: Sentences below the table.
    """

    name: str
    title: str
    columns: tuple[Heading, ...]
    rows: tuple[tuple[Value, ...], ...]
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Check that every row has a value for every column."""
        assert all(len(row) == len(self.columns) for row in self.rows), self.name

    @classmethod
    def of(
        cls,
        name: str,
        title: str,
        heads: str,
        rows: Iterable[tuple[Value, ...]],
        notes: Iterable[str] = (),
    ) -> "ReportTable":
        """Return a table with columns by their headings, separated by ` | `."""
        columns = tuple(map(Heading.of, heads.split(" | ")))
        return cls(name, title, columns, tuple(rows), tuple(notes))


def to_markdown(table: ReportTable) -> str:
    """Return a table as Markdown, with its title and notes."""
    heads = [_escaped(column.name) for column in table.columns]
    body = [[*map(_escaped, map(readable, row, table.columns))] for row in table.rows]
    left = [is_text(table, i) for i in range(len(heads))]
    widths = [max(3, *map(len, column)) for column in zip(heads, *body, strict=True)]
    rule = ["-" * w if text else "-" * (w - 1) + ":" for w, text in zip(widths, left, strict=True)]
    forms = [f"{{:{'<' if text else '>'}{w}}}" for w, text in zip(widths, left, strict=True)]
    lines = ["| " + " | ".join(map(str.format, forms, row)) + " |" for row in [heads, rule, *body]]
    notes = [f"- {_escaped(note)}" for note in table.notes]
    parts = [f"## {_escaped(table.title)}", "\n".join(lines), "\n".join(notes)]
    return "\n\n".join(part for part in parts if part) + "\n"


def to_csv(table: ReportTable) -> str:
    """Return heading and rows as CSV; texts that a spreadsheet would execute get a leading `'`."""
    heads: list[Value] = [column.name for column in table.columns]
    rows = ([_escaped(v, {}) if isinstance(v, str) else v for v in r] for r in [heads, *table.rows])
    return "".join(map(csv_line, rows))


WRITERS = {"md": to_markdown, "csv": to_csv}


def write_table(table: ReportTable, folder: Path) -> list[Path]:
    """Write `NAME.md` and `NAME.csv`; return their paths.

    Raises:
        RecordError: The folder cannot be written.
    """
    paths = [folder / f"{table.name}.{ending}" for ending in WRITERS]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path, writer in zip(paths, WRITERS.values(), strict=True):
            path.write_text(writer(table), encoding="utf-8")
    except OSError as error:
        raise RecordError(f"cannot write to {folder}: {error.strerror or error}") from error
    return paths


def is_text(table: ReportTable, place: int) -> bool:
    """Return True if a value of the column is text."""
    return any(isinstance(row[place], str) for row in table.rows)


def readable(value: Value, column: Heading) -> str:
    """Return a value as printable text."""
    if isinstance(value, str):
        return _escaped(value, {})
    return str(value) if isinstance(value, int) else number(value, column.form)


def number(value: float, form: str) -> str:
    """Return a number in the format of its column; nan becomes an en dash."""
    if math.isnan(value):
        return EN_DASH
    if math.isinf(value):
        return "∞" if value > 0 else "-∞"
    if form.endswith("f"):
        value = round(value, int(form[-2])) + 0.0  # -0.00 becomes 0.00
    return format(value, form or "g")


def _escaped(text: str, escapes: Mapping[str, str] = _MARKDOWN) -> str:
    return "".join(escapes.get(c, c) if c.isprintable() else " " for c in text)
