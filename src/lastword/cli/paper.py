"""`lastword paper`: makes the paper's tables and figures, for its models or yours."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lastword.cli import options as opt
from lastword.cli.benchmarks import read_benchmarks
from lastword.cli.evaluate import evaluate
from lastword.cli.invariant import read_factors
from lastword.cli.output import say
from lastword.cli.progress import tracked, waiting
from lastword.cli.report import write_report
from lastword.decide.options import DecideOptions
from lastword.errors import InputError, RecordError, TraceError
from lastword.files.strict_json import strict

if TYPE_CHECKING:
    from lastword.lab.evaluation.work import Work

INVARIANTS = "invariants.json"


def paper(
    models: Annotated[
        Path | None,
        typer.Option(
            help="Table with model, alias, revision, dtype, quantize. Default: the paper's fifteen."
        ),
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for invariants, records and the page.")] = Path(
        "paper"
    ),
    only: Annotated[
        list[str] | None, typer.Option(help="Run only this model of the grid. Repeatable.")
    ] = None,
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

    grid = read_grid(models, only or (), device)
    names = benchmark or list(BENCHMARKS)
    works, absent = _works(names, data, limit)
    for reason in absent:
        say(f"lastword: {reason}")
    out.mkdir(parents=True, exist_ok=True)
    problems = _invariants(grid, out / INVARIANTS)
    problems += [f"every model on {reason}" for reason in absent]
    problems += _cells(grid, works, out / "runs")
    for problem in problems:
        say(f"lastword: {problem}")
    _write_page(out)
    if problems:
        raise typer.Exit(1)


def _works(
    names: Sequence[str], data: Path | None, limit: int | None
) -> "tuple[list[Work], list[str]]":
    """Return the work of each readable benchmark, and the errors of the others."""
    from lastword.lab.evaluation.work import Work

    works, absent = [], []
    for name in names:
        try:
            with waiting(f"reading {name}"):
                works += [Work(*pair) for pair in read_benchmarks([name], [], data, limit)]
        except InputError as error:
            absent.append(f"{name}: {error}")
    return works, absent


def _invariants(grid: Sequence[DecideOptions], path: Path) -> list[str]:
    """Compute I(M) of every model missing in `path`, and store it; return the errors."""
    from lastword.files.writing import write_text
    from lastword.rule.theta import Theta

    try:
        invariants: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        invariants = {}
    except (OSError, ValueError) as error:
        raise RecordError(f"cannot read {path}: {error}; remove it, and start again") from error
    problems = []
    # The page reads the file even if every model fails.
    write_text(path, json.dumps(invariants, indent=1))
    for model in tracked(grid, "invariants", len(grid)):
        checkpoint = {"model": model.model, "revision": model.revision}
        name = str(model.alias)
        if checkpoint.items() <= invariants.get(name, {}).items():
            continue
        try:
            factors = read_factors(str(model.model), model.revision)
        except (TraceError, OSError, ModuleNotFoundError) as error:
            problems.append(f"I(M) of {name}: {error}")
            continue
        branch = {"branch": factors.branch(Theta().tau_I)}
        invariants[name] = checkpoint | strict(factors.to_dict()) | branch
        write_text(path, json.dumps(invariants, indent=1))
    return problems


def _cells(grid: Sequence[DecideOptions], works: "Sequence[Work]", runs: Path) -> list[str]:
    """Run every cell that lacks records; return the failed cells, each with the reason."""
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


def _write_page(out: Path) -> None:
    from lastword.lab.report.published import invariants_against_paper

    invariants = json.loads((out / INVARIANTS).read_text(encoding="utf-8"))
    leading = (invariants_against_paper(invariants),)
    typer.echo(write_report(out / "runs", out, with_paper=True, leading=leading)[-1])
