"""`lastword eval`: models over benchmarks, and the records that everything else is made from."""

import sys
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from dataclasses import asdict, dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lastword.cli.engine import EngineOptions
from lastword.cli.model import Models, load_tokenizer
from lastword.cli.output import printable, say
from lastword.cli.progress import counting, waiting
from lastword.cli.questions import Questions
from lastword.cli.vllm import VllmOptions, loader
from lastword.decide.options import DecideOptions
from lastword.engines.vllm.settings import Settings
from lastword.errors import ItemError
from lastword.files.shorten import counted
from lastword.files.strict_json import to_json
from lastword.model.asked import require_there
from lastword.rule.theta import Theta
from lastword.text.items import Blind, Recorded
from lastword.text.tokens import Chat

if TYPE_CHECKING:
    from lastword.engines import Engine
    from lastword.engines.ray import Cluster
    from lastword.files.folder import Folder
    from lastword.lab.evaluation.runner import RunResult
    from lastword.lab.evaluation.statistics import Judgement
    from lastword.lab.evaluation.work import Extent, Work
    from lastword.lab.report.controls import Controls
    from lastword.records.cells import Cell
    from lastword.records.info import RunInfo
    from lastword.text.items import Item
    from lastword.text.tokens import EncodedItem, Tokenizer

_COUNT_TITLES = {"mc2": "MC2-items"}
_METRICS = "chance MC1-base MC1 ΔMC1 MC2-base MC2 ΔMC2".split()
_EDGE = 4  # tokens shown on each side of where a candidate begins


@dataclass(frozen=True)
class CellOptions:
    """The part of each cell that is done."""

    shard: Annotated[str | None, "i/n, i from 0: do one part of the work of n processes."] = None
    max_failures: Annotated[
        int | None, "Stop a cell where more items fail.", typer.Option(min=0)
    ] = None
    blind: Annotated[
        Blind,
        "What is read with the question left out: base, the question-blind baseline; all, every "
        "depth and T too, so that reports tell what of a gain needs the question; none.",
    ] = "base"
    record: Annotated[
        Recorded,
        "Depths that are read and recorded: all, as reports, ablations and certificates need them, "
        "or decide, those that the decision needs.",
    ] = "all"
    states: Annotated[
        bool, "Keep the model's pooled states of every text, for the probes of compare and report."
    ] = False

    def extent(self) -> "Extent":
        """Return how much of each cell is done here."""
        from lastword.lab.evaluation.work import Extent
        from lastword.records.run import Shard

        shard = None if self.shard is None else Shard.parse(self.shard)
        return Extent(shard, self.max_failures)


@dataclass(frozen=True)
class Where:
    """The place where the models run.

    Attributes:
        cluster: Ray; None for one process.
        vllm: vLLM; None for a model in that process.
    """

    cluster: "Cluster | None"
    vllm: Settings | None

    @cached_property
    def described(self) -> dict[str, Any] | None:
        """Return what a run records of it."""
        return None if self.vllm is None else self.vllm.describe()

    def engine(self, model: DecideOptions) -> "Engine":
        """Return what holds a model; it is loaded when the engine is opened, or by its workers."""
        load = partial(loader(self.vllm), model)
        if self.cluster is not None:
            from lastword.engines.ray import Pool

            return Pool(load, self.cluster)
        from lastword.engines.local import Local

        return Local(load)


def eval_(
    models: Models,
    *,
    benchmark: Annotated[
        list[str],
        "truthfulqa, truthfulqa-binary, halueval-qa, halueval-qa-closed, halueval-sum, "
        "fib, factor, everyday, demo, jsonl:PATH or hf:NAME; repeat it.",
    ],
    out: Annotated[
        str, typer.Option(metavar="PATH", help="Folder for the records; also s3://BUCKET/FOLDER.")
    ] = "runs",
    template: Annotated[list[str] | None, "BENCHMARK/VARIANT or a Jinja file; repeat it."] = None,
    questions: Questions,
    cells: CellOptions,
    engine: EngineOptions,
    vllm: VllmOptions,
    show_prompt: Annotated[bool, "Print the first item as it is read, and stop."] = False,
    as_json: Annotated[bool, "Print the metrics as JSON."] = False,
) -> None:
    """Run models over benchmarks and keep a record of every item; started again, it goes on."""
    where = Where(engine.cluster(), vllm.settings(engine.engine))
    if where.cluster is None:  # other machines have paths of their own
        for model in models:
            require_there(model)
    with waiting("reading the data"):
        cells.extent()  # a shard that is none fails before a model is loaded
        pairs = questions.read(benchmark, template or [])
        from lastword.files.folder import locate
        from lastword.lab.evaluation.work import Work

        works = [
            Work(*pair, cells.blind, record=cells.record, states=cells.states) for pair in pairs
        ]
    if show_prompt:
        for work in works:
            _show_prompt(models[0], work)
        return
    root = locate(out)  # within reach before a model is loaded
    results = [r for m in models for r in _evaluate(m, where, works, root, cells)]
    _summary([result.cell for result in results], as_json)


