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
from lastword.lab.report.table import (
    EN_DASH,
    Column,
    Marked,
    Table,
    Value,
    is_text,
    number,
)
from lastword.lab.report.tables import cells_table
from lastword.records.cells import CellCounts, Summary, benchmark_of
from lastword.records.document import document
from lastword.rule.operators import OPERATORS

_ASSETS = Path(__file__).parent / "assets"
_SCRIPTS = (
    *("data.js", "trajectory.js", "portrait.js"),
    *("tables.js", "items.js", "main.js"),
)
_FULL_HEAT = 0.15  # a change of 15 points gets the strongest shade


@dataclass(frozen=True)
class CellReport:
    """The data of one cell on the page, besides its items."""

    summary: Summary
    judgement: Judgement
    controls: Controls


Fact = tuple[str, str]  # name and value, as shown


def render(
    cells: Sequence[CellReport],
    tables: Sequence[Table],
    figures: Sequence[Figure],
    blocks: Mapping[str, str],
    sample: str = "",
) -> str:
    """Return the whole page as one HTML text.

    `blocks` are the packed records (`data_blocks`). `sample` is a sentence about the number of
    items in the list; empty if it has all.
    """
    grid = over_cells(np.array([cell.summary.delta_mc1 for cell in cells], dtype=float))
    by_cell = _table(cells_table([cell.summary for cell in cells]))
    headline = headline_of(grid, [cell.judgement for cell in cells])
    return document(
        "page.html.j2",
        _SCRIPTS,
        blocks,
        assets=_ASSETS,
        title=f"TRACE: {headline}",
        headline=headline,
        standfirst=_standfirst(grid, [cell.summary for cell in cells]),
        facts=_facts_of_all(cells),
        grid=_grid(cells) if len(cells) > 1 else None,
        cell_columns=[name for name, _ in by_cell["columns"]],
        cells=[
            {**_cell(view, cells), "row": row}
            for view, row in zip(cells, by_cell["rows"], strict=True)
        ],
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
    return f"Over {counted(grid.cells, 'cell')}, {moved}"


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
    return f"{text} The mean over cells has a 95% interval of {low} to {high} points."


def _facts_of_all(cells: Sequence[CellReport]) -> list[Fact]:
    summaries = [cell.summary for cell in cells]
    counts = sum((s.counts for s in summaries), CellCounts(0))
    facts = {
        "models": len({s.model for s in summaries}),
        "benchmarks": len({benchmark_of(s.benchmark) for s in summaries}),
        "cells": len(cells),
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


def _cell(view: CellReport, cells: Sequence[CellReport]) -> dict[str, Any]:
    s = view.summary
    models, benchmarks = _names(cells)
    return {
        "finding": view.judgement.finding,
        "verdict": view.judgement.sentence,
        "facts": _facts(s),
        "notes": [view.controls.sentence, *_notes(s)] if s.counts.items else _notes(s),
        "model_place": models.index(s.model),
        "benchmark_place": benchmarks.index(s.benchmark),
        "count": f"{s.counts.items:,}",
    }


def _names(cells: Sequence[CellReport]) -> tuple[list[str], list[str]]:
    """Return the distinct models and benchmarks."""
    models, benchmarks = ([getattr(c.summary, n) for c in cells] for n in ("model", "benchmark"))
    return list(dict.fromkeys(models)), list(dict.fromkeys(benchmarks))


def _facts(s: Summary) -> list[Fact]:
    fired = {f"fired: {n}": f"{_percent(share)}%" for n, share in s.fired.items() if share > 0}
    return [("I(M)", number(s.invariant, ".3f")), *fired.items()]


def _percent(share: float) -> str:
    return number(100 * share, ".2f")


def _notes(s: Summary) -> list[str]:
    notes = []
    if s.counts.mc2:
        notes.append(f"MC2 and MC3 are of {counted(s.counts.mc2, 'item')} that MC1 does not count.")
    if s.counts.failed:
        failed = counted(s.counts.failed, "failed item")
        notes.append(f"{failed}, counted neither for the base nor for what corrects it.")
    return notes


def _grid(cells: Sequence[CellReport]) -> dict[str, Any]:
    """Return the squares of the overview, with one row per model and one column per benchmark."""
    places = {(c.summary.model, c.summary.benchmark): i for i, c in enumerate(cells)}
    models, benchmarks = _names(cells)
    rows = {m: [_square(places.get((m, b)), cells) for b in benchmarks] for m in models}
    return {"benchmarks": benchmarks, "rows": rows}


def _square(place: int | None, cells: Sequence[CellReport]) -> dict[str, Any] | None:
    if place is None:
        return None
    delta = cells[place].summary.delta_mc1
    return {
        "cell": place,
        "text": _points(delta),
        "title": cells[place].judgement.sentence,
        "sign": "up" if delta > 0 else "down" if delta < 0 else "even",
        "heat": 0 if math.isnan(delta) else round(100 * min(abs(delta) / _FULL_HEAT, 1)),
    }


def _table(table: Table) -> dict[str, Any]:
    return {
        "title": table.title,
        "notes": table.notes,
        "columns": [(c.name, not is_text(table, i)) for i, c in enumerate(table.columns)],
        "rows": [_texts(row, table.columns) for row in table.rows],
    }


def _texts(row: Sequence[Value], heads: Sequence[Column]) -> list[tuple[str, str]]:
    """Return every value of a row as a sort key and as text."""
    return [_value(value, column) for value, column in zip(row, heads, strict=True)]


def _value(value: Value, column: Column) -> tuple[str, str]:
    if isinstance(value, str):
        return value, value
    if isinstance(value, Marked):
        key, text = _value(value.value, column)
        return key, text + value.mark
    text = f"{value:,}" if isinstance(value, int) else _minus(number(value, column.form))
    return "" if text == EN_DASH else repr(value), text


def _points(share: float) -> str:
    return _minus(number(100 * share, "+.2f"))


def _minus(text: str) -> str:
    return text.replace("-", "−")
