"""Table: one table as data, and its writers to Markdown, CSV and LaTeX.

Texts in a table are untrusted (names of models and benchmarks), so each writer escapes them for its
format. An undefined number is nan: an en dash for readers, `nan` in CSV. CSV has unrounded numbers,
in the unit of their column.
"""

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lastword.errors import RecordError
from lastword.files.cells import csv_line

EN_DASH = "–"

_MARKDOWN = {c: f"\\{c}" for c in "\\|*_`[]~#$"} | {"&": "&amp;", "<": "&lt;", ">": "&gt;"}
_SYMBOLS = dict(
    zip(
        "ΔηγτβλΩℓ∝⌈⌉≤×",
        "Delta eta gamma tau beta lambda Omega ell propto lceil rceil leq times".split(),
        strict=True,
    )
)
_LATEX = (
    {symbol: rf"$\{name}$" for symbol, name in _SYMBOLS.items()}
    | {c: f"\\{c}" for c in "{}$&#%_"}
    | {
        "\\": r"\textbackslash{}",
        "^": r"\textasciicircum{}",
        "~": r"\textasciitilde{}",
        "<": r"\textless{}",
        ">": r"\textgreater{}",
        "|": r"\textbar{}",
        "[": "{[}",  # after \\ LaTeX would read a bracket as an option
        "*": "{*}",
        '"': "''",
        "†": r"\textdagger{}",
        EN_DASH: "--",
    }
)


@dataclass(frozen=True)
class Column:
    """One column, with the format of its numbers.

    Attributes:
        digits: Decimals of a number; None for text and counts.
        signed: True to write positive numbers with a sign.
        significant: True if `digits` are significant digits (p-values).
    """

    name: str
    digits: int | None = None
    signed: bool = False
    significant: bool = False


def columns(names: str) -> tuple[Column, ...]:
    """Return columns from their names separated by ` | `, each with the format of its numbers.

    `Items` has text or counts, `MC1 .2` two decimals, `ΔMC1 +.2` a sign too, and `p .3g` three
    significant digits.
    """
    return tuple(_column(name) for name in names.split(" | "))


def _column(name: str) -> Column:
    form = re.fullmatch(r"(.+) ([+]?)[.](\d)(g?)", name)
    return Column(form[1], int(form[3]), form[2] == "+", form[4] == "g") if form else Column(name)


@dataclass(frozen=True)
class Marked:
    """A number with a mark that a note of the table explains."""

    value: float
    mark: str = "†"


Value = str | int | float | Marked


def points(*shares: float) -> list[float]:
    """Return shares in points."""
    return [100 * float(share) for share in shares]


@dataclass(frozen=True)
class Table:
    """A table as data.

    Attributes:
        name: File name without suffix.
        rows: Values by column; nan if undefined.
        notes: Notes for the reader, one sentence each.
    """

    name: str
    title: str
    columns: tuple[Column, ...]
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
        heads: str | tuple[Column, ...],
        rows: Iterable[tuple[Value, ...]],
        notes: Iterable[str] = (),
    ) -> "Table":
        """Return a table of any rows; its columns may be given as `columns` reads them."""
        parsed = columns(heads) if isinstance(heads, str) else heads
        return cls(name, title, parsed, tuple(rows), tuple(notes))


def to_markdown(table: Table) -> str:
    """Return a table as Markdown, with its title and notes."""
    heads = [_escape(c.name, _MARKDOWN) for c in table.columns]
    body = [
        [_read(value, column, _MARKDOWN) for value, column in zip(row, table.columns, strict=True)]
        for row in table.rows
    ]
    widths = [max(3, *(len(row[i]) for row in [heads, *body])) for i in range(len(heads))]
    left = [is_text(table, i) for i in range(len(heads))]
    forms = [f"{{:{'<' if text else '>'}{w}}}" for w, text in zip(widths, left, strict=True)]
    rule = ["-" * w if text else "-" * (w - 1) + ":" for w, text in zip(widths, left, strict=True)]
    lines = ["| " + " | ".join(map(str.format, forms, row)) + " |" for row in [heads, rule, *body]]
    notes = [f"- {_escape(note, _MARKDOWN)}" for note in table.notes]
    parts = [f"## {_escape(table.title, _MARKDOWN)}", "\n".join(lines), "\n".join(notes)]
    return "\n\n".join(part for part in parts if part) + "\n"