def _evaluate(
    model: DecideOptions, where: Where, works: "Sequence[Work]", out: "Folder", options: CellOptions
) -> "list[RunResult]":
    results = [_finished(model, where, work, out, options) for work in works]
    if None not in results:
        return [result for result in results if result is not None]
    # Ray tells of lost workers on stdout, which is for results.
    with redirect_stdout(sys.stderr), where.engine(model) as engine:
        pairs = zip(results, works, strict=True)
        return [result or _execute(engine, work, out, options) for result, work in pairs]


def _finished(
    model: DecideOptions, where: Where, work: "Work", out: "Folder", options: CellOptions
) -> "RunResult | None":
    """Find a cell that has all its records, before torch is imported."""
    with waiting("reading records"):
        from lastword.lab.evaluation.runner import finished

        result = finished(model, work, out, options.extent(), where.described)
    if result is not None:
        _warn_of(result)
    return result


def _execute(engine: "Engine", work: "Work", out: "Folder", options: CellOptions) -> "RunResult":
    with waiting("preparing the items"):
        cell = engine.assign(work)
    extent = options.extent()
    parts = 1 if extent.shard is None else extent.shard.count
    return counted_down(cell.info, parts, lambda advance: cell.execute(out, extent, advance))


def counted_down(
    info: "RunInfo", parts: int, execute: "Callable[[Callable[[int], None]], RunResult]"
) -> "RunResult":
    """Run a cell, or one of its parts, with what is left of it on stderr."""
    if info.get("states"):
        size = info["items"] * info["state_bytes"] / 1e6
        say(f"lastword: the states of {info['items']:,} texts take {size:,.1f} MB")
    task = f"{info['model']} on {info['benchmark']}"
    with counting(task, round(info["items"] / parts)) as countdown:
        result = execute(countdown.advance)
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


def _summary(cells: "Sequence[Folder]", as_json: bool) -> None:
    """Print the cells' metrics as a table, and what they amount to in words; or both as JSON."""
    with waiting("reading records"):
        from lastword.lab.evaluation.statistics import judge
        from lastword.lab.report.controls import controls
        from lastword.records.stored import read_cells

        records = [own for cell in dict.fromkeys(cells) for own in read_cells(cell)]
        beside = [controls(cell) for cell in records]
        verdicts = judge(records, [own.objection for own in beside])
        rows = list(zip(records, verdicts, beside, strict=True))
    for text in (text for cell in records for text in cell.records["error"].dropna().head(1)):
        say(f"lastword: the first that failed: {text}")
    if as_json:
        typer.echo(to_json([_as_json(*row) for row in rows]))
        return
    _print_table(records)
    for cell, verdict, control in rows:
        typer.echo(printable(f"{cell.model} on {cell.benchmark}: {verdict.sentence}"))
        if control.sentence:
            typer.echo(printable(f"  {control.sentence}"))


def _as_json(cell: "Cell", verdict: "Judgement", control: "Controls") -> dict[str, Any]:
    from lastword.records.cells import summarise

    summary = summarise(cell)
    content = vars(summary) | {"counts": asdict(summary.counts)}
    sentences = {"verdict": verdict.sentence, "controls": control.to_dict()}
    return content | asdict(verdict) | sentences


def _print_table(cells: "Sequence[Cell]") -> None:
    """Print a line a cell, as wide as its names: what is piped into a file is not folded."""
    lines = _table(cells)
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for names, numbers in ((line[:2], line[2:]) for line in lines):
        left = [n.ljust(w) for n, w in zip(names, widths, strict=False)]
        right = [n.rjust(w) for n, w in zip(numbers, widths[2:], strict=True)]
        typer.echo("  ".join([*left, *right]))


