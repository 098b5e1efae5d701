"""`lastword paper`: makes the paper's tables and figures, for its models or yours."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lastword.cli import options as opt
from lastword.cli.evaluate import evaluate, read_benchmarks
from lastword.cli.invariant import read_factors
from lastword.cli.output import say
from lastword.cli.progress import tracked, waiting
from lastword.cli.records import write_report
from lastword.decide.options import DecideOptions
from lastword.errors import InputError, TraceError

if TYPE_CHECKING:
    from lastword.lab.evaluation.work import Work


def paper(
    models: Annotated[
        Path | None,
        typer.Option(
            help="Table with model, alias, revision, dtype, quantize. Default: the paper's fifteen."
        ),
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for the records and the page.")] = Path("paper"),
    benchmark: Annotated[
        list[str] | None,
        typer.Option(help="Benchmark, as in eval. Repeatable. Default: the paper's three."),
    ] = None,
    data: opt.Data = None,
    limit: opt.Limit = None,
    device: opt.Device = "auto",
) -> None:
    """Run the paper's grid and compare it with the published numbers; a restart continues."""
    from lastword.lab.paper import BENCHMARKS, read_grid
    from lastword.lab.report.published import invariants_against_paper

    grid = read_grid(models, device)
    works, absent = _works(benchmark or list(BENCHMARKS), data, limit)
    for reason in absent:
        say(f"lastword: {reason}")
    out.mkdir(parents=True, exist_ok=True)
    invariants, problems = _invariants(grid)
    problems += [f"every model on {reason}" for reason in absent]
    problems += _cells(grid, works, out / "runs")
    for problem in problems:
        say(f"lastword: {problem}")
    leading = (invariants_against_paper(invariants),)
    typer.echo(write_report(out / "runs", out, with_paper=True, leading=leading)[-1])
    if problems:
        raise typer.Exit(1)


def _works(
    names: Sequence[str], data: Path | None, limit: int | None
) -> "tuple[list[Work], list[str]]":
    from lastword.lab.evaluation.work import Work

    works, absent = [], []
    for name in names:
        try:
            with waiting(f"reading {name}"):
                works += [Work(*pair) for pair in read_benchmarks([name], [], data, limit)]
        except InputError as error:
            absent.append(f"{name}: {error}")
    return works, absent


def _invariants(grid: Sequence[DecideOptions]) -> tuple[dict[str, dict[str, Any]], list[str]]:
    from lastword.rule.theta import Theta

    invariants, problems = dict[str, dict[str, Any]](), list[str]()
    for model in tracked(grid, "invariants", len(grid)):
        try:
            factors = read_factors(str(model.model), model.revision)
        except (TraceError, OSError, ModuleNotFoundError) as error:
            problems.append(f"I(M) of {model.alias}: {error}")
            continue
        facts = {"model": model.model, "branch": factors.branch(Theta().tau_I)}
        invariants[str(model.alias)] = facts | factors.to_dict()
    return invariants, problems


def _cells(grid: Sequence[DecideOptions], works: "Sequence[Work]", runs: Path) -> list[str]:
    from lastword.records.cells import load_records

    problems: list[str] = []
    for model in grid:
        for work, outcome in zip(works, evaluate(model, works, runs), strict=True):
            if isinstance(outcome, TraceError):
                reason = str(outcome)
            elif isinstance(outcome, Exception):
                reason = f"{type(outcome).__name__}: {outcome}"
            elif outcome.items and outcome.failed == outcome.items:
                first = load_records(outcome.cell)["error"].iloc[0]
                reason = f"every item failed, the first: {first}"
            else:
                continue
            problems.append(f"{model.alias} on {work.name}: {reason}")
    return problems
