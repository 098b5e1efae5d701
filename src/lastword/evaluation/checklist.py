"""The sceptic's checklist: what to ask of a result before believing it, answered from its records.

Eight points over all cells together; each is met, not met or not applicable, with its figures. A
point is met only where it is in every cell that it can be asked of: one cell that fails it is what
a reader should hear of.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from lastword.evaluation.comparison import TRACE, Comparison, Standing
from lastword.evaluation.dependence import Dependence, Gain
from lastword.evaluation.statistics import LEVEL, ROUNDING, Judgement
from lastword.records.cells import Cell, Summary, benchmark_of, column
from lastword.records.provenance import Extent, Name

Status = Literal["met", "not met", "not applicable"]

STATUSES: tuple[Status, ...] = ("met", "not met", "not applicable")
_LISTED = 3
_BASELINES = ("question-blind", "length-only")  # a point of their own


@dataclass(frozen=True)
class Point:
    """One point of the checklist.

    Attributes:
        name: What is asked.
        status: Whether the records meet it.
        why: One line, with figures.
    """

    name: str
    status: Status
    why: str


@dataclass(frozen=True, eq=False)
class Findings:
    """What the records of all cells were found to say, a value a cell in one order.

    Attributes:
        cells: The cells.
        summaries: Their lines.
        judged: Their verdicts, corrected together.
        dependences: Themselves without the question; None where that was not read.
        comparisons: TRACE beside its peers, of those cells that have them.
        extents: How much of its benchmark each was run on, where the run says.
    """

    cells: Sequence[Cell]
    summaries: Sequence[Summary]
    judged: Sequence[Judgement]
    dependences: Sequence[Dependence | None]
    comparisons: Sequence[Comparison]
    extents: Mapping[Name, Extent]

    @property
    def labelled(self) -> list[Summary]:
        """The lines of the cells that can be judged."""
        return [s for s in self.summaries if s.counts.items]


def checklist(found: Findings) -> tuple[Point, ...]:
    """Every point, in its order."""
    return tuple(
        Point(name, *(ask(found) if found.labelled or name == _WHOLE else _UNLABELLED))
        for name, ask in _POINTS.items()
    )


def tally(points: Sequence[Point]) -> str:
    """`5 met, 2 not met, 1 not applicable`."""
    counts = {status: sum(p.status == status for p in points) for status in STATUSES}
    return ", ".join(f"{count} {status}" for status, count in counts.items())


Answer = tuple[Status, str]

_UNLABELLED: Answer = ("not applicable", "no labels to judge by")


def _whole(found: Findings) -> Answer:
    if not found.extents:
        return "not applicable", "the records do not say how long their benchmarks are"
    lines = {_name(cell): _lacking(cell, found.extents.get(_name(cell))) for cell in found.cells}
    short = list(dict.fromkeys(line for line in lines.values() if line))
    if short:
        return "not met", _listed(short)
    known = {benchmark_of(name[1]): extent for name, extent in found.extents.items()}
    return "met", _listed([f"all {e.questions:,} questions of {name}" for name, e in known.items()])


def _lacking(cell: Cell, extent: Extent | None) -> str:
    """What a cell has less than its whole benchmark; empty where it has all."""
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


def _benchmarks(found: Findings) -> Answer:
    names = list(dict.fromkeys(benchmark_of(s.benchmark) for s in found.labelled))
    return _met(len(names) > 1), f"{_many(len(names), 'benchmark')}: {_listed(names)}"


def _baselines(found: Findings) -> Answer:
    unread = [s for s in found.labelled if s.blind != s.blind]
    if unread:
        return "not met", f"no blind baseline{_of(unread, found)}, such as {_where(unread[0])}"
    above = [s for s in found.labelled if s.mc1 > max(s.blind, s.shortest)]
    least = min(found.labelled, key=lambda s: s.mc1 - max(s.blind, s.shortest))
    figures = (
        f"TRACE {_percent(least.mc1)}, without the question {_percent(least.blind)}, the shortest "
        f"answer {_percent(least.shortest)}"
    )
    said = f"above both in {len(above)} of {_many(len(found.labelled), 'cell')}"
    return _met(len(above) == len(found.labelled)), f"{said}; {_at(least)}: {figures}"


def _significance(found: Findings) -> Answer:
    judged = [v for v in found.judged if v.finding != "unlabelled"]
    shown = [v for v in judged if v.interval_mc1.low > 0 and v.p_holm < 1 - LEVEL]
    least = min(judged, key=lambda v: v.interval_mc1.low)
    figures = (
        f"{_points(least.delta_mc1)} points (95% {_points(least.interval_mc1.low)} to "
        f"{_points(least.interval_mc1.high)}), p = {least.p_holm:.3g} by Holm"
    )
    said = f"a gain is shown in {len(shown)} of {_many(len(judged), 'cell')}"
    return _met(len(shown) == len(judged)), f"{said}; {_at(least)}: {figures}"


def _templates(found: Findings) -> Answer:
    groups: dict[Name, list[float]] = {}
    for s in found.labelled:
        groups.setdefault((s.model, benchmark_of(s.benchmark)), []).append(s.delta_mc1)
    several = {name: gains for name, gains in groups.items() if len(gains) > 1}
    single = [model for model, _ in groups if model not in {name for name, _ in several}]
    if single:
        return "not met", f"one template a benchmark: {_listed(list(dict.fromkeys(single)))}"
    apart = {name: gains for name, gains in several.items() if not _one_sign(gains)}
    shown = apart or several
    widest = max(shown, key=lambda name: max(shown[name]) - min(shown[name]))
    gains = shown[widest]
    said = "its sign differs" if apart else "its sign is one"
    figures = f"{_points(min(gains))} to {_points(max(gains))} points over {len(gains)} templates"
    return _met(not apart), f"{said}, widest for {' on '.join(widest)}: {figures}"


def _one_sign(gains: Iterable[float]) -> bool:
    signs = {(gain > ROUNDING) - (gain < -ROUNDING) for gain in gains}
    return len(signs) == 1 and 0 not in signs


def _broken(found: Findings) -> Answer:
    labelled = found.labelled
    right = sum(int((column(c.items, "mc1_base") > 0).sum()) for c in found.cells)
    broken, fixed = sum(s.broken for s in labelled), sum(s.fixed for s in labelled)
    share = f" ({100 * broken / right:.1f}%)" if right else ""
    said = f"{broken:,} of {right:,} right answers broken{share}, {fixed:,} wrong ones fixed"
    worse = [s for s in labelled if not s.fixed > s.broken]
    if worse:
        most = max(worse, key=lambda s: s.broken - s.fixed)
        where = f"not more fixed than broken{_of(worse, found)}"
        said += f"; {where}; {_at(most)}: {most.fixed} fixed, {most.broken} broken"
    return _met(not worse), said


def _question(found: Findings) -> Answer:
    read = [one for one in found.dependences if one is not None]
    if not read:
        return "not applicable", "made without --blind all"
    least = min(read, key=lambda one: one.gains[0].interval.low)
    gain = least.gains[0]
    short = [one for one in read if not _needs(one.gains[0])]
    share = f" ({gain.needs / gain.sighted:.0%})" if gain.sighted > ROUNDING else ""
    figures = (
        f"{_points(gain.needs)} of {_points(gain.sighted)} points{share} need the question, 95% "
        f"{_points(gain.interval.low)} to {_points(gain.interval.high)}"
    )
    many = f"shown in {len(read) - len(short)} of {_many(len(read), 'cell')} read without it"
    return _met(not short), f"{many}; {_at(least)}: {figures}"


def _needs(gain: Gain) -> bool:
    return gain.sighted > ROUNDING and gain.interval.low > 0


def _peers(found: Findings) -> Answer:
    best = [(one, *pair) for one in found.comparisons if (pair := _best(one)) is not None]
    if not best:
        return "not applicable", "no peers were run; lastword compare runs them"
    ahead = sum(peer.mc1 > trace.mc1 for _, trace, peer in best)
    least, trace, peer = min(best, key=lambda row: row[1].mc1 - row[2].mc1)
    said = f"one is ahead in {ahead} of {_many(len(best), 'compared cell')}"
    figures = (
        f"TRACE {_percent(trace.mc1)} ({_points(trace.delta_mc1)}), {peer.method} "
        f"{_percent(peer.mc1)} ({_points(peer.delta_mc1)} over {peer.base})"
    )
    return _met(not ahead), f"{said}; {_at(least)}: {figures}"


def _best(one: Comparison) -> tuple[Standing, Standing] | None:
    """TRACE, and the best of the others that read the question; None where either is missing."""
    known = {s.method: s for s in one.standings if s.mc1 == s.mc1}
    others = [s for name, s in known.items() if name.partition("@")[0] not in (TRACE, *_BASELINES)]
    if TRACE not in known or not others:
        return None
    return known[TRACE], max(others, key=lambda s: s.mc1)


_WHOLE = "The whole benchmark, not a subset"
_POINTS: Mapping[str, Callable[[Findings], Answer]] = {
    _WHOLE: _whole,
    "Two benchmarks or more": _benchmarks,
    "Above the blind and the length baseline": _baselines,
    "Beyond chance, corrected for the number of cells": _significance,
    "The same sign under several templates": _templates,
    "More answers fixed than broken": _broken,
    "A gain that needs the question": _question,
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


def _of(some: Sequence[Summary], found: Findings) -> str:
    """` in 2 of 4 cells`; nothing where there is one cell."""
    cells = len(found.labelled)
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
