"""`tracelm eval`: models over benchmarks, and the records that everything else is made from."""

import sys
import time
from collections.abc import Sequence
from contextlib import redirect_stdout
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from tracelm.cli.engine import (
    AddressOption,
    CpusOption,
    EngineOption,
    GpusOption,
    WorkersOption,
    read_cluster,
)
from tracelm.cli.model import ModelOptions, PresetOptions, takes_models
from tracelm.cli.output import printable
from tracelm.cli.progress import waiting
from tracelm.errors import ItemError, ModelError

if TYPE_CHECKING:
    from tracelm.benchmarks import Dataset, Template
    from tracelm.engines import Engine
    from tracelm.engines.ray import Cluster
    from tracelm.evaluation.cells import Cell
    from tracelm.evaluation.runner import Outcome
    from tracelm.evaluation.store import Shard
    from tracelm.text.tokens import Encoded

LINE_SECONDS = 30.0  # between two lines of progress where stderr is no terminal
_EDGE = 4  # tokens shown on each side of where a candidate begins


@takes_models
def eval_(
    models: list[ModelOptions],
    benchmark: Annotated[
        list[str],
        typer.Option(
            help="truthfulqa, truthfulqa-binary, halueval-qa, halueval-qa-closed, halueval-sum, "
            "fib, factor, everyday, demo or jsonl:PATH; repeat it."
        ),
    ],
    preset: Annotated[
        Literal["paper"] | None,
        typer.Option(help="The paper's models, smallest first; what does not fit is skipped."),
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for the records.")] = Path("runs"),
    data: Annotated[
        Path | None,
        typer.Option(help="File or folder of the benchmarks' data; left out, it is the hub."),
    ] = None,
    template: Annotated[
        list[str] | None, typer.Option(help="BENCHMARK/VARIANT or a Jinja file; repeat it.")
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="How many questions.")] = None,
    seed: Annotated[
        int | None, typer.Option(help="Draw the questions of --limit at random.")
    ] = None,
    shard: Annotated[
        str | None, typer.Option(help="i/n, i from 0: do one part of the work of n processes.")
    ] = None,
    max_failures: Annotated[
        int | None, typer.Option(min=0, help="Stop a cell where more items fail.")
    ] = None,
    no_blind: Annotated[
        bool, typer.Option("--no-blind", help="Skip the question-blind baseline.")
    ] = False,
    engine: EngineOption = "local",
    address: AddressOption = None,
    workers: WorkersOption = None,
    gpus_per_worker: GpusOption = None,
    cpus_per_worker: CpusOption = None,
    show_prompt: Annotated[
        bool, typer.Option("--show-prompt", help="Print the first item as it is read, and stop.")
    ] = False,
) -> None:
    """Run models over benchmarks and keep a record of every item; started again, it goes on."""
    if seed is not None and limit is None:
        raise typer.BadParameter("--seed draws a random subset: give its size with --limit")
    cluster = read_cluster(engine, address, workers, gpus_per_worker, cpus_per_worker)
    with waiting("reading the data"):
        from tracelm.evaluation.store import Shard

        part = None if shard is None else Shard.parse(shard)
        work = read_work(benchmark, data, template or [], limit, seed)
    if show_prompt:
        for dataset, chosen in work:
            _show_prompt(models[0], dataset, chosen)
        return
    outcomes = []
    for options in models:
        try:
            # Ray tells of lost workers on stdout, which is for results.
            with redirect_stdout(sys.stderr), _engine(options, cluster) as running:
                outcomes += _evaluate(running, work, out, part, max_failures, blind=not no_blind)
        except ModelError as error:
            if not isinstance(options, PresetOptions):
                raise
            typer.echo(printable(f"tracelm: skipped {options.named}: {error}"), err=True)
    if not outcomes:
        raise ModelError(f"none of the models of the preset {preset} can be run here")
    _summary([outcome.cell for outcome in outcomes])


