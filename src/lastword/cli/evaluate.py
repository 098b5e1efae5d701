"""`lastword eval`: runs models on benchmarks and writes the records that other commands read."""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lastword.cli import options as opt
from lastword.cli.benchmarks import read_benchmarks
from lastword.cli.model import load_decider, load_options, load_tokenizer, read_engine
from lastword.cli.output import printable, say, show_tables
from lastword.cli.progress import counting, waiting
from lastword.decide.options import DecideOptions
from lastword.files.strict_json import to_json
from lastword.model.digest import require_there
from lastword.text.prompt_template import Blind, Recorded

if TYPE_CHECKING:
    from lastword.decide.decider import Decider
    from lastword.engines.ray import Cluster
    from lastword.lab.evaluation.controls import Controls
    from lastword.lab.evaluation.runner import RunResult
    from lastword.lab.evaluation.statistics import Judgement
    from lastword.lab.evaluation.work import Work
    from lastword.records.cells import Cell
    from lastword.records.store import Shard


def eval_(
    *,
    model: opt.Models,
    benchmark: Annotated[
        list[str],
        typer.Option(
            help="truthfulqa, halueval-qa, halueval-qa-closed, halueval-sum, "
            "fib, factor, everyday, demo, jsonl:PATH or hf:NAME. Repeatable."
        ),
    ],
    out: opt.Out = Path("runs"),
    template: Annotated[
        list[str] | None, typer.Option(help="BENCHMARK/VARIANT or a Jinja file. Repeatable.")
    ] = None,
    data: opt.Data = None,
    limit: opt.Limit = None,
    seed: opt.Seed = None,
    columns: opt.Columns = None,
    blind: Annotated[
        Blind,
        typer.Option(
            help="Read items without the question too. base: for the question-blind baseline. all: "
            "also every depth and T, so that reports show which gain needs the question. none: do "
            "not read them."
        ),
    ] = "base",
    record: Annotated[
        Recorded,
        typer.Option(
            help="Depths that are recorded: all, for reports, ablations and certificates, or only "
            "those that decide."
        ),
    ] = "all",
    shard: Annotated[
        str | None, typer.Option(metavar="I/N", help="Do part I of N, counted from 0.")
    ] = None,
    show_prompt: Annotated[
        bool, typer.Option("--show-prompt", help="Print the first item as the model reads it.")
    ] = False,
    json: opt.Json = False,
    certificate: opt.Certificate = None,
    correction: opt.Correction = None,
    loading: opt.Loading,
    engine: opt.EngineOrRay = "local",
    engine_options: opt.EngineOptions = None,
) -> None:
    """Run models on benchmarks and record every item; a restart continues."""
    models = [
        replace(load_options(name, loading), certificate=certificate, correction=correction)
        for name in model
    ]
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
        pairs = read_benchmarks(benchmark, template or [], data, limit, seed, columns)
        works = [Work(*pair, blind, record=record) for pair in pairs]
    if show_prompt:
        for work in works:
            _show_prompt(models[0], work)
        return
    results = [r for options in models for r in evaluate(options, cluster, works, out, part)]
    _summary([result.cell for result in results], json)
    if any(result.items and result.failed == result.items for result in results):
        raise typer.Exit(1)


def evaluate(
    model: DecideOptions,
    cluster: "Cluster | None",
    works: "Sequence[Work]",
    out: Path,
    shard: "Shard | None" = None,
    on_error: "Callable[[Work, Exception], None] | None" = None,
) -> "list[RunResult]":
    """Run one model on benchmarks, here or on a cluster, and return the result of each cell.

    The model is loaded only if a cell lacks records. With `on_error`, a cell's error is passed to
    it and the other cells run; without it, the first error is raised.
    """
    results: dict[str, RunResult] = {}
    incomplete: list[Work] = []

    @contextmanager
    def attempt(*attempted: "Work") -> Iterator[None]:
        try:
            yield
        except Exception as error:
            if on_error is None:
                raise
            for work in attempted:
                on_error(work, error)

    for work in works:
        with attempt(work):
            if (result := _finished(model, work, out, shard)) is None:
                incomplete.append(work)
            else:
                results[work.name] = result
    if incomplete and cluster is not None:
        with attempt(*incomplete):
            results |= _on_cluster(cluster, model, incomplete, out)
    elif incomplete:
        with attempt(*incomplete):
            decider = load_decider(model)
            for work in incomplete:
                with attempt(work):
                    results[work.name] = evaluated(decider, work, out, shard)
    return [results[work.name] for work in works if work.name in results]


