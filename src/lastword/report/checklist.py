"""The sceptic's checklist: what to ask of a result before believing it, answered from its records.

Eleven points over all cells together; each is met, not met or not applicable, with its figures. A
point is met only where it is in every cell that it can be asked of: one cell that fails it is what
a reader should hear of.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from lastword.evaluation.comparison import TRACE, Comparison, Standing
from lastword.evaluation.controls import ALPHA, Controls
from lastword.evaluation.statistics import LEVEL, ROUNDING, Judgement
from lastword.records.cells import Cell, Summary, benchmark_of, column
from lastword.records.provenance import Extent, Name
from lastword.report.dependence import Dependence, Gain
from lastword.report.table import Table, columns

Status = Literal["met", "not met", "not applicable"]

STATUSES: tuple[Status, ...] = ("met", "not met", "not applicable")
_LISTED = 3
NOTES = (
    "Computed from the records alone. A point is met where every cell that it can be asked of "
    "meets it; the cell that is named is the one that comes closest to failing, or fails most.",
)
_UNREAD = ("question-blind", "length-only")  # methods that have a point of their own


@dataclass(frozen=True)
class Point:
    """One point of the checklist.

    Attributes:
        name: What is asked.
        status: Met by the records, not met, or not applicable.
        why: One line, with figures.
    """

    name: str
    status: Status
    why: str


@dataclass(frozen=True, eq=False)
class Findings:
    """The statistics of all cells, a value a cell in one order.

    Attributes:
        cells: The cells.
        summaries: Their lines.
        controls: What a gain in each has to beat.
        judgements: Their verdicts, corrected together.
        dependences: Themselves without the question; None where that was not read.
        comparisons: TRACE beside its peers, of those cells that have them.
        extents: How much of its benchmark each was run on, where the run says.
    """

    cells: Sequence[Cell]
    summaries: Sequence[Summary]
    controls: Sequence[Controls]
    judgements: Sequence[Judgement]
    dependences: Sequence[Dependence | None]
    comparisons: Sequence[Comparison]
    extents: Mapping[Name, Extent]

    @property
    def labelled(self) -> list[Summary]:
        """The lines of the cells that can be judged."""
        return [s for s in self.summaries if s.counts.items]

    @property
    def controlled(self) -> list[tuple[Summary, Controls]]:
        """The same with what stands beside them."""
        pairs = zip(self.summaries, self.controls, strict=True)
        return [(summary, beside) for summary, beside in pairs if summary.counts.items]


def checklist(findings: Findings) -> tuple[Point, ...]:
    """Every point, in its order."""
    return tuple(
        Point(name, *(ask(findings) if findings.labelled or name == _WHOLE else _UNLABELLED))
        for name, ask in _POINTS.items()
    )


def tally(points: Sequence[Point]) -> str:
    """`5 met, 2 not met, 1 not applicable`."""
    counts = {status: sum(p.status == status for p in points) for status in STATUSES}
    return ", ".join(f"{count} {status}" for status, count in counts.items())


def checklist_table(points: Sequence[Point]) -> Table:
    """A row a point: what is asked, whether it is met, and why."""
    rows = tuple((p.name, p.status, p.why) for p in points)
    heads = columns("Asked | Status | Why")
    return Table("checklist", "The sceptic's checklist", heads, rows, NOTES)


Answer = tuple[Status, str]

_UNLABELLED: Answer = ("not applicable", "no labels to judge by")


def _whole(findings: Findings) -> Answer:
    if not findings.extents:
        return "not applicable", "the records do not say how long their benchmarks are"
    lines = {
        _name(cell): _lacking(cell, findings.extents.get(_name(cell))) for cell in findings.cells
    }
    short = list(dict.fromkeys(line for line in lines.values() if line))
    if short:
        return "not met", _listed(short)
    extents = {benchmark_of(name[1]): extent for name, extent in findings.extents.items()}
    return "met", _listed(
        [f"all {e.questions:,} questions of {name}" for name, e in extents.items()]
    )


def _lacking(cell: Cell, extent: Extent | None) -> str:
    """Say what a cell lacks of its whole benchmark; empty where it has all."""
    if extent is None:
        return f"{cell.benchmark}: how long it is was not recorded"
    if extent.sample < extent.questions:
        return f"{cell.benchmark}: {extent.sample:,} of {extent.questions:,} questions"
    there = len(cell.items) + cell.failed
    if there < extent.records:
        return f"{_where(cell)}: {there:,} of {extent.records:,} records, the run is not finished"
    if cell.failed:
        return f"{_where(cell)}: {cell.failed:,} of {extent.records:,} records are of failed items"
    return ""


def _benchmarks(findings: Findings) -> Answer:
    names = list(dict.fromkeys(benchmark_of(s.benchmark) for s in findings.labelled))
    return _met(len(names) > 1), f"{_many(len(names), 'benchmark')}: {_listed(names)}"


def _baselines(findings: Findings) -> Answer:
    unread = [s for s in findings.labelled if s.blind != s.blind]
    if unread:
        return "not met", f"no blind baseline{_of(unread, findings)}, such as {_where(unread[0])}"
    cells = findings.controlled
    above = [s for s, beside in cells if s.mc1 > max(_shares(beside))]
    least, beside = min(cells, key=lambda pair: pair[0].mc1 - max(_shares(pair[1])))
    shares = ", ".join(f"{name} {_percent(v)}" for name, v in beside.rivals.items() if v == v)
    lead = f"above all in {len(above)} of {_many(len(cells), 'cell')}"
    return _met(len(above) == len(cells)), (
        f"{lead}; {_at(least)}: TRACE {_percent(least.mc1)}, {shares}"
    )


def _shares(beside: Controls) -> list[float]:
    return [share for share in beside.rivals.values() if share == share]


def _flips(findings: Findings) -> Answer:
    cells = findings.controlled
    below = [s for s in findings.labelled if not s.mc1_base > s.chance]
    if below:
        least = min(below, key=lambda s: s.mc1_base - s.chance)
        figures = f"the base {_percent(least.mc1_base)}, chance {_percent(least.chance)}"
        where = f"the base is not above chance{_of(below, findings)}"
        return "not met", f"{where}, so that flips at random gain; {_at(least)}: {figures}"
    beyond = [beside for _, beside in cells if beside.placebo.p < ALPHA]
    least, beside = max(cells, key=lambda pair: _p(pair[1]))
    flips = beside.placebo
    figures = f"{_points(least.delta_mc1)} points, {_many(flips.overrides, 'flip')}"
    if flips.overrides:
        figures += f" at random {_points(flips.gain)} (P {flips.p:.2g})"
    lead = f"bases above chance, and a gain beyond flips in {len(beyond)} of "
    return _met(len(beyond) == len(cells)), (
        f"{lead}{_many(len(cells), 'cell')}; {_at(least)}: {figures}"
    )


def _p(beside: Controls) -> float:
    """The placebo's; 1 where the rule changed nothing."""
    return beside.placebo.p if beside.placebo.overrides else 1.0


