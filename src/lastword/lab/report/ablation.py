"""Ablations: removes components and sweeps constants, and decides each item again from its record.

The readings of all items are computed once. Deciding a cell by an `AblatedRule` is then a few array
operations over all of its items (docs/paper.md).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from types import MappingProxyType
from typing import Any

import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes

from lastword.files.wording import counted
from lastword.lab.report import draw
from lastword.lab.report.draw import Figure, styled
from lastword.lab.report.table import MARK, ReportTable, Value
from lastword.records.cells import mean, mean_defined
from lastword.records.metrics import mc1_rows, mc2_rows
from lastword.records.readings import AblatedRule, Readings
from lastword.rule.theta import Theta
from lastword.trust.paired import ROUNDING

GRIDS: Mapping[str, tuple[float, ...]] = MappingProxyType(
    {
        "tau_dim": (1.0, 1.0005, 1.001, 1.0015, 1.005, 1.01, 1.05, 1.1, 1.25),
        "eta": tuple(k / 4 for k in range(9)),
        "tau_logr": tuple(k / 4 for k in range(9)),
        "tau_H": tuple(round(0.05 * k, 2) for k in range(20)),
        "gamma": tuple(k / 4 - 3 for k in range(13)),
    }
)


@dataclass(frozen=True, eq=False)
class Effect:
    """The results of one ablated rule on all cells.

    Attributes:
        label: Its name in tables.
        deltas: Mean delta MC1 and delta MC2 of each cell, nan if no item counts [2, cells].
        value: Value of the swept constant; nan for a replaced component.
    """

    label: str
    deltas: Float[np.ndarray, "2 cells"]
    value: float = math.nan

    @property
    def points(self) -> list[float]:
        """Delta MC1 and delta MC2 in points: unweighted means over the cells that are not nan."""
        return [100 * mean_defined(delta) for delta in self.deltas]

    @property
    def cells(self) -> int:
        """The number of cells in which an item counts."""
        return int((~np.isnan(self.deltas)).any(axis=0).sum())

    @property
    def negative(self) -> list[int]:
        """The numbers of cells with an unrounded delta below 0, for MC1 and MC2."""
        counts: list[int] = (self.deltas < -ROUNDING).sum(axis=1).tolist()
        return counts


Sweeps = Mapping[str, Sequence[Effect]]  # effects over the grid of each constant


def deltas(r: Readings, rule: AblatedRule) -> list[float]:
    """Return the mean delta MC1 and delta MC2 of a cell by a rule; nan if no item counts."""
    (_, u), base = r.decide(rule), np.where(r.present, r.base, -np.inf)
    metrics = (mc1_rows, r.counts_mc1), (mc2_rows, r.counts_mc2)
    return [
        mean(rows(u[some], r.truthful[some]) - rows(base[some], r.truthful[some]))
        for rows, some in metrics
    ]


def necessity(cells: Sequence[Readings], theta: Theta) -> list[Effect]:
    """Return the effects of the rule and of the eight ablations, in the paper's order."""
    rule = AblatedRule(theta)
    rules = {
        "TRACE" if theta == Theta() else "TRACE (as run)": rule,
        "Force every item into multi-directional arm": replace(rule, candidate_space="always"),
        "Force every item into scalar arm": replace(rule, candidate_space="never"),
        "Drop signed mixing": replace(rule, dropped=frozenset({"mix"})),
        "Drop earliest-state recovery": replace(rule, dropped=frozenset({"early"})),
        "Drop both scalar operators": replace(rule, dropped=frozenset({"mix", "early"})),
        "Drop multi-directional arm": replace(rule, dropped=frozenset({"decisive"})),
        "Force signed mixing on every model": replace(rule, invariant=np.inf),
        "Force fallback on every model": replace(rule, invariant=0.0),
    }
    return [_effect(label, [deltas(cell, rule) for cell in cells]) for label, rule in rules.items()]


def reading_table(cells: Sequence[Readings], theta: Theta) -> ReportTable | None:
    """Return the rule's effects with each reading of T and I(M) that the paper leaves open.

    The result is None if the records have none (docs/paper.md). Those of the runs are marked.
    """
    rule, switches, undefined = AblatedRule(theta), theta.invariant, [np.nan, np.nan]

    def by_scorer(r: Readings, name: str) -> list[float]:
        t = r.t_readings.get(name)
        return undefined if t is None else deltas(r.by_scorer(t), rule)

    def by_invariant(r: Readings, name: str) -> list[float]:
        value = r.invariant_readings.get(name)
        return undefined if value is None else deltas(r, replace(rule, invariant=value))

    run = {f"T: {theta.scorer.reading}"}
    run |= {f"I(M): {switches.output_rows}/{switches.block}/{switches.norm}"}
    rows: list[tuple[Value, ...]] = []
    for kind, values, of in (
        ("T", "t_readings", by_scorer),
        ("I(M)", "invariant_readings", by_invariant),
    ):
        for name in dict.fromkeys(name for cell in cells for name in getattr(cell, values)):
            label = f"{kind}: {name}"
            effect = _effect(label, [of(cell, name) for cell in cells])
            rows.append((label + MARK * (label in run), *_ablated(effect)))
    notes = (
        "†: the setting of these runs. Readings of T: evidence of a token outside Omega, and what "
        "lambda_0 is the least weight of. Readings of I(M): rows of W_O, block e, norm (method, "
        "sections 5 and 7).",
    )
    heads, title = f"Reading | {_ABLATED}", "Readings that the paper leaves open"
    return ReportTable.of("readings", title, heads, rows, notes) if rows else None


