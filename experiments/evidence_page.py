"""The page of the evidence: docs/evidence.md and its figures, from the records that are kept.

Its words stand in `evidence.md.jinja`; every number comes from the records.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from jinja2 import Environment, StrictUndefined

from lastword.evaluation import ablation
from lastword.evaluation.ablation import QUESTION_GATE
from lastword.evaluation.comparison import Comparison, read_comparisons
from lastword.evaluation.controls import controls
from lastword.evaluation.dependence import Dependence, Gain, dependence
from lastword.evaluation.readings import read as derive
from lastword.evaluation.statistics import Interval, Judgement, judge
from lastword.model.embedded import EMBEDDED
from lastword.records.cells import Cell, Summary, cells, summarise
from lastword.records.frame import load_records
from lastword.records.info import find_cells, read_run
from lastword.records.metrics import fixed_and_broken, mc1_rows
from lastword.report import draw
from lastword.report.comparison import ORACLE
from lastword.report.dependence import dependence_figure
from lastword.report.figure_parts import Bars, Figure, Panel, Rule
from lastword.report.table import Column, Table, Value, delta, level, to_markdown
from lastword.rule.operators import OPERATORS
from lastword.theta import Theta
from lastword.trust.testing import holm

HERE = Path(__file__).parent
DOCS = HERE.parent / "docs"
TITLES = {
    "truthfulqa": "TruthfulQA, six pairs",
    "truthfulqa@own6": "TruthfulQA, our six pairs",
    "truthfulqa@zero-shot": "TruthfulQA, no pairs",
    "chat": "TruthfulQA, chat template",
    "halueval-qa": "HaluEval-QA with knowledge",
    "halueval-qa-closed": "HaluEval-QA without",
    "fib": "FIB",
    "factor": "FACTOR, news",
    "everyday": "everyday",
}
THETA = Theta()


@dataclass(frozen=True)
class Shown:
    """A cell with what is said of it."""

    title: str
    cell: Cell
    summary: Summary
    judgement: Judgement
    dependence: Dependence | None


def write(kept: Path) -> None:
    """Make the page and its figures."""
    shown, bounds = read(kept)
    (DOCS / "evidence.md").write_text(render(kept, shown, bounds), encoding="utf-8")
    with TemporaryDirectory() as folder:
        for figure in (depths(shown), gains(shown)):
            paths = draw.save(figure, Path(folder))
            svg = next(path for path in paths if path.suffix == ".svg")
            (DOCS / "images" / svg.name).write_bytes(svg.read_bytes())


def page(kept: Path) -> str:
    """The page as text."""
    return render(kept, *read(kept))


def render(kept: Path, shown: Sequence[Shown], bounds: Sequence[Shown]) -> str:
    """The page of cells in hand."""
    compared = [
        comparison
        for root in roots(kept)
        for comparison in read_comparisons(root, [c for c in cells_of(root) if not is_bound(c)])
    ]
    tables = [
        cells_table(shown),
        operators_table(shown),
        needs_table(shown),
        choices_table(shown),
        peers_table(compared),
        gate_table(shown),
        cells_table(bounds, "bounds"),
        needs_table(bounds, "bounds-needs"),
    ]
    environment = Environment(
        undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True
    )
    template = environment.from_string((HERE / "evidence.md.jinja").read_text(encoding="utf-8"))
    return template.render(
        tables={table.name: body(table) for table in tables},
        shown=shown,
        by={one.cell.benchmark: one for one in shown},
        needs={one.cell.benchmark: gain for one, gain in needs(shown)},
        between=between,
        points=points,
        run=read_run(next(cell for cell in find_cells(kept) if cell.name == "truthfulqa")),
    )


def read(kept: Path) -> tuple[list[Shown], list[Shown]]:
    """The real model's cells, judged together, and those of the embedded models."""
    named = [(root.name, cell) for root in roots(kept) for cell in cells_of(root)]
    named = [(root, cell) for root, cell in named if root != "peers"]
    bounds = [cell for _, cell in named if is_bound(cell)]
    real = [
        replace(cell, benchmark=root if root == "chat" else cell.benchmark)
        for root, cell in named
        if not is_bound(cell)
    ]
    real.sort(key=lambda cell: list(TITLES).index(cell.benchmark))
    return judged(real, [TITLES[c.benchmark] for c in real]), judged(
        bounds, [f"{c.model} on {c.benchmark}" for c in bounds]
    )


