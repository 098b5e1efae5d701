"""`lastword ablate`: computes the paper's ablations from records, without a model."""

from pathlib import Path
from typing import Annotated

import typer

from lastword.cli import options as opt
from lastword.cli.output import say, show_tables
from lastword.cli.progress import waiting


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
