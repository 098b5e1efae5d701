"""Dependence on the question: compares the rule with itself, run blind (docs/statistics.md).

A method can gain by preferring some wordings of candidates. The blind trajectory has the scores of
the same candidates at the same depths after the blind prompt. A gain of the rule on it, over the
blind base, does not depend on the question.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from lastword.lab.evaluation.controls import mc1_of_depths
from lastword.lab.evaluation.statistics import Interval, bootstrap_mean
from lastword.lab.report.table import ReportTable, Value, points
from lastword.records.cells import Cell, mean
from lastword.records.metrics import PerItem, Places, mc1_rows
from lastword.records.readings import NAMES, OVERRIDING, AblatedRule, Readings, read
from lastword.rule.theta import Theta

PerDepth = Float[np.ndarray, " depths"]


@dataclass(frozen=True)
class Gain:
    """The gain in MC1 of TRACE or of one operator, with the question and without it.

    `interval` is the paired bootstrap interval over items of the gain that needs the question.
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

    `sighted` and `blind` are MC1 of S at every depth [depths]; the operators' gains sum to TRACE's,
    which is first.
    """

    model: str
    benchmark: str
    items: int
    sighted: PerDepth
    blind: PerDepth
    gains: tuple[Gain, ...]


def dependence(cell: Cell, theta: Theta, *, sighted: Readings | None = None) -> Dependence | None:
    """Return the comparison of a cell, without any certificate; None without blind readings."""
    if np.isnan(cell.scores["blind_t_scores"]).any(axis=1).all():
        return None
    sighted, blind = sighted or read(cell, theta), read(cell, theta, blind=True)
    both = np.flatnonzero(sighted.counts_mc1 & ~np.isnan(blind.d_eff))
    if not both.size:
        return None
    sides, never = [_added(r, theta, both) for r in (sighted, blind)], np.zeros(both.size)
    names = [name for name in ("TRACE", *NAMES) if any(name in side for side in sides)]
    pairs = [(n, sides[0].get(n, never), sides[1].get(n, never)) for n in names]
    gains = [Gain(name, mean(a), mean(b), bootstrap_mean(a - b)) for name, a, b in pairs]
    with_it, without = (_by_depth(cell, n, both) for n in ("trajectory", "blind_trajectory"))
    return Dependence(cell.model, cell.benchmark, both.size, with_it, without, tuple(gains))


def _by_depth(cell: Cell, trajectory: str, items: Places) -> PerDepth:
    totals = [shares.sum(axis=0) for shares in mc1_of_depths(cell, trajectory, items)]
    curve: PerDepth = np.sum(totals, axis=0) / len(items)
    return curve


def _added(r: Readings, theta: Theta, items: Places) -> dict[str, PerItem]:
    """Return the gain in MC1 of some items, by the whole rule and by each operator that fired."""
    operators, u = (values[items] for values in r.decide(AblatedRule(theta)))
    base = np.where(r.present, r.base, -np.inf)[items]
    gains = mc1_rows(u, r.truthful[items]) - mc1_rows(base, r.truthful[items])
    fires = {NAMES[place]: operators == place for place in OVERRIDING}
    return {"TRACE": gains} | {n: np.where(f, gains, 0.0) for n, f in fires.items() if f.any()}


def dependence_table(cells: Sequence[Dependence | None]) -> ReportTable:
    """Return the table of gains with and without the question, for TRACE and each operator."""
    heads = (
        "Model | Benchmark | Items | Gain of | MC1 base .2 | MC1 base, blind .2 | ΔMC1 +.2"
        " | ΔMC1, blind +.2 | Needs the question +.2 | 95% low +.2 | 95% high +.2"
    )
    readings = [one for one in cells if one is not None]
    rows: list[tuple[Value, ...]] = []
    for one in readings:
        for gain in one.gains:
            shares = (one.sighted[-1], one.blind[-1], gain.sighted, gain.blind, gain.needs)
            numbers = points(*shares, gain.interval.low, gain.interval.high)
            rows.append((one.model, one.benchmark, one.items, gain.name, *numbers))
    notes = [
        "Blind: the same candidates and rule, with the question left out of the template. Needs "
        "the question: ΔMC1 less ΔMC1 blind, with a paired bootstrap interval over items. Where "
        "both prompts end alike, depth 0 and early have not read the question either way."
    ]
    if unread := len(cells) - len(readings):
        notes.append(
            f"{unread} of {len(cells)} pairs have no blind trajectory, so it is unknown how much "
            "of their gain needs the question: run `lastword eval --blind all`."
        )
    return ReportTable.of("dependence", "Does it need the question?", heads, rows, notes)
