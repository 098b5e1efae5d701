"""`lastword demo`: what TRACE does to a model, in the terminal and as a page."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.text import Text

from lastword.lab.demo.outcome import Watch, answer
from lastword.lab.demo.page import write_page
from lastword.lab.demo.story import TERMS, DemoPart, Story, story
from lastword.lab.demo.terminal import story_lines

if TYPE_CHECKING:
    from lastword.decide.tracer import Tracer


def show(
    console: Console,
    page: Path,
    parts: "Mapping[DemoPart, Tracer]",
    advice: Sequence[tuple[str, str]] = (),
    watch: Watch = lambda decisions, *_: decisions,
    verdict: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Print each part's story, at most 25 lines, as soon as it is computed; then write the page.

    Returns:
        Their figures, by the parts' names in lower case.
    """
    stories = []
    for part, tracer in parts.items():
        stories.append(tale := tell(part, tracer, watch))
        last = [*advice, (str(page), "a page with these questions")] if part is [*parts][-1] else []
        console.print(story_lines(tale, last))
    if verdict is not None:
        words = verdict["advice"]
        console.print(Text("\n".join(["", words["headline"], *words["chart"]])))
    write_page(page, stories, verdict)
    return {tale.part.name.lower(): tale.figures() for tale in stories}


def tell(part: DemoPart, tracer: "Tracer", watch: Watch) -> Story:
    """Return the story of a part, with whole trajectories for its two examples only."""
    tale = story(part, tracer, answer(tracer, part.items(), watch, "decide"), TERMS)
    whole = answer(tracer, [o.item for o in tale.examples.values()], lambda some, *_: some)
    return replace(tale, examples=dict(zip(tale.examples, whole, strict=True)))
