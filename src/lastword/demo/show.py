"""`lastword demo`: what TRACE does to a real model and to the embedded ones, here and as a page."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.text import Text

from lastword.demo.organism import show_organism
from lastword.demo.outcome import Watch
from lastword.demo.page import write_page
from lastword.demo.real import show_real
from lastword.demo.section import Section
from lastword.theta import Theta

if TYPE_CHECKING:
    from lastword.tracer import Tracer


def show(
    console: Console,
    page: Path | None,
    real: "Tracer | None",
    organism: bool = True,
    watch: Watch = lambda decisions, *_: decisions,
) -> dict[str, Any]:
    """Print the demo's parts, each as soon as it is computed, then write the page.

    Args:
        console: Where results are printed.
        page: Where the page with the worked items is written; None for none.
        real: A real model, shown first; None to leave it out.
        organism: Whether the embedded models are shown.
        watch: Shows progress; see `outcome.answer`.

    Returns:
        The parts' figures: `real` and `organisms`.
    """
    sections: dict[str, Section] = {}
    if real is not None:
        sections["real"] = show_real(console, real, watch)
    if organism:
        sections["organisms"] = show_organism(console, watch)
    if page is not None:
        write_page(page, list(sections.values()), Theta())
        console.print(Text(f"The worked items as a page: {page}"))
    return {name: section.figures for name, section in sections.items()}