def _table(cells: "Sequence[Cell]") -> list[list[str]]:
    """Make headings, then a line a cell; items are those that MC1 counts, as in the verdicts."""
    from lastword.records.cells import summarise

    summaries = [summarise(cell) for cell in cells]
    paired = any(s.pairs == s.pairs for s in summaries)
    beside = [n for n in ("mc2", "unlabelled") if any(getattr(s.counts, n) for s in summaries)]
    names = ["items", *beside, "failed"]
    titles = [*(_COUNT_TITLES.get(name, name) for name in names), *_METRICS]
    lines = [["model", "benchmark", *titles, *(("pairs-base", "pairs") if paired else ())]]
    lines += [
        [
            printable(s.model),
            printable(s.benchmark),
            *(str(getattr(s.counts, name)) for name in names),
            *(_percent(v) for v in (s.chance, s.mc1_base, s.mc1)),
            _percent(s.delta_mc1, "+"),
            *(_percent(v) for v in (s.mc2_base, s.mc2)),
            _percent(s.delta_mc2, "+"),
            *(_percent(v) for v in ((s.pairs_base, s.pairs) if paired else ())),
        ]
        for s in summaries
    ]
    return lines


def _percent(share: float, sign: str = "") -> str:
    return "–" if share != share else f"{100 * share:{sign}.2f}"


def _show_prompt(model: DecideOptions, work: "Work") -> None:
    """Show the first item: prompt, candidates, and the tokens on both sides of the boundary."""
    from lastword.text.tokens import describe_chat, encode

    tokenizer, chat, theta = load_tokenizer(model), model.chat, model.theta or Theta()
    item = work.dataset.items(work.template)[0]
    (encoded,) = encode([item], tokenizer, theta=theta, context=None, chat=chat)
    if isinstance(encoded, ItemError):
        raise encoded
    name = f"{work.dataset.benchmark.name} {work.dataset.version}, item {item.id}"
    typer.echo(f"{name}, under {work.template.name} (version {work.template.version})")
    if chat is not None or item.messages is not None:
        typer.echo(printable(_chat_line(describe_chat(tokenizer, chat or Chat()))))
    for title, text in (("prompt", item.prompt), ("without the question", item.blind_prompt)):
        if text is not None:
            prompt = _as_read(text, item, tokenizer, chat)
            typer.echo(f"\n--- {title}")
            typer.echo("\n".join(printable(line) for line in prompt.split("\n")))
    typer.echo(f"\n--- candidates, after {encoded.prompt.prompt_tokens} tokens of prompt")
    for place in range(len(item.candidates)):
        typer.echo(printable(_candidate_line(encoded, place, tokenizer)))


def _as_read(text: str, item: "Item", tokenizer: "Tokenizer", chat: Chat | None) -> str:
    """Write a prompt of the item as the model reads it; a conversation has one prompt alone."""
    from lastword.text.tokens import chat_prompt, templated

    if item.messages is not None:
        return templated(item.messages, tokenizer, chat)
    return text if chat is None else chat_prompt(text, tokenizer, chat)


def _chat_line(chat: dict[str, Any]) -> str:
    """Write `chat template 0a1b2c3d, thinking off, system message: Be brief.`."""
    thinking = {
        None: "no thinking",
        "off": "thinking off",
        "open": "the answer begins inside a thought, and the template has no switch for that",
    }
    system = "none" if chat["system"] is None else chat["system"]
    thought = thinking[chat["thinking"]]
    return f"chat template {chat['template']}, {thought}; system message: {system}"


def _candidate_line(encoded: "EncodedItem", place: int, tokenizer: Any) -> str:
    """Write `true  Delhi   (6 tokens: … Ans wer : | ▁ D el …)`."""
    item, boundary = encoded.item, encoded.prompt.boundaries[place]
    pieces = tokenizer.convert_ids_to_tokens(list(encoded.prompt.sequences[place]))
    before, after = pieces[max(0, boundary - _EDGE) : boundary], pieces[boundary:]
    more = " …" if len(after) > _EDGE else ""
    edge = f"… {' '.join(before)} | {' '.join(after[:_EDGE])}{more}"
    truth = "" if item.truthful is None else ("true   " if item.truthful[place] else "false  ")
    return f"{truth}{item.candidates[place]}   ({counted(len(after), 'token')}: {edge})"