def _significance(findings: Findings) -> Answer:
    judgements = [v for v in findings.judgements if v.finding != "unlabelled"]
    gains = [v for v in judgements if v.interval_mc1.low > 0 and v.p_holm < 1 - LEVEL]
    least = min(judgements, key=lambda v: v.interval_mc1.low)
    figures = (
        f"{_points(least.delta_mc1)} points (95% {_points(least.interval_mc1.low)} to "
        f"{_points(least.interval_mc1.high)}), p = {least.p_holm:.3g} by Holm"
    )
    lead = f"a gain is shown in {len(gains)} of {_many(len(judgements), 'cell')}"
    return _met(len(gains) == len(judgements)), f"{lead}; {_at(least)}: {figures}"


def _templates(findings: Findings) -> Answer:
    groups: dict[Name, list[float]] = {}
    for s in findings.labelled:
        groups.setdefault((s.model, benchmark_of(s.benchmark)), []).append(s.delta_mc1)
    several = {name: gains for name, gains in groups.items() if len(gains) > 1}
    single = [model for model, _ in groups if model not in {name for name, _ in several}]
    if single:
        return "not met", f"one template a benchmark: {_listed(list(dict.fromkeys(single)))}"
    apart = {name: gains for name, gains in several.items() if not _one_sign(gains)}
    groups = apart or several
    widest = max(groups, key=lambda name: max(groups[name]) - min(groups[name]))
    gains = groups[widest]
    lead = "its sign differs" if apart else "its sign is one"
    figures = f"{_points(min(gains))} to {_points(max(gains))} points over {len(gains)} templates"
    return _met(not apart), f"{lead}, widest for {' on '.join(widest)}: {figures}"


def _one_sign(gains: Iterable[float]) -> bool:
    signs = {(gain > ROUNDING) - (gain < -ROUNDING) for gain in gains}
    return len(signs) == 1 and 0 not in signs


def _broken(findings: Findings) -> Answer:
    labelled = findings.labelled
    right = sum(int((column(c.items, "mc1_base") > 0).sum()) for c in findings.cells)
    broken, fixed = sum(s.broken for s in labelled), sum(s.fixed for s in labelled)
    share = f" ({100 * broken / right:.1f}%)" if right else ""
    lead = f"{broken:,} of {right:,} right answers broken{share}, {fixed:,} wrong ones fixed"
    worse = [s for s in labelled if not s.fixed > s.broken]
    if worse:
        most = max(worse, key=lambda s: s.broken - s.fixed)
        where = f"not more fixed than broken{_of(worse, findings)}"
        lead += f"; {where}; {_at(most)}: {most.fixed} fixed, {most.broken} broken"
    return _met(not worse), lead


