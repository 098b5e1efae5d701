"""`lastword demo`: what comes out on a real model and on the embedded ones."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lastword.cli.model import load_tracer
from lastword.cli.output import check_writable, printable
from lastword.cli.progress import tracked, waiting
from lastword.errors import ModelError
from lastword.files.strict_json import to_json
from lastword.model.options import LoadOptions

if TYPE_CHECKING:
    from lastword.tracer import Tracer


def demo(
    page: Annotated[Path, typer.Option(help="Where the page with the worked items goes.")] = Path(
        "demo.html"
    ),
    real: Annotated[bool, typer.Option("--real", help="The real model alone.")] = False,
    organism: Annotated[
        bool, typer.Option("--organism", help="The embedded models alone, in a minute.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")] = False,
) -> None:
    """Answer questions with a real model and with the embedded ones, base and corrected."""
    check_writable(page)
    both = real == organism
    with waiting("loading torch"):
        from rich.console import Console

        from lastword.demo.show import show

    tracer = _open_real(not both, as_json) if real or both else None
    figures = show(Console(quiet=as_json), page, tracer, organism or both, tracked)
    if as_json:
        typer.echo(to_json(figures))


def _open_real(needed: bool, as_json: bool) -> "Tracer | None":
    """The real model; where it is not needed and cannot be had, a line that says how to."""
    from lastword.demo.real import NAME

    try:
        return load_tracer(LoadOptions(NAME))
    except ModelError as error:
        if needed:
            raise
        typer.echo(printable(f"Without a real model: {error}"), err=as_json)
        return None
