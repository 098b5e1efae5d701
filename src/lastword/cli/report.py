"""`lastword report`: records become tables, figures and one offline page."""

from pathlib import Path
from typing import Annotated

import typer

from lastword.cli.output import printable, say
from lastword.cli.progress import waiting


def report(
    runs: Annotated[
        str, typer.Argument(metavar="PATH", help="Folder of `lastword eval`, at any level.")
    ],
    out: Annotated[Path, "Folder to write to."] = Path("report"),
    bench: Annotated[
        Path | None, "What `lastword bench --out` left: adds the cost table and figure."
    ] = None,
    item: Annotated[
        str | None,
        "BENCHMARK-ID, such as truthfulqa-42: what the worked example and the figure "
        "across models show.",
    ] = None,
    against_paper: Annotated[bool, "Lay the cells beside the paper's grid."] = False,
) -> None:
    """Write every table and figure of the paper, and a page to look into each item."""
    with waiting("writing the report"):
        from lastword.files.folder import locate
        from lastword.lab.report.build import report as build
        from lastword.records.provenance import unfinished

        root = locate(runs)
        output = build(root, out, bench=bench, with_paper=against_paper, item=item)
        warnings = unfinished(root)
    for warning in warnings:
        say(f"lastword: {warning}")
    for line in output.verdicts:
        typer.echo(printable(line))
    for path in output.paths:
        typer.echo(path)