def _pairs(findings: Findings) -> Answer:
    paired = [s for s in findings.labelled if s.pairs == s.pairs]
    if not paired:
        return "not applicable", "no two questions over the same candidates"
    fewer = [s for s in paired if s.pairs < s.pairs_base]
    least = min(paired, key=lambda s: s.pairs - s.pairs_base)
    figures = f"{_percent(least.pairs_base)} before, {_percent(least.pairs)} after"
    lead = f"no fewer pairs with both right in {len(paired) - len(fewer)} of "
    return _met(not fewer), f"{lead}{_many(len(paired), 'cell')}; {_at(least)}: {figures}"


def _middle(findings: Findings) -> Answer:
    fits = [(s, beside.fit) for s, beside in findings.controlled if beside.fit is not None]
    if not fits:
        return "not applicable", "made without --blind all"
    adding = [s for s, fit in fits if fit.middle.positive]
    least, fit = min(fits, key=lambda pair: pair[1].middle.fixed - pair[1].middle.broken)
    lead = f"the middle adds in {len(adding)} of {_many(len(fits), 'cell')}"
    figures = f"it adds {fit.middle.sentence} to wording and base"
    return _met(len(adding) == len(fits)), f"{lead}; {_at(least)}: {figures}"


def _question(findings: Findings) -> Answer:
    both = [one for one in findings.dependences if one is not None]
    if not both:
        return "not applicable", "made without --blind all"
    least = min(both, key=lambda one: one.gains[0].interval.low)
    gain = least.gains[0]
    short = [one for one in both if not _needs(one.gains[0])]
    share = f" ({gain.needs / gain.sighted:.0%})" if gain.sighted > ROUNDING else ""
    figures = (
        f"{_points(gain.needs)} of {_points(gain.sighted)} points{share} need the question, 95% "
        f"{_points(gain.interval.low)} to {_points(gain.interval.high)}"
    )
    many = f"shown in {len(both) - len(short)} of {_many(len(both), 'cell')} read without it"
    return _met(not short), f"{many}; {_at(least)}: {figures}"


def _needs(gain: Gain) -> bool:
    return gain.sighted > ROUNDING and gain.interval.low > 0


def _peers(findings: Findings) -> Answer:
    best = [(one, *pair) for one in findings.comparisons if (pair := _best(one)) is not None]
    if not best:
        return (
            "not applicable",
            "no peers were run: lastword compare --out FOLDER runs them, report FOLDER shows them",
        )
    ahead = sum(peer.mc1 > trace.mc1 for _, trace, peer in best)
    least, trace, peer = min(best, key=lambda row: row[1].mc1 - row[2].mc1)
    lead = f"one is ahead in {ahead} of {_many(len(best), 'compared cell')}"
    figures = (
        f"TRACE {_percent(trace.mc1)} ({_points(trace.delta_mc1)}), {peer.method} "
        f"{_percent(peer.mc1)} ({_points(peer.delta_mc1)} over {peer.base})"
    )
    return _met(not ahead), f"{lead}; {_at(least)}: {figures}"


def _best(one: Comparison) -> tuple[Standing, Standing] | None:
    """TRACE, and the best of the others that read the question; None where either is missing."""
    by_method = {s.method: s for s in one.standings if s.mc1 == s.mc1}
    others = [s for name, s in by_method.items() if name.partition("@")[0] not in (TRACE, *_UNREAD)]
    if TRACE not in by_method or not others:
        return None
    return by_method[TRACE], max(others, key=lambda s: s.mc1)


_WHOLE = "The whole benchmark, not a subset"
_POINTS: Mapping[str, Callable[[Findings], Answer]] = {
    _WHOLE: _whole,
    "Two benchmarks or more": _benchmarks,
    "Above all that never reads the question": _baselines,
    "A base above chance, a gain beyond random flips": _flips,
    "Beyond chance, corrected for the number of cells": _significance,
    "The same sign under several templates": _templates,
    "More answers fixed than broken": _broken,
    "Pairs that do not break together": _pairs,
    "A gain that needs the question": _question,
    "A middle that knows more than the end": _middle,
    "Peers under their own aggregation": _peers,
}


def _met(holds: bool) -> Status:
    return "met" if holds else "not met"


def _name(cell: Cell) -> Name:
    return cell.model, cell.benchmark


def _where(cell: Cell | Summary | Judgement | Dependence | Comparison) -> str:
    return f"{cell.model} on {cell.benchmark}"


def _at(cell: Summary | Judgement | Dependence | Comparison) -> str:
    return f"least for {_where(cell)}"


def _of(some: Sequence[Summary], findings: Findings) -> str:
    """` in 2 of 4 cells`; nothing where there is one cell."""
    cells = len(findings.labelled)
    return f" in {len(some)} of {cells} cells" if cells > 1 else ""


def _listed(texts: Sequence[str]) -> str:
    """As many as a line holds, and how many more there are."""
    more = f"; {len(texts) - _LISTED} more" if len(texts) > _LISTED else ""
    return "; ".join(texts[:_LISTED]) + more


def _many(count: int, noun: str) -> str:
    return f"{count} {noun}" + ("" if count == 1 else "s")


def _percent(share: float) -> str:
    return f"{100 * share:.2f}"


def _points(share: float) -> str:
    return f"{100 * share:+.2f}"
