"""`lastword demo`: the effect of TRACE on a model, in the terminal and as one offline page."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console, Group
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from lastword.decide.tracer import Tracer
from lastword.errors import InputError
from lastword.files.writing import write_text
from lastword.lab.demo.story import TERMS, DemoPart, Story, Watch, allows, answer, gain, story
from lastword.records.document import compress, document
from lastword.records.view import correction, item_text, page_item, short
from lastword.rule.geometry import margin
from lastword.rule.theta import Theta
from lastword.trust.words import ALLOWED

_ASSETS = Path(__file__).parent / "assets"
_SCRIPTS = ("data.js", "trajectory.js", "portrait.js", "demo.js")


def show(
    console: Console,
    page: Path,
    parts: Mapping[DemoPart, Tracer],
    advice: Sequence[tuple[str, str]] = (),
    watch: Watch = lambda decisions, *_: decisions,
) -> dict[str, Any]:
    """Print each part's story, in at most 25 lines, as soon as it is computed; write the page.

    Returns:
        The stories' figures, by the parts' names in lower case.
    """
    stories = []
    for part, tracer in parts.items():
        stories.append(tale := tell(part, tracer, watch))
        last = [*advice, (str(page), "a page with these questions")] if part is [*parts][-1] else []
        console.print(story_lines(tale, last))
    write_page(page, stories)
    return {tale.part.name.lower(): tale.to_dict() for tale in stories}


def tell(part: DemoPart, tracer: Tracer, watch: Watch) -> Story:
    """Return the story of a part, with whole trajectories only for its two examples."""
    items = {item.id: item for item in part.items()}
    tale = story(part, tracer, answer(tracer, [*items.values()], watch, "decide"), TERMS)
    examples = [items[record.id] for record in tale.examples.values()]
    whole = answer(tracer, examples, lambda decisions, *_: decisions)
    return replace(tale, examples=dict(zip(tale.examples, whole, strict=True)))


def story_lines(tale: Story, advice: Sequence[tuple[str, str]]) -> Group:
    """Return a story as text: one correction, one break, the certificate, figures and advice."""
    count = len(tale.records)
    title = f"A small model answers {count} questions: what TRACE changes and what is allowed"
    parts = (
        _columns(_cases(tale)),
        _columns([*_certificate(tale), ("accuracy", Text(_accuracies(tale)))]),
        Text(tale.part.note),
        _columns((name, Text(use)) for name, use in advice),
    )
    return Group(Text(title, style="bold"), *(Padding(part, (1, 0, 0, 0)) for part in parts))


def _cases(tale: Story) -> Iterator[tuple[str, Text]]:
    for record in tale.examples.values():
        word, truth = ("corrected", "true") if gain(record) > 0 else ("broken", "false")
        yield word, Text(record.question or record.prompt)
        answers = (record.base_answer, record.answer)
        yield "", correction(*(short(text, 28) for text in answers)).append(f", which is {truth}")


def _certificate(tale: Story) -> Iterator[tuple[str, Text]]:
    alpha = f"{100 * tale.finding.terms.alpha:g}%"
    yield "requested", Text(f"at most {alpha} of all answers may be broken, and accuracy must rise")
    yield "allowed", Text(tale.lines[1].removeprefix(ALLOWED).removesuffix("."))
    for record in tale.examples.values():
        name = "the correction" if gain(record) > 0 else "the break"
        stays = f"not allowed: the answer stays “{short(record.base_answer, 28)}”"
        word = "allowed" if allows(tale.finding, record) else stays
        yield "", Text(f"{name} ({margin(record.scores):.2f} nats) is {word}")


def _accuracies(tale: Story) -> str:
    chance, base, *effects = tale.accuracies
    corrected, certified = (
        f"{_percent(effect.right)}% ({effect.fixed} corrected, {effect.broken} broken)"
        for effect in effects
    )
    return (
        f"chance {_percent(chance.right)}%, the model {_percent(base.right)}%, "
        f"with TRACE {corrected}, under the certificate {certified}"
    )


def _columns(rows: Iterable[tuple[str, Text]]) -> Table:
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(min_width=8, overflow="fold")
    grid.add_column()
    for name, words in rows:
        grid.add_row(Text(name, style="bold"), words)
    return grid


def _percent(share: float) -> str:
    return "–" if math.isnan(share) else f"{100 * share:.1f}"


def write_page(path: Path, stories: Sequence[Story]) -> None:
    """Write one self-contained HTML file."""
    records = [record for story in stories for record in story.examples.values()]
    blocks = {"items": compress([(item_text(r), page_item(r, Theta())) for r in records])}
    shown = {"title": "lastword demo", "stories": stories}
    try:
        write_text(path, document("demo.html.j2", _SCRIPTS, blocks, assets=_ASSETS, **shown))
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror or error}") from error
