"""`lastword export`: what other libraries load, written as a folder."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from lastword.cli.output import printable


def export(
    what: Annotated[
        Literal["custom-generate"],
        typer.Argument(help="custom-generate: for transformers' generate(custom_generate=OUT)."),
    ],
    out: Annotated[Path, typer.Argument(help="Folder to write.")],
) -> None:
    """Write ways of decoding as a folder that transformers' `generate` runs."""
    from lastword.integrations.custom_generate import write

    for path in write(out):
        typer.echo(printable(f"lastword: wrote {path}"), err=True)
