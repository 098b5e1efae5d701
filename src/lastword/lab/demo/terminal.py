"""A story in a terminal."""

import math
from collections.abc import Iterable, Iterator, Sequence

from rich.console import Group
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from lastword.lab.demo.story import Story, withheld_by
from lastword.records.portrait import short
from lastword.records.table import correction
from lastword.trust.summary import ALLOWED


def story_lines(tale: Story, advice: Sequence[tuple[str, str]]) -> Group:
    """Return one correction, one break, what the certificate allows, figures, and what next."""
    title = f"A small model answers {tale.items} questions: what TRACE changes and what is allowed"
    parts = (
        _columns(_cases(tale)),
        _columns([*_certificate(tale), ("accuracy", Text(_rights(tale)))]),
        Text(tale.part.note),
        _columns((name, Text(use)) for name, use in advice),
    )
    return Group(Text(title, style="bold"), *(Padding(part, (1, 0, 0, 0)) for part in parts))


def _cases(tale: Story) -> Iterator[tuple[str, Text]]:
    for outcome in tale.examples.values():
        word, truth = ("corrected", "true") if outcome.gain > 0 else ("broken", "false")
        yield word, Text(outcome.item.question or outcome.item.prompt)
        answers = (outcome.decision.base_answer, outcome.decision.answer)
        yield "", correction(*(short(text, 28) for text in answers)).append(f", which is {truth}")


def _certificate(tale: Story) -> Iterator[tuple[str, Text]]:
    alpha = f"{100 * tale.finding.terms.alpha:g}%"
    yield "requested", Text(f"at most {alpha} of all answers may be broken, and accuracy must rise")
    yield "allowed", Text(tale.lines[1].removeprefix(ALLOWED).removesuffix("."))
    for outcome in tale.examples.values():
        name = "the correction" if outcome.gain > 0 else "the break"
        stays = f"not allowed: the answer stays “{short(outcome.decision.base_answer, 28)}”"
        word = stays if withheld_by(tale.finding, outcome) else "allowed"
        yield "", Text(f"{name} ({outcome.margin:.2f} nats) is {word}")


def _rights(tale: Story) -> str:
    corrected, certified = (
        f"{percent(effect.right)}% ({effect.fixed} corrected, {effect.broken} broken)"
        for effect in (tale.corrected, tale.certified)
    )
    return (
        f"chance {percent(tale.chance)}%, the model {percent(tale.base)}%, with TRACE {corrected}, "
        f"under the certificate {certified}"
    )


def _columns(rows: Iterable[tuple[str, Text]]) -> Table:
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(min_width=8, overflow="fold")
    grid.add_column()
    for name, text in rows:
        grid.add_row(Text(name, style="bold"), text)
    return grid


def percent(share: float) -> str:
    """Return a share in percent, or an en dash if it is nan."""
    return "–" if math.isnan(share) else f"{100 * share:.1f}"
