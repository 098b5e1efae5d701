"""`tracelm demo`: what comes out on the embedded models."""

from pathlib import Path
from typing import Annotated

import typer

from tracelm.cli.output import check_writable
from tracelm.cli.progress import tracked, waiting


def demo(
    page: Annotated[Path, typer.Option(help="Where the page with the worked items goes.")] = Path(
        "demo.html"
    ),
) -> None:
    """Answer the demo's benchmark with the embedded models, base and corrected."""
    check_writable(page)
    with waiting("loading torch"):
        from rich.console import Console

        from tracelm.demo.show import show

    show(Console(), page, tracked)
