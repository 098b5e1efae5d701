"""What the parts of the demo look like in a terminal: tables, and a worked item with its depths."""

import math
from collections.abc import Iterable

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from lastword.demo.outcome import Outcome
from lastword.demo.section import Grid
from lastword.theta import Theta
from lastword.view.explanation import explain
from lastword.view.portrait import Portrait, portrait
from lastword.view.table import terminal_table

_SHADES = " ▁▂▃▄▅▆▇█"


def table(title: str) -> Table:
    """An empty table, narrow enough for a terminal of 80 columns."""
    return Table(
        title=title,
        title_justify="left",
        title_style="bold",
        box=SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        pad_edge=False,
    )


def drawn(grid: Grid) -> Table:
    """A grid as a table."""
    made = table(grid.title)
    for place, name in enumerate(grid.columns):
        made.add_column(name, justify="right" if place else "left", no_wrap=True)
    for row in grid.rows:
        made.add_row(*map(Text, row))
    return made


def worked_item(name: str, rule: str, outcome: Outcome, theta: Theta) -> Group:
    """An item: the question, its candidates with their trajectories, and why."""
    item = outcome.item
    return Group(
        Text(f"{name}: the {rule} ({item.id})", style="bold"),
        Text(item.question or item.prompt),
        Padding(_trajectories(portrait(outcome.record.decision, theta)), (0, 0, 0, 2)),
        Text(explain(outcome.record.decision)),
    )


def shades(shares: Iterable[float]) -> str:
    """Shares in [0, 1] at depths 0..L, a shade a depth."""
    return "".join(_SHADES[round(share * (len(_SHADES) - 1))] for share in shares)


def percent(share: float) -> str:
    """A share in points; an en dash where it is undefined."""
    return "–" if math.isnan(share) else f"{100 * share:.1f}"


def put(console: Console, *parts: RenderableType) -> None:
    """Print parts, an empty line after each."""
    for part in parts:
        console.print(part)
        console.print()


def _trajectories(seen: Portrait) -> Table:
    columns = {
        "": ["true" if candidate.true else "" for candidate in seen.candidates],
        "candidate": [candidate.text for candidate in seen.candidates],
        f"depth 0..{seen.depth}": [shades(candidate.shares) for candidate in seen.candidates],
    }
    made = terminal_table(seen, columns, after="TRACE", number=percent, box=None, pad_edge=False)
    made.add_row("", Text(_legend(seen), style="dim"), Text(_ruler(seen)), "", "")
    return made


def _legend(seen: Portrait) -> str:
    sharpest = "" if seen.sharpest is None else f"^ l* = {seen.sharpest}, "
    return f"{sharpest}· window"


def _ruler(seen: Portrait) -> str:
    """The interior window as dots, and under them the sharpest depth."""
    assert seen.window is not None
    first, last = seen.window
    marks = ["·" if first <= depth <= last else " " for depth in seen.depths]
    if seen.sharpest is not None:
        marks[seen.sharpest] = "^"
    return "".join(marks)
