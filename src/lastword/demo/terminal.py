"""A story in a terminal, and a worked item with its depths."""

import math
from collections.abc import Iterable, Iterator, Sequence

from rich.console import Group
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from lastword.demo.outcome import Outcome
from lastword.demo.story import Story, withheld_by
from lastword.theta import Theta
from lastword.view.explanation import explain
from lastword.view.portrait import Portrait, portrait, short
from lastword.view.table import correction, terminal_table

_SHADES = " ▁▂▃▄▅▆▇█"


def worked_item(name: str, rule: str, outcome: Outcome, theta: Theta) -> Group:
    """An item: the question, its candidates with their trajectories, and why."""
    item = outcome.item
    return Group(
        Text(f"{name}: the {rule} ({item.id})", style="bold"),
        Text(item.question or item.prompt),
        correction(outcome.decision.base_answer, outcome.decision.answer),
        Padding(_trajectories(portrait(outcome.record.decision, theta)), (0, 0, 0, 2)),
        Text(explain(outcome.record.decision)),
    )


def story_lines(tale: Story, advice: Sequence[tuple[str, str]]) -> Group:
    """One repair, one break, what the certificate allows, figures, and what next."""
    title = f"{tale.items} questions to a small model: what correction changes, and what is allowed"
    parts = (
        _columns(_cases(tale)),
        _columns([*_certificate(tale), ("right", Text(_rights(tale)))]),
        Text(tale.part.note),
        _columns((name, Text(use)) for name, use in advice),
    )
    return Group(Text(title, style="bold"), *(Padding(part, (1, 0, 0, 0)) for part in parts))


def _cases(tale: Story) -> Iterator[tuple[str, Text]]:
    for outcome in tale.examples.values():
        word, truth = ("repaired", "true") if outcome.gain > 0 else ("broken", "false")
        yield word, Text(outcome.item.question or outcome.item.prompt)
        answers = (outcome.decision.base_answer, outcome.decision.answer)
        yield "", correction(*(short(text, 28) for text in answers)).append(f", which is {truth}")


def _certificate(tale: Story) -> Iterator[tuple[str, Text]]:
    alpha = f"{100 * tale.finding.terms.alpha:g}%"
    yield "asked", Text(f"break at most {alpha} of all answers, and gain")
    yield "allowed", Text(tale.lines[1].removeprefix("allowed: "))
    for outcome in tale.examples.values():
        name = "the repair" if outcome.gain > 0 else "the break"
        stays = f"not allowed: the answer stays “{short(outcome.decision.base_answer, 28)}”"
        word = stays if withheld_by(tale.finding, outcome) else "allowed"
        yield "", Text(f"{name} ({outcome.margin:.2f} nats) is {word}")


def _rights(tale: Story) -> str:
    corrected, certified = (
        f"{percent(effect.right)}% ({effect.fixed} repaired, {effect.broken} broken)"
        for effect in (tale.corrected, tale.certified)
    )
    return (
        f"by chance {percent(tale.chance)}%, by the model {percent(tale.base)}%, corrected "
        f"{corrected}, under the certificate {certified}"
    )


def _columns(rows: Iterable[tuple[str, Text]]) -> Table:
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(min_width=8, overflow="fold")
    grid.add_column()
    for name, text in rows:
        grid.add_row(Text(name, style="bold"), text)
    return grid


def shades(shares: Iterable[float]) -> str:
    """Shares in [0, 1] at depths 0..L, a shade a depth."""
    return "".join(_SHADES[round(share * (len(_SHADES) - 1))] for share in shares)


def percent(share: float) -> str:
    """A share in points; an en dash where it is undefined."""
    return "–" if math.isnan(share) else f"{100 * share:.1f}"


def _trajectories(item: Portrait) -> Table:
    columns = {
        "": ["true" if candidate.true else "" for candidate in item.candidates],
        "candidate": [candidate.text for candidate in item.candidates],
        f"depth 0..{item.depth}": [shades(candidate.shares) for candidate in item.candidates],
    }
    rows = terminal_table(item, columns, after="TRACE", number=percent, box=None, pad_edge=False)
    rows.add_row("", Text(_legend(item), style="dim"), Text(_ruler(item)), "", "")
    return rows


def _legend(item: Portrait) -> str:
    sharpest = "" if item.sharpest is None else f"^ l* = {item.sharpest}, "
    return f"{sharpest}· window"


def _ruler(item: Portrait) -> str:
    """The interior window as dots, and under them the sharpest depth."""
    assert item.window is not None
    first, last = item.window
    marks = ["·" if first <= depth <= last else " " for depth in item.depths]
    if item.sharpest is not None:
        marks[item.sharpest] = "^"
    return "".join(marks)
