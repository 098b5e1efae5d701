"""Commands that read stored records, without a model: `ablate`, `report` and `merge`."""

from pathlib import Path
from typing import Annotated, Any

import typer

from lastword.cli import options as opt
from lastword.cli.output import printable, say, show_tables
from lastword.cli.progress import waiting
from lastword.files.strict_json import to_json


def ablate(
    runs: opt.Runs,
    out: Annotated[Path | None, typer.Option(help="Folder for the tables as .md and .csv.")] = None,
    format: opt.Format = None,
    json: opt.Json = False,
) -> None:
    """Repeat every decision with one part of the rule replaced, and sweep its constants."""
    with waiting("reading records"):
        from lastword.lab.report import ablation
        from lastword.lab.report.table import write_table
        from lastword.records.cells import read_cells, require_counted
        from lastword.records.info import one_theta, read_runs
        from lastword.records.readings import read
        from lastword.records.store import unfinished

        theta = one_theta(read_runs(runs).values())
        parted = read_cells(runs)
        require_counted(parted)
        readings = [read(cell, theta) for cell in parted]
        contents = (
            ablation.necessity_table(ablation.necessity(readings, theta)),
            ablation.sweep_table(ablation.sweeps(readings, theta), theta),
            ablation.reading_table(readings, theta),
        )
        tables = [table for table in contents if table is not None]
        warnings = unfinished(runs)
    for warning in warnings:
        say(f"lastword: {warning}")
    if out is None or json:
        show_tables(tables, "json" if json else format)
    if out is not None:
        for path in (path for table in tables for path in write_table(table, out)):
            typer.echo(path, err=json)


def report(
    runs: opt.Runs,
    out: Annotated[Path, typer.Option(help="Folder to write to.")] = Path("report"),
    against_paper: Annotated[
        bool, typer.Option("--against-paper", help="Compare the results with the paper's.")
    ] = False,
) -> None:
    """Write every table and figure of the paper, and a page that shows each item."""
    for path in write_report(runs, out, with_paper=against_paper):
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
