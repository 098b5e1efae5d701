"""`lastword report`: makes tables, figures and one offline page from records."""

from pathlib import Path
from typing import Annotated, Any

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
    against_paper: Annotated[
        bool, typer.Option("--against-paper", help="Compare the cells with the paper's.")
    ] = False,
) -> None:
    """Write every table and figure of the paper, and a page that shows each item."""
    for path in write_report(runs, out, bench=bench, with_paper=against_paper):
        typer.echo(path)


def write_report(runs: Path, out: Path, **options: Any) -> list[Path]:
    """Write the report of records, print its warnings and verdicts, and return its files."""
    with waiting("writing the report"):
        from lastword.lab.report.build import report as build
        from lastword.records.info import read_runs, uncertain_branches
        from lastword.records.store import unfinished

        output = build(runs, out, **options)
        warnings = [*unfinished(runs), *uncertain_branches(read_runs(runs).values())]
    for warning in warnings:
        say(f"lastword: {warning}")
    for line in output.verdicts:
        typer.echo(printable(line))
    return output.paths