def to_csv(table: Table) -> str:
    """Return heading and rows as CSV; texts that a spreadsheet would execute get a leading `'`."""
    rows = [[c.name for c in table.columns], *table.rows]
    return "".join(csv_line(map(_plain_cell, row)) for row in rows)


def _plain_cell(value: Any) -> Any:
    value = value.value if isinstance(value, Marked) else value
    return _printable(value) if isinstance(value, str) else value


def to_latex(table: Table) -> str:
    """Return a table as a LaTeX `table` environment with booktabs rules."""
    kinds = "".join("l" if is_text(table, i) else "r" for i in range(len(table.columns)))
    heads = " & ".join(_escape(c.name, _LATEX) for c in table.columns)
    body = [
        " & ".join(_latex(value, column) for value, column in zip(row, table.columns, strict=True))
        for row in table.rows
    ]
    notes = [rf"\par\footnotesize {_escape(note, _LATEX)}" for note in table.notes]
    lines = [
        r"% needs \usepackage{booktabs}",
        r"\begin{table}",
        r"\centering",
        rf"\caption{{{_escape(table.title, _LATEX)}}}",
        rf"\label{{tab:{table.name}}}",
        rf"\begin{{tabular}}{{{kinds}}}",
        r"\toprule",
        rf"{heads} \\",
        r"\midrule",
        *(rf"{row} \\" for row in body),
        r"\bottomrule",
        r"\end{tabular}",
        *notes,
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"


WRITERS = {"md": to_markdown, "csv": to_csv, "tex": to_latex}


def write_table(table: Table, folder: Path) -> list[Path]:
    """Write `NAME.md`, `NAME.csv` and `NAME.tex`; return their paths.

    Raises:
        RecordError: The folder cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        paths = [folder / f"{table.name}.{ending}" for ending in WRITERS]
        for path, writer in zip(paths, WRITERS.values(), strict=True):
            path.write_text(writer(table), encoding="utf-8")
    except OSError as error:
        raise RecordError(f"cannot write to {folder}: {error.strerror or error}") from error
    return paths


def readable(value: Value, column: Column) -> str:
    """Return a value as text for readers, without escaping."""
    return _read(value, column, {})


def is_text(table: Table, place: int) -> bool:
    """Return True if a value of the column is text."""
    return any(isinstance(row[place], str) for row in table.rows)


def number(value: float, column: Column) -> str:
    """Return a number in the format of its column; nan becomes an en dash."""
    if math.isnan(value):
        return EN_DASH
    if math.isinf(value):
        return "∞" if value > 0 else "-∞"
    if column.digits is None:
        return f"{value:g}"
    if column.significant:
        return f"{value:.{column.digits}g}"
    rounded = round(value, column.digits) + 0.0  # -0.00 becomes 0.00
    return f"{rounded:{'+' if column.signed else ''}.{column.digits}f}"


def _read(value: Value, column: Column, escapes: dict[str, str]) -> str:
    if isinstance(value, str):
        return _escape(value, escapes)
    if isinstance(value, Marked):
        return number(value.value, column) + _escape(value.mark, escapes)
    return str(value) if isinstance(value, int) else number(value, column)


def _latex(value: Value, column: Column) -> str:
    text = _read(value, column, _LATEX)
    if isinstance(value, str):
        return text
    # A number gets a minus sign; as text, LaTeX would print a hyphen.
    text = text.replace(EN_DASH, "--").replace("∞", r"$\infty$")
    return f"$-${text[1:]}" if text.startswith("-") and text != "--" else text


def _escape(text: str, escapes: dict[str, str]) -> str:
    return "".join(escapes.get(c, c) for c in _printable(text))


def _printable(text: str) -> str:
    return "".join(c if c.isprintable() else " " for c in text)
