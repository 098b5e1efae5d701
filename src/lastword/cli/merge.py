"""`lastword merge`: joins the records of several machines."""

from pathlib import Path
from typing import Annotated

import typer

from lastword.cli import options as opt
from lastword.cli.output import printable
from lastword.cli.progress import waiting
from lastword.files.strict_json import to_json


def merge(
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="PATH...", help="Results folders from `lastword eval`, at any level."
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH",
            callback=opt.local,
            help="Root of the joined records. By default the records of each cell are counted.",
        ),
    ] = None,
    json: opt.Json = False,
) -> None:
    """Join the records of one run from several folders."""
    with waiting("joining records"):
        from lastword.records.store import merge as join

        joined = join(runs, out)
    counts = [(str(run.cell), run.info["items"], len(run.missing)) for run in joined]
    if json:
        names = ("folder", "items", "missing")
        typer.echo(to_json([dict(zip(names, cell, strict=True)) for cell in counts]))
        return
    for folder, items, missing in counts:
        gap = f", {missing} missing" if missing else ""
        typer.echo(printable(f"{folder}: {items - missing} of {items} records{gap}"))
