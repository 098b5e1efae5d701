"""`lastword demo`: what TRACE does to a real model and to the embedded ones, here and as a page."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.text import Text

from lastword.demo import organism
from lastword.demo.outcome import Watch
from lastword.demo.page import write_page
from lastword.demo.real import show_real
from lastword.demo.section import Section
from lastword.demo.terminal import story_lines
from lastword.theta import Theta

if TYPE_CHECKING:
    from lastword.tracer import Tracer


def show_short(
    console: Console,
    page: Path | None,
    advice: Sequence[tuple[str, str]] = (),
    watch: Watch = lambda decisions, *_: decisions,
) -> dict[str, Any]:
    """Print the organism's story, at most 25 lines, and write the page with its two items.

    Args:
        console: Where it is printed.
        page: Where the page is written; None for none.
        advice: Commands to go on with, and what each is for.
        watch: Shows progress; see `outcome.answer`.

    Returns:
        Its figures.
    """
    section = organism.short(watch)
    files = [] if page is None else [(str(page), "these two questions, drawn")]
    console.print(story_lines(section.story, section.note, [*advice, *files]))
    if page is not None:
        write_page(page, [section], Theta())
    return {"short": section.figures}


def show(
    console: Console,
    page: Path | None,
    real: "Tracer | None",
    organisms: bool = True,
    watch: Watch = lambda decisions, *_: decisions,
) -> dict[str, Any]:
    """Print the demo's parts, each as soon as it is computed, then write the page.

    Args:
        console: Where results are printed.
        page: Where the page with the worked items is written; None for none.
        real: A real model, shown first; None to leave it out.
        organisms: True if the embedded models are shown.
        watch: Shows progress; see `outcome.answer`.

    Returns:
        The parts' figures: `real` and `organisms`.
    """
    sections: dict[str, Section] = {}
    if real is not None:
        sections["real"] = show_real(console, real, watch)
    if organisms:
        sections["organisms"] = organism.show_organism(console, watch)
    if page is not None:
        write_page(page, list(sections.values()), Theta())
        console.print(Text(f"The worked items as a page: {page}"))
    return {name: section.figures for name, section in sections.items()}
