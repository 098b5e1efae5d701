"""The page: one offline HTML file with tables that sort, figures, and every item."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from lastword.evaluation.checklist import Point, tally
from lastword.evaluation.controls import Controls
from lastword.evaluation.statistics import Finding, GridStatistics, Judgement
from lastword.files.strict_json import strict
from lastword.records.cells import Counts, Summary, benchmark_of
from lastword.report.checklist import NOTES
from lastword.report.document import compress, document
from lastword.report.figure_parts import Diagram, Figure
from lastword.report.table import EN_DASH, Column, Marked, Table, Value, number
from lastword.report.trust import CellTrust, risk_coverage
from lastword.rule.operators import OPERATORS

_SCRIPTS = (
    *("data.js", "plots.js", "trajectory.js", "portrait.js"),
    *("tables.js", "items.js", "main.js"),
)
_FULL_HEAT = 0.15  # a change of 15 points has the strongest shade
_POINTS = Column("", digits=2, signed=True)
_SHARE = Column("", digits=2)
_PLAIN = Column("", digits=3)


@dataclass(frozen=True)
class CellReport:
    """What the page says of one cell, beside its items.

    Attributes:
        summary: Its line of the master table.
        judgement: Whether correction helps.
        controls: What a gain has to beat.
        trust: What could be let through.
        calibration: Reliability before and after; None without items that count.
        engine: What computed it, where that is known.
    """

    summary: Summary
    judgement: Judgement
    controls: Controls
    trust: CellTrust
    calibration: Figure | None
    engine: str | None = None

    @property
    def figures(self) -> dict[str, Figure]:
        """What is drawn of it, by name."""
        finding = self.trust.finding
        own = {} if finding is None else {"trust": risk_coverage(finding)}
        return own | ({} if self.calibration is None else {"calibration": self.calibration})


@dataclass(frozen=True)
class Opening:
    """What a page begins with, before anything that sceptics ask.

    Attributes:
        picture: A line a bar.
        words: What follows from it, a sentence each.
        classes: A line a class.
    """

    picture: tuple[str, ...]
    words: tuple[str, ...]
    classes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Detail:
    """A name and a value, both for reading."""

    name: str
    value: str


@dataclass(frozen=True)
class Shown:
    """A table's value: as it sorts, and as it reads."""

    key: str
    text: str


def render(
    cells: Sequence[CellReport],
    grid: GridStatistics,
    points: Sequence[Point],
    tables: Sequence[Table],
    figures: Sequence[Figure | Diagram],
    blocks: Mapping[str, str],
    sample: str = "",
    opening: Opening | None = None,
) -> str:
    """The whole page as one HTML text.

    Args:
        cells: In the order of their blocks.
        grid: Statistics of delta MC1 over the cells.
        points: The sceptic's checklist.
        tables: Every table of the report.
        figures: Every figure of the report.
        blocks: Packed records (`data_blocks`).
        sample: What the list of items leaves out; empty where it has all.
        opening: What it begins with; None for the result of the cells.
    """
    plots = {figure.name: asdict(figure) for figure in figures}
    plots |= {
        f"{name}-{i}": asdict(figure)
        for i, cell in enumerate(cells)
        for name, figure in cell.figures.items()
    }
    headline = headline_of(grid, [cell.judgement for cell in cells])
    if opening is not None:
        headline = "Does it help here?"
    return document(
        "page.html.j2",
        _SCRIPTS,
        {"figures": compress(strict(plots)), **blocks},
        title=f"TRACE: {headline}",
        headline=headline,
        standfirst=_standfirst(grid, [cell.summary for cell in cells]),
        facts=_facts_of_all(cells, grid),
        grid=_grid(cells) if len(cells) > 1 else None,
        points=points,
        points_tally=tally(points),
        points_notes=NOTES,
        cell_columns=[c.name for c in _CELL_COLUMNS],
        cells=[_cell(view, cells) for view in cells],
        tables=[_table(table) for table in tables],
        figures=figures,
        sample=sample,
        opening=opening,
    )