def _finished(
    model: DecideOptions, work: "Work", out: Path, shard: "Shard | None"
) -> "RunResult | None":
    """Return the result of a complete cell without importing torch; None if it is incomplete."""
    with waiting("reading records"):
        from lastword.lab.evaluation.runner import finished
        from lastword.records.store import WHOLE

        result = finished(model, work, out, shard or WHOLE)
    if result is not None:
        _warn_of(result)
    return result


def _on_cluster(
    cluster: "Cluster", model: DecideOptions, works: "Sequence[Work]", out: Path
) -> "dict[str, RunResult]":
    """Run the cells in Ray's workers, which print lost workers to stdout, which is for results."""
    from lastword.engines.ray import evaluate_shards

    with redirect_stdout(sys.stderr), waiting(f"running {model.label} in Ray workers"):
        results = evaluate_shards(cluster, partial(load_decider, model), works, out)
    for result in results:
        _warn_of(result)
    return {work.name: result for work, result in zip(works, results, strict=True)}


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
    _warn_of(result)
    return result


def _warn_of(result: "RunResult") -> None:
    if not result.items:
        say(f"lastword: no items of {result.cell} fall to this shard")
    for torn in result.set_aside:
        say(f"lastword: a torn part was set aside as {torn}, done again")
    if result.failed:
        say(
            f"lastword: {result.failed} of {result.items} records are of items that failed, in "
            f"{result.cell}; the column `error` says why"
        )


def _summary(cells: Sequence[Path], as_json: bool) -> None:
    """Print the cells' metrics as a table, with verdicts in words; or both as JSON."""
    with waiting("reading records"):
        from lastword.lab.evaluation.controls import controls
        from lastword.lab.evaluation.statistics import judge, verdict_lines
        from lastword.lab.report.tables import cells_table
        from lastword.records.cells import read_cells, summarise

        records = [record for cell in dict.fromkeys(cells) for record in read_cells(cell)]
        tests = [controls(cell) for cell in records]
        verdicts = judge(records, [test.objection for test in tests])
        rows = list(zip(records, verdicts, tests, strict=True))
    for text in (text for cell in records for text in cell.records["error"].dropna().head(1)):
        say(f"lastword: the first that failed: {text}")
    if as_json:
        typer.echo(to_json([_as_json(*row) for row in rows]))
        return
    show_tables([cells_table([summarise(cell) for cell in records])], None)
    for _, verdict, control in rows:
        for line in verdict_lines(verdict, control.sentence):
            typer.echo(printable(line))


def _as_json(cell: "Cell", verdict: "Judgement", control: "Controls") -> dict[str, Any]:
    from lastword.records.cells import summarise

    summary = summarise(cell)
    content = vars(summary) | {"counts": asdict(summary.counts)}
    sentences = {"verdict": verdict.sentence, "controls": control.to_dict()}
    return content | asdict(verdict) | sentences


def _show_prompt(model: DecideOptions, work: "Work") -> None:
    """Print the first item: its prompt as the model reads it, and its candidates."""
    from lastword.text.chat import chat_prompt, templated

    item, chat = work.dataset.items(work.template)[0], model.chat
    prompt = item.prompt
    if item.messages is not None:
        prompt = templated(item.messages, load_tokenizer(model), chat)
    elif chat is not None:
        prompt = chat_prompt(prompt, load_tokenizer(model), chat)
    typer.echo(f"{work.template.name} (version {work.template.version}), item {item.id}\n")
    typer.echo("\n".join(map(printable, prompt.split("\n"))))
    for candidate in item.candidates:
        typer.echo(f"- {printable(candidate)}")
