"""Builds the page: one offline HTML file with sortable tables, figures, and every item."""

import math
from base64 import b64encode
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lastword.files.wording import counted
from lastword.lab.evaluation.controls import Controls
from lastword.lab.evaluation.statistics import Finding, GridStatistics, Judgement, over_cells
from lastword.lab.report import draw
from lastword.lab.report.draw import Figure
from lastword.lab.report.table import Heading, ReportTable, Value, is_text, number, readable
from lastword.lab.report.tables import cells_table
from lastword.records.cells import CellCounts, Summary, benchmark_of
from lastword.records.document import document
from lastword.rule.operators import OPERATORS

_ASSETS = Path(__file__).parent / "assets"
_SCRIPTS = (
    *("data.js", "trajectory.js", "portrait.js"),
    *("tables.js", "items.js", "main.js"),
)


@dataclass(frozen=True)
class CellReport:
    """The data of one cell on the page, besides its items."""

    summary: Summary
    judgement: Judgement
    controls: Controls


def render(
    cells: Sequence[CellReport],
    tables: Sequence[ReportTable],
    figures: Sequence[Figure],
    blocks: Mapping[str, str],
    sample: str = "",
) -> str:
    """Return the whole page as one HTML text.

    `blocks` are the packed records (`data_blocks`). `sample` is a sentence about the number of
    items in the list; empty if it has all.
    """
    summaries = [cell.summary for cell in cells]
    grid = over_cells(np.array([summary.delta_mc1 for summary in summaries], dtype=float))
    by_cell = _table(cells_table(summaries))
    headline = headline_of(grid, [cell.judgement for cell in cells])
    return document(
        "page.html.j2",
        _SCRIPTS,
        blocks,
        assets=_ASSETS,
        title=f"TRACE: {headline}",
        headline=headline,
        standfirst=_standfirst(grid, summaries),
        facts=_facts(summaries),
        cell_columns=[name for name, _ in by_cell["columns"]],
        cells=[*zip(cells, by_cell["rows"], strict=True)],
        tables=[_table(table) for table in tables],
        figures=[(f, b64encode(draw.rendered(f, "svg")).decode()) for f in figures],
        sample=sample,
    )


def headline_of(grid: GridStatistics, judgements: Sequence[Judgement]) -> str:
    """Return the mean change over cells, and the number of cells by verdict."""
    counts: Counter[Finding] = Counter(v.finding for v in judgements if v.finding != "unlabelled")
    if not counts:
        return "Corrected answers, without labels to judge them by"
    words = [f"{_VERDICTS[name]} in {counts[name]}" for name in _VERDICTS if counts[name]]
    moved = f"correction moves MC1 by {_points(grid.mean)} points: it {', '.join(words)}"
    return f"Over {counted(grid.cells, 'pair')}, {moved}"


_VERDICTS: dict[Finding, str] = {
    "helps": "helps",
    "gains": "gains no more than what never reads the question",
    "hurts": "hurts",
    "unclear": "is not shown to help or to hurt",
}


def _standfirst(grid: GridStatistics, summaries: Sequence[Summary]) -> str:
    others = dict.fromkeys(n for s in summaries for n in s.fired if n not in OPERATORS)
    whose = f"that of {' and '.join(others)}" if others else "TRACE's"
    text = f"Base is the model's choice among the candidates, corrected is {whose}."
    if math.isnan(grid.interval.low):  # too few cells
        return text
    low, high = _points(grid.interval.low), _points(grid.interval.high)
    return f"{text} The mean over pairs has a 95% interval of {low} to {high} points."


def _facts(summaries: Sequence[Summary]) -> list[tuple[str, str]]:
    counts = sum((s.counts for s in summaries), CellCounts(0))
    facts = {
        "models": len({s.model for s in summaries}),
        "benchmarks": len({benchmark_of(s.benchmark) for s in summaries}),
        "cells": len(summaries),
        "items": counts.items,
        "answers fixed": sum(s.fixed for s in summaries),
        "answers broken": sum(s.broken for s in summaries),
    }
    exceptions = {
        "items for MC2 alone": counts.mc2,
        "items without labels": counts.unlabelled,
        "items failed": counts.failed,
    }
    facts |= {name: count for name, count in exceptions.items() if count}
    return [(name, f"{count:,}") for name, count in facts.items()]


def _table(table: ReportTable) -> dict[str, Any]:
    return {
        "title": table.title,
        "notes": table.notes,
        "columns": [(c.name, not is_text(table, i)) for i, c in enumerate(table.columns)],
        "rows": [[*map(_value, row, table.columns)] for row in table.rows],
    }


def _value(value: Value, column: Heading) -> tuple[str, str]:
    """Return a value as a sort key and as text."""
    text = readable(value, column)
    if isinstance(value, str):
        return value, text
    return "" if math.isnan(value) else repr(value), _minus(text)


def _points(share: float) -> str:
    return _minus(number(100 * share, "+.2f"))


def _minus(text: str) -> str:
    return text.replace("-", "−")