def headline_of(grid: GridStatistics, judgements: Sequence[Judgement]) -> str:
    """The result in one sentence, which counts the cells' own verdicts.

    Args:
        grid: Statistics of delta MC1 over the cells.
        judgements: The verdicts.
    """
    verdicts = [v for v in judgements if v.finding != "unlabelled"]
    if not verdicts:
        return "Corrected answers, without labels to judge them by"
    if len(verdicts) == 1:
        (only,) = verdicts
        sentence = f"Correction {_VERDICTS[only.finding]}"
        return f"{sentence}: {_points(only.delta_mc1)} MC1 points on {only.benchmark}"
    counts = Counter(v.finding for v in verdicts)
    mean = f"Over {grid.cells} cells correction moves MC1 by {_points(grid.mean)} points"
    return f"{mean}: it {_counts_in_words(counts, len(verdicts))}"


_VERDICTS: dict[Finding, str] = {
    "helps": "helps",
    "gains": "gains no more than what never reads the question",
    "hurts": "hurts",
    "unclear": "is not shown to help or to hurt",
}


def _counts_in_words(findings: Mapping[Finding, int], cells: int) -> str:
    """`helps in 3 of them, hurts in one, is not shown to help or to hurt in 2`."""
    present = [name for name in _VERDICTS if findings.get(name)]
    if len(present) == 1:
        none = present == ["unclear"]
        every = ("either" if none else "both") if cells == 2 else ("any" if none else "all")
        return f"{_VERDICTS[present[0]]} in {every} of them"
    parts = [f"{_VERDICTS[name]} in {_in_words(findings[name])}" for name in present]
    parts[0] += " of them"
    return f"{', '.join(parts[:-1])} and {parts[-1]}"


def _in_words(count: int) -> str:
    return "one" if count == 1 else f"{count}"


def _standfirst(grid: GridStatistics, summaries: Sequence[Summary]) -> str:
    others = dict.fromkeys(n for s in summaries for n in s.fired if n not in OPERATORS)
    whose = f"that of {' and '.join(others)}" if others else "TRACE's"
    text = f"Base is the model's own choice among the candidates, corrected is {whose}."
    if grid.interval.low != grid.interval.low:  # nan: too few cells
        return text
    low, high = _points(grid.interval.low), _points(grid.interval.high)
    return (
        f"{text} The mean over cells has a 95% interval of {low} to {high} points; cells that "
        "share items or models are not independent."
    )


def _facts_of_all(cells: Sequence[CellReport], grid: GridStatistics) -> list[Detail]:
    counts = _all_counts(cells)
    beside = {
        "items for MC2 alone": counts.mc2,
        "items without labels": counts.unlabelled,
        "items failed": counts.failed,
    }
    return [
        Detail("models", str(len({c.summary.model for c in cells}))),
        Detail("benchmarks", str(len({benchmark_of(c.summary.benchmark) for c in cells}))),
        Detail("cells", str(len(cells))),
        Detail("items", f"{counts.items:,}"),
        Detail("answers fixed", f"{sum(c.summary.fixed for c in cells):,}"),
        Detail("answers broken", f"{sum(c.summary.broken for c in cells):,}"),
        *(Detail(name, f"{count:,}") for name, count in beside.items() if count),
    ]


def _all_counts(cells: Sequence[CellReport]) -> Counts:
    return sum((c.summary.counts for c in cells), Counts(0))


_CELL_COLUMNS = (
    Column("Model"),
    Column("Benchmark"),
    Column("Items"),
    Column("Chance", 2),
    Column("MC1 base", 2),
    Column("MC1", 2),
    Column("ΔMC1", 2, signed=True),
    Column("MC2 base", 2),
    Column("MC2", 2),
    Column("ΔMC2", 2, signed=True),
    Column("Fixed"),
    Column("Broken"),
    Column("Failed"),
)


def _cell(view: CellReport, cells: Sequence[CellReport]) -> dict[str, Any]:
    s = view.summary
    models = list(dict.fromkeys(c.summary.model for c in cells))
    benchmarks = list(dict.fromkeys(c.summary.benchmark for c in cells))
    row: tuple[Value, ...] = (
        s.model,
        s.benchmark,
        s.counts.items,
        *(100 * v for v in (s.chance, s.mc1_base, s.mc1, s.delta_mc1)),
        *(100 * v for v in (s.mc2_base, s.mc2, s.delta_mc2)),
        s.fixed,
        s.broken,
        s.counts.failed,
    )
    return {
        "row": [_cell_text(v, c) for v, c in zip(row, _CELL_COLUMNS, strict=True)],
        "finding": view.judgement.finding,
        "verdict": view.judgement.sentence,
        "facts": _facts(s, view.engine),
        "notes": [view.controls.sentence, *_notes(s)] if s.counts.items else list(_notes(s)),
        "trust": view.trust.lines,
        "figures": sorted(view.figures),
        "model_place": models.index(s.model),
        "benchmark_place": benchmarks.index(s.benchmark),
        "count": f"{s.counts.items:,}",
    }


