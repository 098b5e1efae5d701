"""`lastword report`: records become tables, figures and one offline page."""

from pathlib import Path
from typing import Annotated

import typer

from lastword.cli import options as opt
from lastword.cli.output import printable, say
from lastword.cli.progress import waiting


def report(
    runs: opt.Runs,
    out: Annotated[Path, typer.Option(help="Folder to write to.")] = Path("report"),
    bench: Annotated[
        Path | None,
        typer.Option(help="File of `lastword bench --out`; adds the cost table and figure."),
    ] = None,
    item: Annotated[
        str | None,
        typer.Option(
            help="Item of the worked example and of the figure across models, as BENCHMARK-ID: "
            "truthfulqa-42."
        ),
    ] = None,
    against_paper: Annotated[
        bool, typer.Option("--against-paper", help="Compare the cells with the paper's.")
    ] = False,
) -> None:
    """Write every table and figure of the paper, and a page that shows each item."""
    with waiting("writing the report"):
        from lastword.files.folder import locate
        from lastword.lab.report.build import report as build
        from lastword.records.info import read_runs
        from lastword.records.provenance import uncertain_branches, unfinished

        root = locate(runs)
        output = build(root, out, bench=bench, with_paper=against_paper, item=item)
        warnings = [*unfinished(root), *uncertain_branches(read_runs(root).values())]
    for warning in warnings:
        say(f"lastword: {warning}")
    for line in output.verdicts:
        typer.echo(printable(line))
    for path in output.paths:
        typer.echo(path)