def read_work(
    names: Sequence[str], data: Path | None, asked: list[str], limit: int | None, seed: int | None
) -> "list[tuple[Dataset, Template]]":
    """Every data set with every template of its own, all of it read and rendered once."""
    from tracelm.benchmarks import find, templates_for

    benchmarks = [find(name) for name in dict.fromkeys(names)]
    templates = templates_for(benchmarks, asked)
    datasets = [b.load(data, limit=limit, seed=seed) for b in benchmarks]
    work = [(d, t) for d in datasets for t in templates[d.benchmark.name]]
    for dataset, template in work:
        dataset.items(template)  # what does not render fails before a model is loaded
    return work


def _engine(options: ModelOptions, cluster: "Cluster | None") -> "Engine":
    """Where the model will be; it is loaded when the engine is opened, or by its workers."""
    if cluster is not None:
        from tracelm.engines.ray import Pool

        return Pool(options.load, cluster)
    from tracelm.engines.local import Local

    return Local(options.load)


def _evaluate(
    engine: "Engine",
    work: "Sequence[tuple[Dataset, Template]]",
    out: Path,
    shard: "Shard | None",
    max_failures: int | None,
    *,
    blind: bool,
) -> "list[Outcome]":
    """One model over all the work."""
    outcomes = []
    for dataset, template in work:
        with waiting("reading tokens"):
            cell = engine.cell(dataset, template, blind=blind)
        info = cell.info
        groups = [g for g in enumerate(info["plan"]) if shard is None or shard.holds(g[0])]
        total = sum(len(line.split()) for _, line in groups)
        with Countdown(f"{info['model']} on {info['benchmark']}", total) as countdown:
            outcome = cell.execute(
                out, shard=shard, max_failures=max_failures, advance=countdown.advance
            )
        say(outcome)
        outcomes.append(outcome)
    return outcomes


def say(outcome: "Outcome") -> None:
    """What people should know of a cell, on stderr."""
    for torn in outcome.set_aside:
        typer.echo(printable(f"tracelm: a torn part was set aside as {torn}, done again"), err=True)
    if outcome.failed:
        typer.echo(
            printable(
                f"tracelm: {outcome.failed} of {outcome.items} items failed in "
                f"{outcome.cell}; their records say why"
            ),
            err=True,
        )


class Countdown:
    """Items done, their rate and the time left, on stderr: live, or a line now and then."""

    def __init__(self, task: str, total: int) -> None:
        """Name what is counted, out of how many."""
        from rich.console import Console
        from rich.progress import MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        self._console = Console(stderr=True)
        self._bar = Progress(
            *Progress.get_default_columns()[:2],
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]}"),
            TimeRemainingColumn(),
            console=self._console,
            disable=not self._console.is_terminal,
        )
        self._line = self._bar.add_task(printable(task), total=total, rate="")
        self._task, self._total, self._done, self._resumed = printable(task), total, 0, -1
        self._start = self._said = time.monotonic()

    def __enter__(self) -> "Countdown":
        """Show the bar."""
        self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Take it away."""
        self._bar.stop()

    def advance(self, items: int) -> None:
        """Count items; the first call counts those of an earlier start, which took no time."""
        self._done += items
        if self._resumed < 0:
            self._resumed, self._start = self._done, time.monotonic()
        self._bar.update(self._line, completed=self._done, rate=f"{self._rate():.3g} items/s")
        if not self._console.is_terminal and time.monotonic() - self._said > LINE_SECONDS:
            self._said = time.monotonic()
            typer.echo(self._words(), err=True)

    def _rate(self) -> float:
        return (self._done - self._resumed) / max(time.monotonic() - self._start, 1e-6)

    def _words(self) -> str:
        rate = self._rate()
        left = (self._total - self._done) / rate if rate else float("nan")
        return (
            f"{self._task}: {self._done} of {self._total} items, {rate:.3g} items/s, "
            f"{left:.0f} s left"
        )


def _summary(cells: Sequence[Path]) -> None:
    """The cells' metrics as a table, and what they amount to in words."""
    with waiting("reading records"):
        import pandas as pd

        from tracelm.evaluation.cells import cells as part_cells
        from tracelm.evaluation.statistics import verdicts
        from tracelm.evaluation.store import load_records

        parted = part_cells(pd.concat([load_records(cell) for cell in dict.fromkeys(cells)]))
        judged = verdicts(parted)
    _print_table(parted)
    for verdict in judged:
        typer.echo(printable(f"{verdict.model} on {verdict.benchmark}: {verdict.sentence}"))