def _facts(s: Summary, engine: str | None) -> list[Detail]:
    shares = [
        Detail(f"fired: {name}", f"{number(100 * share, _SHARE)}%")
        for name, share in s.fired.items()
        if share > 0
    ]
    pairs = f"{number(100 * s.pairs_base, _SHARE)}% → {number(100 * s.pairs, _SHARE)}%"
    return [
        Detail("I(M)", number(s.invariant, _PLAIN)),
        Detail("scalar items", f"{number(100 * s.scalar, _SHARE)}%"),
        *shares,
        Detail("MC3", f"{number(100 * s.mc3_base, _SHARE)} → {number(100 * s.mc3, _SHARE)}"),
        Detail("calibration error", f"{number(s.ece_base, _PLAIN)} → {number(s.ece, _PLAIN)}"),
        Detail("MC1 without the question", number(100 * s.blind, _SHARE)),
        Detail("MC1 of the shortest", number(100 * s.shortest, _SHARE)),
        *([Detail("pairs with both right", pairs)] if s.pairs == s.pairs else []),
        *([] if engine is None else [Detail("run by", engine)]),
    ]


def _notes(s: Summary) -> Sequence[str]:
    notes = []
    if s.fired["early"] > 0:
        notes.append(
            f"The earliest state gives {_points(s.gain_mc1['early'])} of the MC1 points here. It "
            "scores each candidate's own wording and has read nothing of the question: hold it "
            f"against the answers without the question ({number(100 * s.blind, _SHARE)}) and the "
            f"shortest candidates ({number(100 * s.shortest, _SHARE)})."
        )
    if s.counts.mc2:
        notes.append(f"MC2 and MC3 are of {s.counts.mc2:,} items apart, which MC1 does not count.")
    if s.counts.failed:
        failed = f"{s.counts.failed:,} items failed"
        notes.append(f"{failed}; they count neither for the base nor for what corrects it.")
    return notes


def _grid(cells: Sequence[CellReport]) -> dict[str, Any]:
    """The squares of the overview: a row a model, a column a benchmark."""
    places = {(c.summary.model, c.summary.benchmark): i for i, c in enumerate(cells)}
    benchmarks = list(dict.fromkeys(c.summary.benchmark for c in cells))
    models = list(dict.fromkeys(c.summary.model for c in cells))
    rows = [
        {
            "model": model,
            "squares": [_square(places.get((model, benchmark)), cells) for benchmark in benchmarks],
        }
        for model in models
    ]
    return {"benchmarks": benchmarks, "rows": rows}


def _square(place: int | None, cells: Sequence[CellReport]) -> dict[str, Any] | None:
    if place is None:
        return None
    delta = cells[place].summary.delta_mc1
    defined = delta == delta
    return {
        "cell": place,
        "text": _points(delta),
        "title": cells[place].judgement.sentence,
        "sign": "up" if defined and delta > 0 else "down" if defined and delta < 0 else "even",
        "heat": round(100 * min(abs(delta) / _FULL_HEAT, 1)) if defined else 0,
    }


def _table(table: Table) -> dict[str, Any]:
    numeric = [not any(isinstance(row[i], str) for row in table.rows) for i in _places(table)]
    return {
        "title": table.title,
        "notes": table.notes,
        "columns": [
            {"name": c.name, "number": n} for c, n in zip(table.columns, numeric, strict=True)
        ],
        "rows": [
            [_cell_text(value, column) for value, column in zip(row, table.columns, strict=True)]
            for row in table.rows
        ],
    }


def _places(table: Table) -> range:
    return range(len(table.columns))


def _cell_text(value: Value, column: Column) -> Shown:
    if isinstance(value, str):
        return Shown(value, value)
    if isinstance(value, Marked):
        inner = _cell_text(value.value, column)
        return Shown(inner.key, inner.text + value.mark)
    text = f"{value:,}" if isinstance(value, int) else _minus(number(value, column))
    return Shown("" if text == EN_DASH else repr(value), text)


def _points(share: float) -> str:
    return _minus(number(100 * share, _POINTS))


def _minus(text: str) -> str:
    return text.replace("-", "−")
