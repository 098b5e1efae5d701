"""Dependence: how much of a gain needs the question, as a table and a figure (section 14)."""

from collections.abc import Iterable, Sequence

from lastword.evaluation.dependence import Dependence, Gain
from lastword.report.figure_parts import Bars, Figure, Line, Panel, Rule
from lastword.report.figures import model_name
from lastword.report.table import Column, Table, Value, delta, level

_MOST_DRAWN = 12  # cells; the table has all

MEANING = (
    "Blind: the same candidates, and the same rule run whole, with the question left out of the "
    "template. Gain that needs the question: ΔMC1 less ΔMC1 blind, with a paired bootstrap "
    "interval over items; what is left is a gain of the candidates' own wording."
)
DEPTH_0 = (
    "With rotary positions depth 0 knows the prompt's last token alone: where both prompts end "
    "alike the two readings are one there, and early, which answers by it, has read no question "
    "either way. S less its blind reading then ties all candidates: nothing is ranked by it."
)


def dependence_table(cells: Sequence[Dependence | None]) -> Table:
    """Gains with the question and without, a row for TRACE and for each operator of a cell.

    Args:
        cells: One a cell; None where nothing was read blind.
    """
    columns = (
        Column("Model"),
        Column("Benchmark"),
        Column("Items"),
        Column("Gain of"),
        level("MC1 base"),
        level("MC1 base, blind"),
        delta("ΔMC1"),
        delta("ΔMC1, blind"),
        delta("Needs the question"),
        delta("95% low"),
        delta("95% high"),
    )
    readings = [one for one in cells if one is not None]
    rows = tuple(_row(one, gain) for one in readings for gain in one.gains)
    notes = (MEANING, DEPTH_0) if readings else (MEANING,)
    return Table("dependence", "Does it need the question?", columns, rows, notes + _unread(cells))


def dependence_figure(cells: Sequence[Dependence | None]) -> Figure | None:
    """MC1 by depth with the question and without, and the gains; None where nothing was read blind.

    Args:
        cells: As for the table.
    """
    readings = [one for one in cells if one is not None]
    if not readings:
        return None
    panels = tuple(panel for one in readings[:_MOST_DRAWN] for panel in (_depths(one), _gains(one)))
    more = len(readings) - _MOST_DRAWN
    caption = (
        "Left, MC1 of the scores at each depth: blue with the question read, dashed grey with it "
        f"left out; the last depth is the base. Right, what the rule adds. {MEANING} {DEPTH_0}"
        + (f" {more} more cells are in the table." if more > 0 else "")
    )
    return Figure("dependence", "Does it need the question?", caption, panels, columns=2)


def _unread(cells: Sequence[Dependence | None]) -> tuple[str, ...]:
    unread = sum(one is None for one in cells)
    if not unread:
        return ()
    return (
        f"{unread} of {len(cells)} cells have no blind trajectory, so that it is not known what "
        "of their gain needs the question: run `lastword eval --blind all`.",
    )


def _row(one: Dependence, gain: Gain) -> tuple[Value, ...]:
    low, high = gain.interval.low, gain.interval.high
    shares = (one.sighted[one.depth], one.blind[one.depth], gain.sighted, gain.blind, gain.needs)
    points = [100 * float(v) for v in (*shares, low, high)]
    return (one.model, one.benchmark, one.items, gain.name, *points)


def _depths(one: Dependence) -> Panel:
    depths = tuple(map(float, range(one.depth + 1)))
    higher = bool(one.sighted[one.depth] >= one.blind[one.depth])
    lines = (
        Line(depths, _points(one.blind), "other", "blind", above=not higher),
        Line(depths, _points(one.sighted), "corrected", "read", above=higher),
    )
    title = f"{model_name(one.model)}\n{one.benchmark}, {one.items} items"
    return Panel(title, lines, "depth", "MC1, points")


def _gains(one: Dependence) -> Panel:
    names = tuple(gain.name for gain in one.gains)
    read = _points([gain.sighted for gain in one.gains])
    blind = _points([gain.blind for gain in one.gains])
    bars = (
        Bars(names, read, "corrected", "question read", group=0, groups=2),
        Bars(names, blind, "base", "left out", group=1, groups=2),
    )
    first = one.gains[0]
    needs, low, high = _points([first.needs, first.interval.low, first.interval.high])
    title = f"Needs the question: {needs:+.1f}\n95% {low:+.1f} to {high:+.1f}"
    return Panel(title, (Rule(0.0, "other", axis="y"), *bars), "", "ΔMC1, points")


def _points(shares: Iterable[float]) -> tuple[float, ...]:
    return tuple(100 * float(share) for share in shares)