def _print_table(cells: "Sequence[Cell]") -> None:
    """One line a cell, as wide as its names: what is piped into a file is not folded."""
    from tracelm.evaluation.cells import summarise

    summaries = [summarise(cell) for cell in cells]
    paired = any(s.pairs == s.pairs for s in summaries)
    titles = "items failed MC1-base MC1 change MC2-base MC2 change scalar".split()
    lines = [["model", "benchmark", *titles, *(("pairs-base", "pairs") if paired else ())]]
    for cell, s in zip(cells, summaries, strict=True):
        lines.append(
            [
                printable(s.model),
                printable(s.benchmark),
                str(len(cell.items) + s.failed),
                str(s.failed),
                *(_percent(v) for v in (s.mc1_base, s.mc1)),
                _percent(s.delta_mc1, "+"),
                *(_percent(v) for v in (s.mc2_base, s.mc2)),
                _percent(s.delta_mc2, "+"),
                *(_percent(v) for v in (s.scalar, s.pairs_base, s.pairs)[: 3 if paired else 1]),
            ]
        )
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for names, numbers in ((line[:2], line[2:]) for line in lines):
        left = [n.ljust(w) for n, w in zip(names, widths, strict=False)]
        right = [n.rjust(w) for n, w in zip(numbers, widths[2:], strict=True)]
        typer.echo("  ".join([*left, *right]))


def _percent(share: float, sign: str = "") -> str:
    return "–" if share != share else f"{100 * share:{sign}.2f}"


def _show_prompt(options: ModelOptions, dataset: "Dataset", template: "Template") -> None:
    """The first item: its prompt, its candidates, and the tokens on both sides of the boundary."""
    from tracelm.text.tokens import Chat, chat_prompt, describe_chat, encode

    tokenizer = options.load_tokenizer()
    chat = Chat(options.system) if options.chat_template else None
    item = dataset.items(template)[0]
    (encoded,) = encode([item], tokenizer, theta=options.read_theta(), context=None, chat=chat)
    if isinstance(encoded, ItemError):
        raise encoded
    name = f"{dataset.benchmark.name} {dataset.version}, item {item.id}"
    typer.echo(f"{name}, under {template.name} (version {template.version})")
    if chat is not None:
        typer.echo(printable(_chat_line(describe_chat(tokenizer, chat))))
    for title, text in (("prompt", item.prompt), ("without the question", item.blind_prompt)):
        if text is not None:
            shown = text if chat is None else chat_prompt(text, tokenizer, chat)
            typer.echo(f"\n--- {title}")
            typer.echo("\n".join(printable(line) for line in shown.split("\n")))
    typer.echo(f"\n--- candidates, after {encoded.prompt_tokens} tokens of prompt")
    for place in range(len(item.candidates)):
        typer.echo(printable(_candidate_line(encoded, place, tokenizer)))


def _chat_line(chat: dict[str, Any]) -> str:
    """`chat template 0a1b2c3d, thinking off, system message: Be brief.`."""
    thinking = {
        None: "no thinking",
        "off": "thinking off",
        "open": "the answer begins inside a thought, and the template has no switch for that",
    }
    system = "none" if chat["system"] is None else chat["system"]
    said = thinking[chat["thinking"]]
    return f"chat template {chat['template']}, {said}; system message: {system}"


def _candidate_line(encoded: "Encoded", place: int, tokenizer: Any) -> str:
    """`true  Delhi   (6 tokens: … Ans wer : | ▁ D el …)`."""
    item, boundary = encoded.item, encoded.boundaries[place]
    pieces = tokenizer.convert_ids_to_tokens(list(encoded.sequences[place]))
    before, after = pieces[max(0, boundary - _EDGE) : boundary], pieces[boundary:]
    more = " …" if len(after) > _EDGE else ""
    edge = f"… {' '.join(before)} | {' '.join(after[:_EDGE])}{more}"
    truth = "" if item.truthful is None else ("true   " if item.truthful[place] else "false  ")
    return f"{truth}{item.candidates[place]}   ({len(after)} tokens: {edge})"