def sweeps(cells: Sequence[Readings], theta: Theta) -> Sweeps:
    """Return the effects of each constant of the outer rule, varied alone (docs/paper.md).

    At tau_dim = 1, binary items are decided as at 1.0005, because their d_eff is exactly 1. The
    paper's regressions at that point are rounding noise and are not reproduced (docs/paper.md).
    """

    def effect(name: str, value: float) -> Effect:
        changed: dict[str, Any] = {name: value}
        rule = AblatedRule(replace(theta, **changed))
        return _effect(name, [deltas(cell, rule) for cell in cells], value)

    return {name: [effect(name, value) for value in grid] for name, grid in GRIDS.items()}


def _effect(label: str, pairs: Sequence[Sequence[float]], value: float = math.nan) -> Effect:
    return Effect(label, np.array(pairs, dtype=float).reshape(-1, 2).T, value)


_ABLATED = "ΔMC1 +.2 | ΔMC2 +.2 | Negative MC1 pairs | Negative MC2 pairs | Pairs"


def necessity_table(effects: Sequence[Effect]) -> ReportTable:
    """Return the table of the published rule and its variants without one component each."""
    heads = f"Variant | {_ABLATED}"
    rows = [(effect.label, *_ablated(effect)) for effect in effects]
    notes = (
        "A dropped operator's items answer as the base; forcing the multi-directional arm keeps "
        "its three gates and includes binary items.",
    )
    return ReportTable.of("ablation", "Necessity of the components", heads, rows, notes)


def sweep_table(swept: Sweeps, theta: Theta) -> ReportTable:
    """Return the table of the outer rule's constants, each varied alone."""
    body: list[tuple[Value, ...]] = []
    for effect in chain(*swept.values()):
        current = math.isclose(effect.value, getattr(theta, effect.label))
        body.append((effect.label + MARK * current, effect.value, *_ablated(effect)))
    notes = (
        "†: the setting of these runs.",
        "tau_dim = 1 decides binary items as 1.0005 does: their effective dimension is 1 exactly. "
        "The paper's five regressions at that point are rounding noise of a computed 1.",
        "eta above 1 lies outside the paper's range.",
    )
    heads = f"Constant | Value | {_ABLATED}"
    return ReportTable.of("sweeps", "Sensitivity to the constants", heads, body, notes)


def _ablated(effect: Effect) -> tuple[Value, ...]:
    return (*effect.points, *effect.negative, effect.cells)


_SWEPT = {
    "tau_dim": "regime boundary τ_dim",
    "eta": "mixing magnitude η",
    "tau_logr": "sharpness gate τ_logr",
    "tau_H": "entropy gate τ_H",
    "gamma": "earliest-state cutoff γ",
}


@styled
def ablation_figure(effects: Sequence[Effect], swept: Sweeps, theta: Theta) -> Figure:
    """Return the figure of single components removed, and of the outer rule's constants varied."""
    wide = draw.bars_inches(len(effects), groups=2)
    canvas, (components, *others) = draw.canvas(len(swept), wide=[wide])
    _components(components, effects)
    for place, axes, (name, moved) in zip("bcdef", others, swept.items(), strict=True):
        draw.label(axes, f"({place}) {_SWEPT[name]}", "", "points")
        _swept(axes, moved, getattr(theta, name))
    caption = (
        f"Mean change of MC1 and MC2 over {counted(effects[0].cells, 'pair')}, in points. (a) One"
        " component removed or overridden at a time; the others: one constant swept, the setting"
        " of the runs dotted. Red: how many pairs regress on MC1, where any does."
    )
    return Figure("ablation", "Ablations and sweeps", caption, canvas)


def _components(axes: Axes, effects: Sequence[Effect]) -> None:
    first, second = zip(*(e.points for e in effects), strict=True)
    draw.label(axes, "(a) Components", "points")
    draw.rule(axes, 0.0)
    names = [effect.label for effect in effects]
    draw.bars(axes, names, {"MC1": ("corrected", first), "MC2": ("base", second)}, horizontal=True)
    draw.at_ends(axes, 0, [str(e.negative[0] or "") for e in effects], "alarm")


def _swept(axes: Axes, effects: Sequence[Effect], published: float) -> None:
    grid = [effect.value for effect in effects]
    steps = np.diff(grid)
    # Values of an uneven grid are spaced evenly and labelled, or their points would overlap.
    even = bool(np.allclose(steps, steps[0]))
    x = np.array(grid) if even else np.arange(len(grid))
    first, second = zip(*(effect.points for effect in effects), strict=True)
    higher = first[-1] > second[-1]
    draw.rule(axes, float(np.interp(published, grid, x)))
    draw.line(axes, x, first, "corrected", "MC1", markers=True, above=higher)
    draw.line(axes, x, second, "base", "MC2", markers=True, above=not higher)
    for at, level, effect in zip(x, first, effects, strict=True):
        if effect.negative[0]:
            draw.note(axes, str(effect.negative[0]), (at, level), role="alarm", fontsize=7)
    if not even:
        axes.set_xticks(x, [f"{value:g}" for value in grid], rotation=45, ha="right")
