"""Table: one table as data, and its writers to Markdown, CSV and LaTeX.

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

_MARKDOWN = {c: f"\\{c}" for c in "\\|*_`[]~#$"} | {"&": "&amp;", "<": "&lt;", ">": "&gt;"}
_SYMBOLS = "Δ:Delta η:eta γ:gamma τ:tau β:beta λ:lambda Ω:Omega ℓ:ell ∝:propto ⌈:lceil ⌉:rceil"
_TEXTS = "\\:backslash ^:asciicircum ~:asciitilde <:less >:greater |:bar †:dagger"
_LATEX = (
    {pair[0]: rf"$\{pair[2:]}$" for pair in f"{_SYMBOLS} ≤:leq ×:times ∞:infty".split()}
    | {pair[0]: rf"\text{pair[2:]}{{}}" for pair in _TEXTS.split()}
    | {c: f"\\{c}" for c in "{}$&#%_"}
    # After \\ LaTeX would read a bracket or a star as an option.
    | {"[": "{[}", "*": "{*}", '"': "''", EN_DASH: "--"}
)


class Column(NamedTuple):
    """One column, with the format of its numbers: `.2f`, `+.2f`, `.3g`; empty for counts."""

    name: str
    form: str = ""


def columns(names: str) -> tuple[Column, ...]:
    """Return columns from their names separated by ` | `, each with the format of its numbers.

    `Items` has text or counts, `MC1 .2` two decimals, `ΔMC1 +.2` a sign too, and `p .3g` three
    significant digits.
    """
    return tuple(_column(name) for name in names.split(" | "))


def _column(name: str) -> Column:
    form = re.fullmatch(r"(.+) ([+]?[.]\d)(g?)", name)
    return Column(form[1], form[2] + (form[3] or "f")) if form else Column(name)


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
        heads: str,
        rows: Iterable[tuple[Value, ...]],
        notes: Iterable[str] = (),
    ) -> "Table":
        """Return a table of any rows, with columns as `columns` reads them."""
        return cls(name, title, columns(heads), tuple(rows), tuple(notes))

    def texts(self, escapes: Mapping[str, str]) -> list[list[str]]:
        """Return the heading and the rows as escaped texts."""
        heads = [_escape(column.name, escapes) for column in self.columns]
        pairs = [zip(row, self.columns, strict=True) for row in self.rows]
        return [heads, *([readable(value, c, escapes) for value, c in row] for row in pairs)]


def to_markdown(table: Table) -> str:
    """Return a table as Markdown, with its title and notes."""
    heads, *body = table.texts(_MARKDOWN)
    left = [is_text(table, i) for i in range(len(heads))]
    widths = [max(3, *map(len, column)) for column in zip(heads, *body, strict=True)]
    rule = ["-" * w if text else "-" * (w - 1) + ":" for w, text in zip(widths, left, strict=True)]
    forms = [f"{{:{'<' if text else '>'}{w}}}" for w, text in zip(widths, left, strict=True)]
    lines = ["| " + " | ".join(map(str.format, forms, row)) + " |" for row in [heads, rule, *body]]
    notes = [f"- {_escape(note, _MARKDOWN)}" for note in table.notes]
    parts = [f"## {_escape(table.title, _MARKDOWN)}", "\n".join(lines), "\n".join(notes)]
    return "\n\n".join(part for part in parts if part) + "\n"


def to_csv(table: Table) -> str:
    """Return heading and rows as CSV; texts that a spreadsheet would execute get a leading `'`."""
    rows = [[v.value if isinstance(v, Marked) else v for v in row] for row in table.rows]
    heads: list[str | int | float] = [column.name for column in table.columns]
    plain = ([_escape(v, {}) if isinstance(v, str) else v for v in row] for row in [heads, *rows])
    return "".join(map(csv_line, plain))


def to_latex(table: Table) -> str:
    """Return a table as a LaTeX `table` environment with booktabs rules."""
    kinds = "".join("l" if is_text(table, i) else "r" for i in range(len(table.columns)))
    # A number gets a minus sign; as text, LaTeX would print a hyphen.
    minus = ([re.sub(r"^-(?=[\d$])", "$-$", text) for text in row] for row in table.texts(_LATEX))
    heads, *body = (" & ".join(row) + r" \\" for row in minus)
    notes = [rf"\par\footnotesize {_escape(note, _LATEX)}" for note in table.notes]
    top = rf"\begin{{tabular}}{{{kinds}}}", r"\toprule", heads, r"\midrule"
    lines = [
        *("% needs \\usepackage{booktabs}", r"\begin{table}", r"\centering"),
        *(rf"\caption{{{_escape(table.title, _LATEX)}}}", rf"\label{{tab:{table.name}}}"),
        *(*top, *body, r"\bottomrule", r"\end{tabular}"),
        *(*notes, r"\end{table}"),
    ]
    return "\n".join(lines) + "\n"


WRITERS = {"md": to_markdown, "csv": to_csv, "tex": to_latex}


def write_table(table: Table, folder: Path) -> list[Path]:
    """Write `NAME.md`, `NAME.csv` and `NAME.tex`; return their paths.

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


def is_text(table: Table, place: int) -> bool:
    """Return True if a value of the column is text."""
    return any(isinstance(row[place], str) for row in table.rows)


def readable(value: Value, column: Column, escapes: Mapping[str, str] | None = None) -> str:
    """Return a value as text for readers; texts are escaped if there are escapes."""
    if isinstance(value, str):
        return _escape(value, escapes or {})
    mark = value.mark if isinstance(value, Marked) else ""
    plain = value.value if isinstance(value, Marked) else value
    text = str(plain) if isinstance(plain, int) else number(plain, column.form)
    return _escape(text + mark, escapes or {})


def number(value: float, form: str) -> str:
    """Return a number in the format of its column; nan becomes an en dash."""
    if math.isnan(value):
        return EN_DASH
    if math.isinf(value):
        return "∞" if value > 0 else "-∞"
    if form.endswith("f"):
        value = round(value, int(form[-2])) + 0.0  # -0.00 becomes 0.00
    return format(value, form or "g")


def _escape(text: str, escapes: Mapping[str, str]) -> str:
    return "".join(escapes.get(c, c) if c.isprintable() else " " for c in text)
