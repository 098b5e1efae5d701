"""`lastword eval`: runs models on benchmarks and writes the records that other commands read."""

import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import redirect_stdout
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lastword.cli import options as opt
from lastword.cli.model import load_decider, load_options, read_engine
from lastword.cli.output import printable, say, show_tables
from lastword.cli.progress import counting, waiting
from lastword.decide.options import DecideOptions
from lastword.files.strict_json import to_json
from lastword.model.digest import require_there
from lastword.text.prompt_template import Blind

if TYPE_CHECKING:
    from lastword.decide.decider import Decider
    from lastword.engines.ray import Cluster
    from lastword.lab.benchmarks import Dataset, Template
    from lastword.lab.evaluation.runner import RunResult
    from lastword.lab.evaluation.work import Work
    from lastword.records.store import Shard


def eval_(
    *,
    model: opt.Models,
    benchmark: Annotated[
        list[str],
        typer.Option(
            help="truthfulqa, halueval-qa, halueval-qa-closed, halueval-sum, "
            "fib, factor, everyday, demo or jsonl:PATH. Repeatable."
        ),
    ],
    out: opt.Out = Path("runs"),
    template: Annotated[
        list[str] | None, typer.Option(help="BENCHMARK/VARIANT or a Jinja file. Repeatable.")
    ] = None,
    data: opt.Data = None,
    limit: opt.Limit = None,
    seed: opt.Seed = None,
    blind: Annotated[
        Blind,
        typer.Option(
            help="Read items without the question too. base: for the question-blind baseline. all: "
            "also every depth and T, so that reports show which gain needs the question. none: do "
            "not read them."
        ),
    ] = "base",
    shard: Annotated[
        str | None, typer.Option(metavar="I/N", help="Do part I of N, counted from 0.")
    ] = None,
    json: opt.Json = False,
    certificate: opt.Certificate = None,
    correction: opt.Correction = None,
    loading: opt.Loading,
    engine: opt.EngineOrRay = "local",
    engine_options: opt.EngineOptions = None,
) -> None:
    """Run models on benchmarks and record every item; a restart continues."""
    answers = opt.AnswerOptions(correction=correction, certificate=certificate)
    models = [load_options(name, loading, answers) for name in model]
    if len(models) > 1 and models[0].alias is not None:
        raise typer.BadParameter("--load alias names one model: give one --model with it")
    cluster = read_engine(engine, engine_options)
    if cluster is None:  # paths on other machines are not checked here
        for options in models:
            require_there(options)
    elif shard is not None:
        raise typer.BadParameter("--engine ray divides the work itself: leave --shard out")
    with waiting("reading the data"):
        from lastword.lab.evaluation.work import Work
        from lastword.records.store import WHOLE, Shard

        part = WHOLE if shard is None else Shard.parse(shard)
        pairs = read_benchmarks(benchmark, template or [], data, limit, seed)
        works = [Work(*pair, blind) for pair in pairs]
    results: list[RunResult] = []
    for options in models:
        if cluster is None:
            for outcome in evaluate(options, works, out, part):
                if isinstance(outcome, Exception):
                    raise outcome
                results.append(outcome)
        else:
            results += _on_cluster(cluster, options, works, out)
    _summary([result.cell for result in results], json)
    if any(result.items and result.failed == result.items for result in results):
        raise typer.Exit(1)


def read_benchmarks(
    benchmarks: Sequence[str],
    templates: list[str],
    data: Path | None,
    limit: int | None,
    seed: int | None = None,
) -> "list[tuple[Dataset, Template]]":
    """Return every data set with each of its templates, read and rendered."""
    if seed is not None and limit is None:
        raise typer.BadParameter("--seed draws a random subset: give its size with --limit")
    from lastword.lab.benchmarks import find, templates_for

    sets = [find(name) for name in dict.fromkeys(benchmarks)]
    by_set = templates_for(sets, templates)
    datasets = [b.load(data, limit=limit, seed=seed) for b in sets]
    work = [(d, t) for d in datasets for t in by_set[d.benchmark.name]]
    for dataset, template in work:
        dataset.items(template)  # refuses a bad template before a model loads
    return work


