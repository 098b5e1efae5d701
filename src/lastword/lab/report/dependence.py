"""Dependence on the question: compares the rule with itself, run blind (method, section 14).

A method can gain by preferring some wordings of candidates. The blind trajectory has the scores of
the same candidates at the same depths after the blind prompt. A gain of the rule on it, over the
blind base, does not depend on the question.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes

from lastword.lab.evaluation.statistics import Interval, bootstrap_mean
from lastword.lab.report import draw
from lastword.lab.report.draw import Figure, styled
from lastword.lab.report.figures import MOST_DRAWN, left_to_the_table, model_name
from lastword.lab.report.table import Table, Value, points
from lastword.records.cells import Cell, mean
from lastword.records.marks import Role
from lastword.records.metrics import PerItem, Places, mc1_by_depth
from lastword.records.readings import NAMES, OVERRIDING, Readings, read
from lastword.records.variant import Variant, decide
from lastword.rule.theta import Theta

PerDepth = Float[np.ndarray, " depths"]

MEANING = (
    "Blind: the same candidates and rule, with the question left out of the template. Needs the "
    "question: ΔMC1 less ΔMC1 blind, with a paired bootstrap interval over items."
)
DEPTH_0 = "Where both prompts end alike, depth 0 and early have not read the question either way."


@dataclass(frozen=True)
class Gain:
    """The gain of the rule, or of one operator, in MC1, with and without the question.

    Attributes:
        name: `TRACE`, or the operator.
        sighted: Mean gain over the base with the question, in [-1, 1].
        blind: Mean gain of the same rule over the blind base, in [-1, 1].
        interval: Paired bootstrap interval over items of the gain that needs the question.
    """

    name: str
    sighted: float
    blind: float
    interval: Interval

    @property
    def needs(self) -> float:
        """The gain that needs the question: `sighted` minus `blind`."""
        return self.sighted - self.blind


@dataclass(frozen=True, eq=False)
class Dependence:
    """One cell with and without the question, over its MC1 items that were read both ways.

    Attributes:
        items: Number of items that were read both ways.
        sighted: MC1 of S at every depth, in [0, 1] [depths].
        blind: MC1 of the blind S at every depth, in [0, 1] [depths].
        gains: The gain of TRACE, then those of the operators, which sum to it.
    """

    model: str
    benchmark: str
    items: int
    sighted: PerDepth
    blind: PerDepth
    gains: tuple[Gain, ...]

    @property
    def depth(self) -> int:
        """L, the depth of the base."""
        return len(self.sighted) - 1


def dependence(cell: Cell, theta: Theta, *, sighted: Readings | None = None) -> Dependence | None:
    """Return the comparison of a cell, without any certificate; None without blind readings.

    Raises:
        RecordError: The run did not read every depth and T.
    """
    if np.isnan(cell.scores["blind_t_scores"]).any(axis=1).all():
        return None
    sighted, blind = sighted or read(cell, theta), read(cell, theta, blind=True)
    both = np.flatnonzero(sighted.counts_mc1 & ~np.isnan(blind.d_eff))
    if not both.size:
        return None
    return Dependence(
        model=cell.model,
        benchmark=cell.benchmark,
        items=both.size,
        sighted=by_depth(cell, "trajectory", both),
        blind=by_depth(cell, "blind_trajectory", both),
        gains=_paired(_added(sighted, theta, both), _added(blind, theta, both)),
    )


def by_depth(cell: Cell, trajectory: str, items: Places) -> PerDepth:
    """Return mean MC1 of S at every depth, over some of the items that count for it."""
    total = np.zeros(())
    for some, table in cell.pieces(trajectory, items=items):
        S = cell.stack(some, table[trajectory])
        total = total + mc1_by_depth(S, cell.truthful[some]).sum(axis=0)
    curve: PerDepth = total / len(items)
    return curve


def _added(readings: Readings, theta: Theta, items: Places) -> dict[str, PerItem]:
    """Return the gain in MC1 of some items, by operator and for the whole rule."""
    operators = decide(readings, Variant(theta)).operators[items]
    added = {"TRACE": np.zeros(len(items))}
    for place in OVERRIDING:
        fires = operators == place
        if fires.any():
            gains = readings.gains(place, theta.eta)[0][items]
            added[NAMES[place]] = np.where(fires, gains, 0.0)
    return added | {"TRACE": np.sum(list(added.values()), axis=0)}


def _paired(sighted: dict[str, PerItem], blind: dict[str, PerItem]) -> tuple[Gain, ...]:
    never = np.zeros_like(sighted["TRACE"])
    names = [n for n in ("TRACE", *NAMES) if n in sighted or n in blind]
    pairs = [(name, sighted.get(name, never), blind.get(name, never)) for name in names]
    return tuple(Gain(name, mean(a), mean(b), bootstrap_mean(a - b)) for name, a, b in pairs)


def dependence_table(cells: Sequence[Dependence | None]) -> Table:
    """Return the table of gains with and without the question, for TRACE and each operator."""
    heads = (
        "Model | Benchmark | Items | Gain of | MC1 base .2 | MC1 base, blind .2 | ΔMC1 +.2"
        " | ΔMC1, blind +.2 | Needs the question +.2 | 95% low +.2 | 95% high +.2"
    )
    readings = [one for one in cells if one is not None]
    rows: list[tuple[Value, ...]] = []
    for one in readings:
        bases = points(one.sighted[one.depth], one.blind[one.depth])
        for gain in one.gains:
            gains = points(gain.sighted, gain.blind, gain.needs)
            interval = points(gain.interval.low, gain.interval.high)
            names = (one.model, one.benchmark, one.items, gain.name)
            rows.append((*names, *bases, *gains, *interval))
    notes = [MEANING, *([DEPTH_0] if readings else [])]
    if unread := len(cells) - len(readings):
        notes.append(
            f"{unread} of {len(cells)} cells have no blind trajectory, so it is unknown how much "
            "of their gain needs the question: run `lastword eval --blind all`."
        )
    return Table.of("dependence", "Does it need the question?", heads, rows, notes)


@styled
def dependence_figure(cells: Sequence[Dependence | None]) -> Figure | None:
    """Return the figure of MC1 by depth and gains; None without blind readings."""
    readings = [one for one in cells if one is not None]
    if not readings:
        return None
    drawn = readings[:MOST_DRAWN]
    canvas, panels = draw.canvas(2 * len(drawn), columns=2)
    for one, depths, gains in zip(drawn, panels[::2], panels[1::2], strict=True):
        by_depth_panel(depths, one)
        _gains(gains, one)
    caption = (
        "Left, MC1 of the scores at each depth: blue with the question read, dashed grey with it "
        f"left out; the last depth is the base. Right, what the rule adds. {MEANING} {DEPTH_0}"
        f"{left_to_the_table(len(readings))}"
    )
    return Figure("dependence", "Does it need the question?", caption, canvas)


def by_depth_panel(axes: Axes, one: Dependence) -> None:
    """Draw MC1 of the scores at each depth, with and without the question."""
    higher = bool(one.sighted[one.depth] >= one.blind[one.depth])
    title = f"{model_name(one.model)}\n{one.benchmark}, {one.items} items"
    draw.label(axes, title, "depth", "MC1, points")
    x = range(one.depth + 1)
    draw.line(axes, x, 100 * one.blind, "other", "blind", above=not higher)
    draw.line(axes, x, 100 * one.sighted, "corrected", "read", above=higher)


def _gains(axes: Axes, one: Dependence) -> None:
    first = one.gains[0]
    needs, low, high = points(first.needs, first.interval.low, first.interval.high)
    title = f"Needs the question: {needs:+.1f}\n95% {low:+.1f} to {high:+.1f}"
    draw.label(axes, title, "", "ΔMC1, points")
    draw.rule(axes, 0.0, "other", across=True)
    groups: Mapping[str, tuple[Role, list[float]]] = {
        "question read": ("corrected", points(*(gain.sighted for gain in one.gains))),
        "left out": ("base", points(*(gain.blind for gain in one.gains))),
    }
    draw.bars(axes, [gain.name for gain in one.gains], groups)
