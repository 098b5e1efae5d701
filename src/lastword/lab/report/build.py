"""Builds a report, with tables, figures and one page, from a folder of records."""

from collections.abc import Sequence
from dataclasses import dataclass
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
    cost,
    dependence,
    draw,
    figures,
    page_data,
    published,
    tables,
)
from lastword.lab.report.draw import Figure
from lastword.lab.report.page import CellReport, render
from lastword.lab.report.table import Table, write_table
from lastword.records.cells import Cell, read_cells, summarise
from lastword.records.info import one_theta, read_runs
from lastword.records.readings import read
from lastword.rule.theta import Theta


@dataclass(frozen=True)
class ReportInput:
    """The material of a report.

    Attributes:
        timings: Timings for the cost table and figure.
        with_paper: True to compare the cells with the published grid.
        leading: Tables that come before those of the records.
        comparisons: Results of `lastword compare`.
    """

    cells: Sequence[Cell]
    theta: Theta
    timings: Sequence[cost.Timing] = ()
    with_paper: bool = False
    leading: Sequence[Table] = ()
    comparisons: Sequence[comparison.Comparison] = ()


class Output(NamedTuple):
    """The files of a report, and its verdicts."""

    paths: list[Path]
    verdicts: list[str]


def report(
    runs: Path,
    out: Path,
    *,
    bench: Path | None = None,
    with_paper: bool = False,
    leading: Sequence[Table] = (),
) -> Output:
    """Write `tables/`, `figures/` and `index.html` under `out`.

    Args:
        runs: Results folder of `lastword eval`, at any level.
        out: Folder to write to.
        bench: Output of `lastword bench --out`, for the cost table and figure.
        with_paper: True to compare the cells with the published grid.
        leading: Tables that come before those of the records.

    Raises:
        RecordError: No records, records of different settings, no timings, or a folder that
            cannot be written.
    """
    cells = read_cells(runs)
    theta = one_theta(read_runs(runs).values())
    timings = [] if bench is None else cost.read_timings(bench)
    compared = comparison.read_comparisons(runs, cells)
    return write(ReportInput(cells, theta, timings, with_paper, leading, compared), out)


def write(material: ReportInput, out: Path) -> Output:
    """Write the report of records in memory; see `report`."""
    views, written_tables, drawings = _contents(material)
    index = out / "index.html"
    try:
        paths = [path for table in written_tables for path in write_table(table, out / "tables")]
        (out / "figures").mkdir(parents=True, exist_ok=True)
        paths += [path for picture in drawings for path in draw.save(picture, out / "figures")]
        blocks = page_data.data_blocks(material.cells, material.theta)
        sample = page_data.sample_note(material.cells)
        write_text(index, render(views, written_tables, drawings, blocks, sample))
    except OSError as error:
        raise RecordError(f"cannot write to {out}: {error.strerror or error}") from error
    verdicts = (verdict_lines(view.judgement, view.controls.sentence) for view in views)
    return Output([*paths, index], [*chain.from_iterable(verdicts)])


def _contents(material: ReportInput) -> tuple[list[CellReport], list[Table], list[Figure]]:
    """Return cells, tables and figures in the paper's order; each statistic is computed once."""
    cells, theta, timings = material.cells, material.theta, material.timings
    readings = [read(cell, theta) for cell in cells]
    tests, summaries = [controls(cell) for cell in cells], [summarise(cell) for cell in cells]
    needs = [
        dependence.dependence(c, theta, sighted=r) for c, r in zip(cells, readings, strict=True)
    ]
    judgements = judge(cells, [each.objection for each in tests])
    effects, swept = ablation.necessity(readings, theta), ablation.sweeps(readings, theta)
    means = tables.model_means(summaries)
    beside_the_paper = [
        published.against_paper(summaries),
        published.ablation_against_paper(effects),
        published.per_model_against_paper(means),
    ]
    tables_or_none: list[Table | None] = [
        *material.leading,
        *(beside_the_paper if material.with_paper else []),
        tables.master(summaries, theta),
        tables.grid(summaries),
        tables.per_model(means, theta),
        tables.verdict_table(judgements),
        tables.controls_table(summaries, tests),
        tables.calibrations(summaries),
        ablation.necessity_table(effects),
        ablation.sweep_table(swept, theta),
        ablation.reading_table(readings, theta),
        dependence.dependence_table(needs),
        *comparison.comparison_tables(material.comparisons),
        cost.cost_table(timings) if timings else None,
    ]
    figures_or_none = [
        figures.regimes(cells, theta),
        figures.worked_example(cells, theta),
        ablation.ablation_figure(effects, swept, theta),
        figures.per_model(means),
        figures.across_models(figures.hardest(cells), theta),
        cost.cost_figure(timings) if timings else None,
    ]
    views = [CellReport(*row) for row in zip(summaries, judgements, tests, strict=True)]
    written = [table for table in tables_or_none if table is not None]
    return views, written, [picture for picture in figures_or_none if picture is not None]