def evaluate(
    model: DecideOptions, works: "Iterable[Work]", out: Path, shard: "Shard | None" = None
) -> "Iterator[RunResult | Exception]":
    """Run one model on benchmarks, and yield each cell's result or error.

    The model is loaded only if a cell lacks records.
    """
    decider: Decider | None = None
    for work in works:
        try:
            outcome: RunResult | Exception | None = _finished(model, work, out, shard)
            if outcome is None:
                decider = decider or load_uncached(model)
                outcome = evaluated(decider, work, out, shard)
        except Exception as error:
            outcome = error
        yield outcome


def load_uncached(model: DecideOptions) -> "Decider":
    """Load a model without a cache of prefixes, unless the user chose its size.

    The plan puts equal beginnings into one batch.
    """
    return load_decider(replace(model, prefix_cache=model.prefix_cache or 0))


def _finished(
    model: DecideOptions, work: "Work", out: Path, shard: "Shard | None" = None
) -> "RunResult | None":
    """Return the result of a complete cell without importing torch; None if it is incomplete."""
    with waiting("reading records"):
        from lastword.lab.evaluation.runner import finished
        from lastword.records.store import WHOLE

        result = finished(model, work, out, shard or WHOLE)
    return None if result is None else _warned(result)


def _on_cluster(
    cluster: "Cluster", model: DecideOptions, works: "Iterable[Work]", out: Path
) -> "list[RunResult]":
    """Run the cells in Ray's workers, which print lost workers to stdout, which is for results."""
    from lastword.engines.ray import evaluate_shards

    results = [_finished(model, work, out) for work in works]
    missing = [work for work, result in zip(works, results, strict=True) if result is None]
    if missing:
        with redirect_stdout(sys.stderr), waiting(f"running {model.label} in Ray workers"):
            done = iter(evaluate_shards(cluster, partial(load_uncached, model), missing, out))
        results = [_warned(next(done)) if result is None else result for result in results]
    return [result for result in results if result is not None]


def evaluated(
    decider: "Decider", work: "Work", out: Path, shard: "Shard | None" = None
) -> "RunResult":
    """Run a cell or a shard, with progress on stderr."""
    from lastword.lab.evaluation.runner import evaluate
    from lastword.records.store import WHOLE

    part = shard or WHOLE
    task = f"{decider.tracer.source['model']} on {work.name}"
    with counting(task, len(work.dataset.examples) // part.count) as countdown:
        result = evaluate(decider, work, out, part, countdown.advance)
    return _warned(result)


def _warned(result: "RunResult") -> "RunResult":
    from lastword.records.info import read_run, uncertain_branches

    if result.items > result.resumed:
        for sentence in uncertain_branches([read_run(result.cell)]):
            say(f"lastword: {sentence}")
    if not result.items:
        say(f"lastword: no items of {result.cell} fall to this shard")
    for torn in result.set_aside:
        say(f"lastword: a torn part was set aside as {torn}, done again")
    if result.failed:
        say(
            f"lastword: {result.failed} of {result.items} records are of items that failed, in "
            f"{result.cell}; the column `error` says why"
        )
    return result


def _summary(cells: Sequence[Path], as_json: bool) -> None:
    with waiting("reading records"):
        from lastword.lab.evaluation.controls import controls
        from lastword.lab.evaluation.statistics import judge, verdict_lines
        from lastword.lab.report.tables import cells_table
        from lastword.records.cells import read_cells, summarise

        records = [record for cell in dict.fromkeys(cells) for record in read_cells(cell)]
        tests = [controls(cell) for cell in records]
        verdicts = judge(records, [test.objection for test in tests])
    for text in (text for cell in records for text in cell.records["error"].dropna().head(1)):
        say(f"lastword: the first that failed: {text}")
    summaries = [summarise(cell) for cell in records]
    if as_json:
        content = [
            vars(summary)
            | {"counts": asdict(summary.counts)}
            | asdict(verdict)
            | {"verdict": verdict.sentence, "controls": asdict(control)}
            for summary, verdict, control in zip(summaries, verdicts, tests, strict=True)
        ]
        typer.echo(to_json(content))
        return
    show_tables([cells_table(summaries)], None)
    for verdict, control in zip(verdicts, tests, strict=True):
        for line in verdict_lines(verdict, control.sentence):
            typer.echo(printable(line))