def is_bound(cell: Cell) -> bool:
    """Whether the cell is of a model that is no evidence, but a lower bound."""
    return cell.model.startswith(EMBEDDED) or cell.model.endswith("stories260K")


def judged(parted: Sequence[Cell], titles: Sequence[str]) -> list[Shown]:
    verdicts = judge(parted, [controls(cell) for cell in parted])
    rows = zip(titles, parted, verdicts, strict=True)
    return [
        Shown(title, cell, summarise(cell), said, dependence(cell, THETA))
        for title, cell, said in rows
    ]


def roots(kept: Path) -> list[Path]:
    return sorted(path for path in kept.iterdir() if path.is_dir())


def cells_of(root: Path) -> list[Cell]:
    return cells(load_records(root))


# --- tables -------------------------------------------------------------------------------------

_P = (Column("p", 2, significant=True), Column("Holm p", 2, significant=True))


def cells_table(shown: Sequence[Shown], name: str = "cells") -> Table:
    """What correction does to every cell, with the baselines that have read no question."""
    names = (Column("Cell"), Column("Items"), level("Base"), level("TRACE"), delta("Change"))
    counts = (Column("95%"), Column("Fixed"), Column("Broken"), *_P)
    beside = (level("Blind"), level("Shortest"))
    return Table(
        name,
        "MC1",
        (*names, *counts, *beside),
        tuple(_cell_row(one) for one in shown),
    )


def _cell_row(one: Shown) -> tuple[Value, ...]:
    s, j = one.summary, one.judgement
    change = (100 * s.mc1_base, 100 * s.mc1, 100 * j.delta_mc1, between(j.interval_mc1))
    return (
        one.title,
        j.items,
        *change,
        j.fixed,
        j.broken,
        j.p,
        j.p_holm,
        100 * s.blind,
        100 * s.shortest,
    )


def operators_table(shown: Sequence[Shown]) -> Table:
    """Whose answers were fixed and broken."""
    fires = [name for name in OPERATORS if name != "base"]
    columns = [Column("Benchmark")]
    for name in fires:
        columns += [Column(f"{name}: items"), Column("fixed"), Column("broken")]
    rows = [(one.title, *(v for name in fires for v in _by(one.cell, name))) for one in shown]
    return Table("operators", "By operator", tuple(columns), tuple(rows))


def _by(cell: Cell, operator: str) -> tuple[int, int, int]:
    mine = cell.mc1_items["operator"].to_numpy() == operator
    return (int(mine.sum()), *fixed_and_broken(cell.gains_mc1[mine]))


def peers_table(comparisons: Sequence[Comparison]) -> Table:
    """Every method against the base of its own aggregation; Holm's correction is over all rows."""
    rows = [(c, s) for c in comparisons for s in c.standings if s.base != s.method]
    fair = holm(np.array([s.p_base for _, s in rows]))
    columns = (Column("Benchmark"), Column("Items"), Column("Method"), level("MC1"))
    values: list[tuple[Value, ...]] = [
        (c.benchmark, s.items, s.method, 100 * s.mc1, 100 * s.delta_mc1)
        + (s.base, s.fixed, s.broken, s.p_base, float(p))
        for (c, s), p in zip(rows, fair, strict=True)
    ]
    values += [(c.benchmark, "", ORACLE, 100 * c.oracle, *_NONE) for c in comparisons]
    against = (delta("Change"), Column("Against"), Column("Fixed"), Column("Broken"), *_P)
    return Table("peers", "All methods", (*columns, *against), tuple(values))


_NONE: tuple[Value, ...] = (math.nan, "", "", "", math.nan, math.nan)


def gate_table(shown: Sequence[Shown]) -> Table:
    """What the question gate lets stand of the overrides, and what it withholds."""
    columns = (Column("Benchmark"), Column("Overrides"), Column("Stand"), level("MC1"))
    withheld = (Column("Repairs withheld"), Column("Breaks withheld"))
    rows = [_gate_row(one) for one in shown if one.cell.items["blind_trajectory"].notna().all()]
    return Table("gate", QUESTION_GATE, (*columns, *withheld), tuple(rows))


