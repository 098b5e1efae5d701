"""The ablations as tables and as a figure: components removed, constants swept."""

import math
from collections.abc import Sequence

import numpy as np

from lastword.evaluation.ablation import QUESTION_GATE, Effect, Sweep
from lastword.report.figure_parts import Bars, Figure, Line, Mark, Note, Panel, Rule
from lastword.report.figures import numbers, side_by_side
from lastword.report.table import Marked, Table, Value, columns

_ABLATED = "ΔMC1 +.2 | ΔMC2 +.2 | Negative MC1 cells | Negative MC2 cells | Cells"


def necessity_table(effects: Sequence[Effect]) -> Table:
    """The published rule and its variants, each one component away."""
    body = tuple((effect.label, *_ablated(effect)) for effect in effects)
    notes = (_DROPPED, *([_GATED] if any(e.label == QUESTION_GATE for e in effects) else []))
    return Table(
        "ablation", "Necessity of the components", columns(f"Variant | {_ABLATED}"), body, notes
    )


def sweep_table(sweeps: Sequence[Sweep]) -> Table:
    """The constants of the outer rule, each moved alone over its grid."""
    body: list[tuple[Value, ...]] = []
    for swept in sweeps:
        for effect in swept.effects:
            assert effect.value is not None
            own = math.isclose(effect.value, swept.published)
            value: Value = Marked(effect.value, "†") if own else effect.value
            body.append((swept.parameter, value, *_ablated(effect)))
    notes = (
        "†: the setting of these runs.",
        "tau_dim = 1 decides binary items as 1.0005 does: their effective dimension is 1 exactly. "
        "The paper's five regressions at that point are rounding noise of a computed 1.",
        "eta above 1 lies outside the paper's range.",
    )
    return Table(
        "sweeps",
        "Sensitivity to the constants",
        columns(f"Constant | Value | {_ABLATED}"),
        tuple(body),
        notes,
    )


_DROPPED = (
    "A dropped operator's items answer as the base; forcing the multi-directional arm keeps its "
    "three gates and includes binary items."
)

_GATED = (
    "Question gate: ours, not the paper's, and off everywhere else. An override stands only where "
    "the question moved the new answer up against the base's at the depth that decides; an item "
    "that was not read blind keeps the base's answer. Where both prompts end alike the question "
    "moves nothing at depth 0, and early overrides nothing. Cells that were not read blind are not "
    "among its cells."
)


def _ablated(effect: Effect) -> tuple[Value, ...]:
    cells = int((~np.isnan(effect.deltas_mc1) | ~np.isnan(effect.deltas_mc2)).sum())
    deltas = 100 * effect.delta_mc1, 100 * effect.delta_mc2
    return (*deltas, effect.negative_mc1, effect.negative_mc2, cells)


_SWEPT = {
    "tau_dim": "regime boundary τ_dim",
    "eta": "mixing magnitude η",
    "tau_logr": "sharpness gate τ_logr",
    "tau_H": "entropy gate τ_H",
    "gamma": "earliest-state cutoff γ",
}


def ablation_figure(effects: Sequence[Effect], sweeps: Sequence[Sweep]) -> Figure:
    """Components removed one at a time, and the constants of the outer rule swept."""
    panels = [_components(effects)]
    panels += [_swept(sweep, "bcdefgh"[place]) for place, sweep in enumerate(sweeps)]
    cells = len(effects[0].deltas_mc1)
    caption = (
        f"Mean change of MC1 and MC2 over {cells} cells, in points. (a) One component removed or"
        " overridden at a time; the others: one constant swept, the setting of the runs dotted."
        " Red: how many cells regress on MC1, where any does."
    )
    return Figure("ablation", "Ablations and sweeps", caption, tuple(panels), columns=3)


def _components(effects: Sequence[Effect]) -> Panel:
    names = tuple(effect.label for effect in effects)
    worse = tuple(str(e.negative_mc1) if e.negative_mc1 else "" for e in effects)
    first = numbers(100 * e.delta_mc1 for e in effects)
    second = numbers(100 * e.delta_mc2 for e in effects)
    bars = side_by_side(
        Bars(names, first, "corrected", "MC1", texts=worse, text_role="alarm", horizontal=True),
        Bars(names, second, "base", "MC2", horizontal=True),
    )
    return Panel("(a) Components", (Rule(0.0), *bars), "points")


def _swept(sweep: Sweep, place: str) -> Panel:
    grid = [e.value for e in sweep.effects if e.value is not None]
    steps = np.diff(grid)
    # A grid of uneven steps stands evenly, by name: its points would lie on each other.
    even = len(grid) < 2 or bool(np.allclose(steps, steps[0]))
    x = numbers(grid if even else map(float, range(len(grid))))
    published = float(np.interp(sweep.published, grid, x))
    first = numbers(100 * e.delta_mc1 for e in sweep.effects)
    second = numbers(100 * e.delta_mc2 for e in sweep.effects)
    notes: list[Mark] = [
        Note(at, level, str(effect.negative_mc1), "alarm")
        for at, level, effect in zip(x, first, sweep.effects, strict=True)
        if effect.negative_mc1
    ]
    higher = bool(first[-1] > second[-1])
    lines = (
        Line(x, first, "corrected", "MC1", markers=True, above=higher),
        Line(x, second, "base", "MC2", markers=True, above=not higher),
    )
    name = _SWEPT.get(sweep.parameter, sweep.parameter)
    marks: tuple[Mark, ...] = (Rule(published), *lines, *notes)
    names = None if even else tuple(f"{value:g}" for value in grid)
    return Panel(f"({place}) {name}", marks, "", "points", x_names=names)
