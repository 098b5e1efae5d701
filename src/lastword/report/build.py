"""Build: a folder of records becomes tables, figures and one page."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pandas as pd

from lastword.errors import RecordError
from lastword.evaluation import ablation
from lastword.evaluation.checklist import Findings, Point, checklist
from lastword.evaluation.comparison import Comparison, read_comparisons
from lastword.evaluation.dependence import dependence
from lastword.evaluation.readings import read
from lastword.evaluation.statistics import judge, over_cells
from lastword.files.folder import Folder
from lastword.records.cells import Cell, calibration, summarise
from lastword.records.info import read_runs
from lastword.records.provenance import Extent, Name, engines, extents, one_theta
from lastword.records.stored import read_cells
from lastword.report import draw, figures, tables
from lastword.report.checklist import checklist_table
from lastword.report.chosen import named, telling
from lastword.report.comparison import comparison_tables, method_costs
from lastword.report.constants import scorer_constants
from lastword.report.cost import Timing, cost_table, read_timings
from lastword.report.dependence import dependence_figure, dependence_table
from lastword.report.figure_parts import Diagram, Figure
from lastword.report.page import CellReport, render
from lastword.report.page_data import data_blocks, sampled
from lastword.report.published import against_paper
from lastword.report.table import Table, write_table
from lastword.report.trust import CellTrust, trust, trust_table
from lastword.theta import Theta


@dataclass(frozen=True)
class Material:
    """Everything that a report is made from.

    Attributes:
        cells: All cells.
        theta: Theta of the runs.
        timings: What the bench measured; empty without it.
        comparisons: TRACE beside its peers, of the runs that `lastword compare` made.
        item: What the worked example and the figure across models show, as BENCHMARK-ID; None
            lets them choose.
        extents: How much of its benchmark each cell was run on, where that is known.
        engines: What computed each cell, where that is known.
    """

    cells: Sequence[Cell]
    theta: Theta
    timings: tuple[Timing, ...] = ()
    comparisons: tuple[Comparison, ...] = ()
    item: str | None = None
    extents: Mapping[Name, Extent] = field(default_factory=dict)
    engines: Mapping[Name, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Written:
    """What a report left and found.

    Attributes:
        paths: Its files, the page last.
        verdicts: Of every cell, in words.
        checklist: The points that a sceptic asks.
        warnings: What was asked for and could not be shown.
    """

    paths: tuple[Path, ...]
    verdicts: tuple[str, ...]
    checklist: tuple[Point, ...]
    warnings: tuple[str, ...] = ()


def report(
    runs: Folder,
    out: Path,
    *,
    bench: Path | None = None,
    with_paper: bool = False,
    item: str | None = None,
) -> Written:
    """Write `tables/`, `figures/` and `index.html` under `out`.

    Args:
        runs: Folder of `lastword eval`, at any level.
        out: Folder to write to.
        bench: What `lastword bench --out` left, for the cost table and figure.
        with_paper: Whether the published grid is laid beside the cells.
        item: What the worked example and the figure across models show, as BENCHMARK-ID.

    Raises:
        RecordError: No records, records of different settings, no such item, or a folder that
            cannot be written.
    """
    timings, lacking = ((), "") if bench is None else _timings(bench)
    parted = read_cells(runs)
    compared = tuple(read_comparisons(runs, parted))
    said = read_runs(runs).values()
    theta = one_theta(said)
    material = Material(parted, theta, timings, compared, item, extents(said), engines(said))
    written = write(material, out, with_paper=with_paper)
    return replace(written, warnings=(lacking,) if lacking else ())


def _timings(bench: Path) -> tuple[tuple[Timing, ...], str]:
    """What the bench measured; of a folder where it left nothing, none, and a warning."""
    if bench.is_dir() and not any(bench.glob("*.json")):
        return (), f"no *.json in {bench}, as `lastword bench --out` leaves: the report has no cost"
    return tuple(read_timings(bench)), ""


def write(material: Material, out: Path, *, with_paper: bool = False) -> Written:
    """The report of records in memory; as `report`."""
    shown = None if material.item is None else named(material.cells, material.item)
    found = _find(material)
    points = checklist(found)
    effects, swept = _variants(found.cells, material.theta)
    trusted = [trust(cell, material.theta) for cell in found.cells]
    laid = [*_tables(found, material, effects, swept), trust_table(trusted)]
    laid += [against_paper(found.summaries)] if with_paper else []
    drawn = _figures(found, material, effects, swept, shown)
    try:
        files = [checklist_table(points), *laid]
        written = [path for table in files for path in write_table(table, out / "tables")]
        (out / "figures").mkdir(parents=True, exist_ok=True)
        written += [path for figure in drawn for path in draw.save(figure, out / "figures")]
        index = out / "index.html"
        index.write_text(_page(found, trusted, points, laid, drawn, material), encoding="utf-8")
    except OSError as error:
        raise RecordError(f"cannot write to {out}: {error.strerror or error}") from error
    said = tuple(f"{v.model} on {v.benchmark}: {v.sentence}" for v in found.judged)
    return Written((*written, index), said, points)


def _find(material: Material) -> Findings:
    parted = material.cells
    return Findings(
        cells=parted,
        summaries=[summarise(cell) for cell in parted],
        judged=judge(parted),
        dependences=[dependence(cell, material.theta) for cell in parted],
        comparisons=material.comparisons,
        extents=material.extents,
    )


def _variants(
    parted: Sequence[Cell], theta: Theta
) -> tuple[list[ablation.Effect], list[ablation.Sweep]]:
    readings = [read(cell, theta) for cell in parted]
    swept = [ablation.sweep(readings, theta, parameter) for parameter in ablation.GRIDS]
    return ablation.necessity(readings, theta), swept


def _tables(
    found: Findings,
    material: Material,
    effects: Sequence[ablation.Effect],
    swept: Sequence[ablation.Sweep],
) -> list[Table]:
    summaries = found.summaries
    laid = [
        tables.master(summaries, material.theta),
        tables.grid(summaries),
        tables.per_model(summaries, material.theta),
        tables.verdict_table(found.judged),
        tables.baselines(summaries),
        tables.calibrations(summaries),
        tables.necessity_table(effects),
        tables.sweep_table(swept),
        scorer_constants(material.theta),
        dependence_table(found.dependences),
    ]
    templates = tables.template_table(summaries)
    laid += [templates] if templates.rows else []
    laid += comparison_tables(material.comparisons) if material.comparisons else []
    laid += method_costs(material.comparisons)
    return laid + ([cost_table(material.timings)] if material.timings else [])


def _figures(
    found: Findings,
    material: Material,
    effects: Sequence[ablation.Effect],
    swept: Sequence[ablation.Sweep],
    shown: pd.DataFrame | None,
) -> list[Figure | Diagram]:
    """Every figure of the paper that these records can fill, in its order.

    Args:
        found: What the records say.
        material: What the report is made from.
        effects: Of the components.
        swept: Of the constants.
        shown: Records of the item that was asked for; None where none was.
    """
    parted, theta = material.cells, material.theta
    if shown is None:
        example = figures.representative(parted, "decisive")
        across = figures.hardest(parted)
    else:
        across = figures.rows_of(shown)
        example = telling(across)
    drawn = [
        figures.regimes(parted, theta),
        None if example is None else figures.worked_example(example, theta),
        figures.scorer_motifs(theta),
        figures.scorer_dataflow(theta),
        figures.ablation(effects, swept),
        figures.per_model(tables.per_model(found.summaries, theta)),
        figures.across_models(across, theta),
        figures.costs(material.timings) if material.timings else None,
        dependence_figure(found.dependences),
    ]
    return [figure for figure in drawn if figure is not None]


def _page(
    found: Findings,
    trusted: Sequence[CellTrust],
    points: Sequence[Point],
    laid: Sequence[Table],
    drawn: Sequence[Figure | Diagram],
    material: Material,
) -> str:
    views = [
        CellReport(
            summary,
            judgement,
            certified,
            _calibration(certified.cell),
            material.engines.get((summary.model, summary.benchmark)),
        )
        for summary, judgement, certified in zip(
            found.summaries, found.judged, trusted, strict=True
        )
    ]
    grid = over_cells(np.array([s.delta_mc1 for s in found.summaries], dtype=float))
    return render(
        views,
        grid,
        points,
        laid,
        drawn,
        data_blocks(material.cells, material.theta),
        _sample(material.cells),
    )


def _sample(parted: Sequence[Cell]) -> str:
    """What the page's list of items leaves out; empty where it has all."""
    records, shown = sum(len(c.records) for c in parted), sum(map(len, sampled(parted)))
    if shown == records:
        return ""
    return (
        f"{shown:,} of the {records:,} records are in this list, of every cell drawn evenly from "
        "answers fixed, broken, changed, unchanged and failed. All other numbers, tables and "
        "figures are of all records; `lastword.load_records` gives each."
    )


def _calibration(cell: Cell) -> Figure | None:
    if not len(cell.mc1_items):
        return None
    before, after = calibration(cell, "base_scores"), calibration(cell, "scores")
    return figures.calibration(before, after, "Reliability")