def _gate_row(one: Shown) -> tuple[Value, ...]:
    known, items = derive(one.cell, THETA), one.cell.mc1_places
    base = np.where(known.present, known.base, -np.inf)[items]
    rule, gated = (
        ablation.decide(known, ablation.Variant(THETA, question_gate=gate)).scores[items]
        for gate in (False, True)
    )
    credit, own, withheld = (
        mc1_rows(scores, known.truthful[items]) for scores in (gated, rule, base)
    )
    answered = base.argmax(axis=1)
    overrides, stands = rule.argmax(axis=1) != answered, gated.argmax(axis=1) != answered
    repairs, breaks = fixed_and_broken((own - withheld)[overrides & ~stands])
    counts = (int(overrides.sum()), int(stands.sum()))
    return (one.title, *counts, 100 * float(credit.mean()), repairs, breaks)


def needs_table(shown: Sequence[Shown], name: str = "needs") -> Table:
    """Of each gain, how much the same rule gains with the question left out."""
    columns = (
        *(Column("Cell"), level("Base"), level("Base, blind"), delta("Gain")),
        *(delta("Gain, blind"), delta("Needs the question"), Column("95%")),
    )
    rows = [
        (one.title, 100 * one.summary.mc1_base, 100 * one.summary.blind)
        + (100 * gain.sighted, 100 * gain.blind, 100 * gain.needs, between(gain.interval))
        for one, gain in needs(shown)
    ]
    return Table(name, "Does it need the question?", columns, tuple(rows))


def choices_table(shown: Sequence[Shown]) -> Table:
    """How often a depth chooses the very candidate that it chooses without the question."""
    halves = (level("Same choice, L/2"), level("Same choice, L"))
    truths = (level("MC1 at L/2"), level("MC1 at L/2, blind"))
    rows = [_choices_row(one, one.dependence) for one in shown if one.dependence is not None]
    columns = (Column("Benchmark"), *halves, *truths)
    return Table("choices", "The same choice without the question", columns, tuple(rows))


def _choices_row(one: Shown, found: Dependence) -> tuple[Value, ...]:
    half, last = found.depth // 2, found.depth
    alike = [same(one.cell, depth) for depth in (half, last)]
    shares = (*alike, found.sighted[half], found.blind[half])
    return (one.title, *(100 * float(share) for share in shares))


def same(cell: Cell, depth: int) -> float:
    """Share of items whose top candidate at a depth is the one that is on top there blind."""
    pairs = zip(cell.mc1_items["trajectory"], cell.mc1_items["blind_trajectory"], strict=True)
    return float(np.mean([S[:, depth].argmax() == B[:, depth].argmax() for S, B in pairs]))


def needs(shown: Sequence[Shown]) -> list[tuple[Shown, Gain]]:
    """TRACE's gain with the question and without, of the cells that were read both ways."""
    return [(one, one.dependence.gains[0]) for one in shown if one.dependence is not None]


def body(table: Table) -> str:
    """The table alone: the page has its own words."""
    return to_markdown(replace(table, notes=())).partition("\n\n")[2].strip()


def between(interval: Interval) -> str:
    """`+1.5 to +7.0`, in points."""
    return f"{points(interval.low)} to {points(interval.high)}"


def points(share: float) -> str:
    """`+5.9`, in points."""
    return "–" if math.isnan(share) else f"{100 * share:+.1f}".replace("-", "−")


# --- figures ------------------------------------------------------------------------------------


def gains(shown: Sequence[Shown]) -> Figure:
    """Fixed and broken answers as shares of the items, by benchmark."""
    names = tuple(one.title for one in shown)
    fixed = tuple(100 * one.judgement.fixed / one.judgement.items for one in shown)
    broken = tuple(-100 * one.judgement.broken / one.judgement.items for one in shown)
    marks = (
        Bars(names, fixed, "truthful", "fixed", horizontal=True),
        Bars(names, broken, "winner", "broken", horizontal=True),
        Rule(0),
    )
    panel = Panel("", marks, "answers fixed and broken, % of the items")
    return Figure("evidence-gains", "Fixed and broken", "", (panel,), columns=1)


def depths(shown: Sequence[Shown]) -> Figure:
    """MC1 by depth with the question and without."""
    figure = dependence_figure(
        [
            replace(one.dependence, model="", benchmark=one.title)
            for one in shown
            if one.dependence is not None
        ]
    )
    assert figure is not None
    return replace(figure, name="evidence-depths", panels=figure.panels[::2])
