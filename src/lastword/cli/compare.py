"""`lastword compare`: compares TRACE, other methods and baselines on the same items."""

from pathlib import Path
from typing import Annotated

import typer

from lastword.cli import options as opt
from lastword.cli.evaluate import evaluated, load_uncached, read_benchmarks
from lastword.cli.model import load_options
from lastword.cli.output import say, show_tables
from lastword.cli.progress import waiting


def _list(wanted: bool) -> bool:
    if wanted:
        from lastword.methods import METHODS

        width = max(map(len, METHODS))
        for name, method in METHODS.items():
            typer.echo(f"{name:<{width}}  {method.summary} ({method.source})")
        raise typer.Exit
    return wanted


def compare(
    *,
    model: opt.Model,
    benchmark: Annotated[str, typer.Option(help="Benchmark, as in eval.")],
    method: Annotated[
        list[str] | None,
        typer.Option(help="Method of --list; repeatable. All of them if left out."),
    ] = None,
    list: Annotated[
        bool,
        typer.Option("--list", callback=_list, is_eager=True, help="List the methods and exit."),
    ] = False,
    out: opt.Out = Path("compared"),
    template: opt.BenchmarkTemplate = None,
    data: opt.Data = None,
    limit: opt.Limit = None,
    seed: opt.Seed = None,
    format: opt.Format = None,
    json: opt.Json = False,
    loading: opt.Loading,
) -> None:
    """Compare every correction on one model and one benchmark, and record each one's scores."""
    options = load_options(model, loading)
    with waiting("reading the data"):
        from lastword.lab.evaluation.work import Work
        from lastword.lab.report.comparison import comparison_tables, read_comparisons
        from lastword.methods import COMPARED, METHODS, entry, resolve
        from lastword.records.cells import read_cells

        names = method or COMPARED
        for name in names:
            entry(name)  # raises for an unknown method before the model is loaded
        (pair,) = read_benchmarks(
            [benchmark], [] if template is None else [template], data, limit, seed
        )
    if not method and (others := {*METHODS} - {name.partition("@")[0] for name in names}):
        left = ", ".join(name for name in METHODS if name in others)
        say(f"lastword: left out, as they go by --method: {left}")
    decider = load_uncached(options)
    methods = resolve(names, decider.tracer.facts)
    cell = evaluated(decider, Work(*pair, methods=methods), out).cell
    with waiting("reading records"):
        (compared,) = read_comparisons(cell, read_cells(cell))
    show_tables(comparison_tables([compared]), "json" if json else format)
