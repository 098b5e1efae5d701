"""Builds a report, with tables, figures and one page, from a folder of records."""

from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from lastword.errors import RecordError
from lastword.files.writing import write_text
from lastword.lab.evaluation.controls import controls
from lastword.lab.evaluation.statistics import judge, verdict_lines
from lastword.lab.report import (
    ablation,
    comparison,
    dependence,
    draw,
    figures,
    page_data,
    published,
    tables,
)
from lastword.lab.report.draw import Figure
from lastword.lab.report.page import CellReport, render
from lastword.lab.report.table import ReportTable, write_table
from lastword.records.cells import Cell, read_cells, summarise
from lastword.records.info import one_theta, read_runs
from lastword.records.readings import read
from lastword.rule.theta import Theta


class Output(NamedTuple):
    """The files of a report, and its verdicts."""

    paths: list[Path]
    verdicts: list[str]


def report(
    runs: Path, out: Path, *, with_paper: bool = False, leading: Sequence[ReportTable] = ()
) -> Output:
    """Write `tables/`, `figures/` and `index.html` under `out`.

    Args:
        runs: Results folder of `lastword eval`, at any level.
        out: Folder to write to.
        with_paper: True to compare the cells with the published grid.
        leading: Tables that come before those of the records.

    Raises:
        RecordError: No records, records of different settings, or a folder that cannot be written.
    """
    cells = read_cells(runs)
    theta = one_theta(read_runs(runs).values())
    compared = comparison.comparison_tables(comparison.read_comparisons(runs, cells))
    return write(cells, theta, out, with_paper=with_paper, leading=leading, last=compared)


def write(
    cells: Sequence[Cell],
    theta: Theta,
    out: Path,
    *,
    with_paper: bool = False,
    leading: Sequence[ReportTable] = (),
    last: Sequence[ReportTable] = (),
) -> Output:
    """Write the report of records in memory; see `report`. `last` are tables after the others."""
    tests, summaries = [controls(cell) for cell in cells], [summarise(cell) for cell in cells]
    judgements = judge(cells, [each.objection for each in tests])
    means = tables.model_means(summaries)
    by_rule, ablated = _decided_again(cells, theta)
    shown = [
        *leading,
        *([published.against_paper(summaries)] if with_paper else []),
        tables.grid(summaries),
        tables.per_model(means, theta),
        tables.verdict_table(judgements),
        tables.controls_table(summaries, tests),
        tables.calibrations(summaries),
        *by_rule,
        *last,
    ]
    drawings = [
        figures.regimes(cells, theta),
        figures.worked_example(cells, theta),
        figures.per_model(means),
        ablated,
    ]
    drawn = [drawing for drawing in drawings if drawing is not None]
    views = [CellReport(*row) for row in zip(summaries, judgements, tests, strict=True)]
    index = out / "index.html"
    try:
        written = [tables.cells_table(summaries), *shown]
        paths = [path for table in written for path in write_table(table, out / "tables")]
        paths += [path for drawing in drawn for path in draw.save(drawing, out / "figures")]
        blocks = page_data.data_blocks(cells, theta)
        write_text(index, render(views, shown, drawn, blocks, page_data.sample_note(cells)))
    except OSError as error:
        raise RecordError(f"cannot write to {out}: {error.strerror or error}") from error
    verdicts = (verdict_lines(view.judgement, view.controls.sentence) for view in views)
    return Output([*paths, index], [*chain.from_iterable(verdicts)])


def _decided_again(cells: Sequence[Cell], theta: Theta) -> tuple[list[ReportTable], Figure]:
    """Return the tables of decisions by other rules and without the question, and a figure."""
    readings = [read(cell, theta) for cell in cells]
    effects, swept = ablation.necessity(readings, theta), ablation.sweeps(readings, theta)
    by_readings = ablation.reading_table(readings, theta)
    needs = [
        dependence.dependence(c, theta, sighted=r) for c, r in zip(cells, readings, strict=True)
    ]
    written = [
        ablation.necessity_table(effects),
        ablation.sweep_table(swept, theta),
        *([] if by_readings is None else [by_readings]),
        dependence.dependence_table(needs),
    ]
    return written, ablation.ablation_figure(effects, swept, theta)
