"""`lastword merge`: joins the records of several machines."""

from dataclasses import asdict
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
    if json:
        typer.echo(to_json([asdict(cell) | {"folder": str(cell.folder)} for cell in joined]))
        return
    for cell in joined:
        missing = f", {cell.missing} missing" if cell.missing else ""
        count = cell.items - cell.missing
        typer.echo(printable(f"{cell.folder}: {count} of {cell.items} records{missing}"))
