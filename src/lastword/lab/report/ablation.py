"""Ablations: removes components and sweeps constants, and decides each item again from its record.

The readings of all items are computed once (`readings`). Deciding a cell with a `Variant` is then a
few array operations over all of its items (method, section 11).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from types import MappingProxyType

import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes

from lastword.files.wording import counted
from lastword.lab.report import draw
from lastword.lab.report.draw import Figure, styled
from lastword.lab.report.table import Marked, Table, Value
from lastword.records.cells import mean, mean_defined
from lastword.records.readings import OVERRIDING, Readings
from lastword.records.variant import Variant, decide, operators_of
from lastword.rule.theta import Theta
from lastword.trust.paired import ROUNDING

QUESTION_GATE = "Question gate (ours)"
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
    """The results of one variant on all cells.

    Attributes:
        label: Its name in tables.
        deltas: Mean delta MC1 and delta MC2 of each cell, in [-1, 1] [2, cells]; nan if no item
            counts.
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


def deltas(readings: Readings, variant: Variant) -> tuple[float, float]:
    """Return the mean delta MC1 and delta MC2 of a cell with a variant; nan if no item counts.

    The question gate also gives nan for cells without blind readings.
    """
    r = readings
    if variant.question_gate and not r.read_blind:
        return np.nan, np.nan
    operators = decide(r, variant).operators if variant.question_gate else operators_of(r, variant)
    gains = [r.gains(place, variant.theta.eta) for place in OVERRIDING]
    fires = [operators == place for place in OVERRIDING]
    first, second = (np.select(fires, [gain[i] for gain in gains], 0.0) for i in range(2))
    return mean(first[r.counts_mc1]), mean(second[r.counts_mc2])


def necessity(cells: Sequence[Readings], theta: Theta) -> list[Effect]:
    """Return the effects of the rule and of the eight ablations, in the paper's order.

    The question gate, which is not in the paper, is added if a cell has blind readings.
    """
    rule = Variant(theta)
    variants = {
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
    if any(cell.read_blind for cell in cells):
        variants[QUESTION_GATE] = replace(rule, question_gate=True)
    return [_effect(label, cells, variant) for label, variant in variants.items()]


def by_reading(cells: Sequence[Readings], theta: Theta) -> list[Effect]:
    """Return the rule's effects with each reading of T and I(M) that the paper leaves open.

    Readings of T need records with t by every reading, readings of I(M) runs with its values; [] if
    there are none (method, section 11).
    """
    rule = Variant(theta)
    scorers = dict.fromkeys(name for cell in cells for name in cell.t_readings)
    switches = dict.fromkeys(name for cell in cells for name in cell.invariant_readings)
    undefined = (np.nan, np.nan)
    rows = {
        f"T: {name}": [
            deltas(c.by_reading(name), rule) if name in c.t_readings else undefined for c in cells
        ]
        for name in scorers
    }
    for name in switches:
        rows[f"I(M): {name}"] = [
            deltas(c, replace(rule, invariant=c.invariant_readings[name]))
            if name in c.invariant_readings
            else undefined
            for c in cells
        ]
    return [Effect(label, np.array(pairs, dtype=float).T) for label, pairs in rows.items()]


def reading_table(effects: Sequence[Effect], theta: Theta) -> Table:
    """Return the table of the readings, with those of the runs marked."""
    switches = theta.invariant
    run = {
        f"T: {theta.scorer.reading}",
        f"I(M): {switches.output_rows}/{switches.block}/{switches.norm}",
    }
    rows = [(e.label + ("†" if e.label in run else ""), *_ablated(e)) for e in effects]
    notes = (
        "†: the setting of these runs. Readings of T: evidence of a token outside Omega, and what "
        "lambda_0 is the least weight of. Readings of I(M): rows of W_O, block e, norm (method, "
        "sections 5 and 7).",
    )
    heads = f"Reading | {_ABLATED}"
    return Table.of("readings", "Readings that the paper leaves open", heads, rows, notes)


def sweeps(cells: Sequence[Readings], theta: Theta) -> Sweeps:
    """Return the effects of each constant of the outer rule, varied alone (method, section 11).

    At tau_dim = 1, binary items are decided as at 1.0005, because their d_eff is exactly 1. The
    paper's regressions at that point are rounding noise and are not reproduced (section 12).
    """
    return {
        name: [
            _effect(name, cells, Variant(replace(theta, **{name: value})), value)  # type: ignore[arg-type]
            for value in grid
        ]
        for name, grid in GRIDS.items()
    }


def _effect(
    label: str, cells: Sequence[Readings], variant: Variant, value: float = math.nan
) -> Effect:
    pairs = np.array([deltas(cell, variant) for cell in cells], dtype=float).reshape(-1, 2)
    return Effect(label, pairs.T, value)


_ABLATED = "ΔMC1 +.2 | ΔMC2 +.2 | Negative MC1 cells | Negative MC2 cells | Cells"


def necessity_table(effects: Sequence[Effect]) -> Table:
    """Return the table of the published rule and its variants without one component each."""
    heads = f"Variant | {_ABLATED}"
    rows = [(effect.label, *_ablated(effect)) for effect in effects]
    notes = [
        "A dropped operator's items answer as the base; forcing the multi-directional arm keeps "
        "its three gates and includes binary items."
    ]
    if any(effect.label == QUESTION_GATE for effect in effects):
        notes.append(_GATED)
    return Table.of("ablation", "Necessity of the components", heads, rows, notes)


def sweep_table(swept: Sweeps, theta: Theta) -> Table:
    """Return the table of the outer rule's constants, each varied alone."""
    body: list[tuple[Value, ...]] = []
    for effect in chain(*swept.values()):
        current = math.isclose(effect.value, getattr(theta, effect.label))
        value: Value = Marked(effect.value) if current else effect.value
        body.append((effect.label, value, *_ablated(effect)))
    notes = (
        "†: the setting of these runs.",
        "tau_dim = 1 decides binary items as 1.0005 does: their effective dimension is 1 exactly. "
        "The paper's five regressions at that point are rounding noise of a computed 1.",
        "eta above 1 lies outside the paper's range.",
    )
    heads = f"Constant | Value | {_ABLATED}"
    return Table.of("sweeps", "Sensitivity to the constants", heads, body, notes)


_GATED = (
    "Question gate: ours, not the paper's, and off everywhere else. An override stands only where "
    "the question moved the new answer up against the base's at the depth that decides. Cells that "
    "were not read blind are not among its cells."
)


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
        f"Mean change of MC1 and MC2 over {counted(effects[0].cells, 'cell')}, in points. (a) One"
        " component removed or overridden at a time; the others: one constant swept, the setting"
        " of the runs dotted. Red: how many cells regress on MC1, where any does."
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
