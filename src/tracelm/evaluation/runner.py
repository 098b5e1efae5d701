"""Runner: a model over a benchmark, group by group, into the store.

`prepare` says what is to be done, `compute` does one group and touches no disk, `collect` keeps the
parts that are missing as they come. `execute` is all three in one process; an engine that spreads
the work calls `prepare` and `part` in its workers and `collect` where the records are kept.
"""

import platform
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tracelm.benchmarks import Dataset, Template
from tracelm.errors import ItemError, NonFiniteError, RecordError
from tracelm.evaluation import store
from tracelm.evaluation.certification import template_name
from tracelm.evaluation.record import Place, Row, failure, record
from tracelm.evaluation.store import Run, RunInfo, Shard
from tracelm.files.strict_json import strict
from tracelm.rule.decision import Decision
from tracelm.text.items import Blind, Item
from tracelm.weights.identity import folder_digest, model_name

if TYPE_CHECKING:
    from tracelm.methods.contract import Method
    from tracelm.text.tokens import Encoded
    from tracelm.tracer import Tracer

# Versions on which numbers depend: records of different ones do not stand in one cell.
_PACKAGES = ("tracelm", "torch", "transformers", "tokenizers")


@dataclass(frozen=True)
class Job:
    """One cell: a model on a benchmark under a template.

    Attributes:
        benchmark: The benchmark's name, with `@template` where that is not its default.
        items: The items, in the benchmark's order.
        kinds: The metric that each is for; None for all.
        encoded: Each item's tokens, or why it has none.
        info: What `run.json` says, with the plan: groups of places, items without tokens first.
        methods: TRACE's peers that score the items too, by name.
        blind: What is read of the items with the question left out.
    """

    benchmark: str
    items: tuple[Item, ...]
    kinds: tuple[str | None, ...]
    encoded: tuple["Encoded | ItemError", ...]
    info: RunInfo
    methods: "Mapping[str, Method]" = field(default_factory=dict)
    blind: Blind = "base"

    def cell(self, out: Path) -> Path:
        """Folder of the cell under a root."""
        return store.cell_folder(out, self.info["model"], self.benchmark)


@dataclass(frozen=True)
class Part:
    """The records of one group, as the bytes of their file.

    Attributes:
        group: Number of the group in the plan.
        content: The Parquet file.
        items: How many records it holds.
        failed: How many of them are of items that failed.
    """

    group: int
    content: bytes
    items: int
    failed: int


@dataclass(frozen=True)
class RunResult:
    """What one start of a job left.

    Attributes:
        cell: Folder of the cell.
        items: How many items this start was for (a shard's, where it was one).
        resumed: How many of them an earlier start had done.
        failed: How many of them failed, now or earlier.
        set_aside: Torn parts that were renamed and done again.
    """

    cell: Path
    items: int
    resumed: int
    failed: int
    set_aside: tuple[Path, ...]


def prepare(
    tracer: "Tracer",
    dataset: Dataset,
    template: Template,
    *,
    blind: Blind = "base",
    methods: "Mapping[str, Method] | None" = None,
) -> Job:
    """What a cell needs computed: its items as tokens, in groups, and the record of its settings.

    Args:
        tracer: The model.
        dataset: The benchmark's examples.
        template: Makes the prompts.
        blind: What is read with the question left out: `base` the question-blind baseline, `all`
            every depth and T too, `none` nothing.
        methods: TRACE's peers that score the items too, by name (`tracelm.methods.resolve`).

    Raises:
        InputError: The template does not render, or the chat template refuses a prompt.
        CertificateError: The tracer's certificate is for another template.
    """
    if tracer.certificate is not None:
        tracer.certificate.check_template(template_name(template.to_dict()))
    items = dataset.items(template, blind=blind != "none")
    encoded = tracer.encode(items)
    benchmark = label(dataset, template)
    described = tracer.describe() | _conversation(tracer, items)
    info = {
        "schema": store.SCHEMA,
        **described,
        "model": model_name(described["model"]),
        "weights": folder_digest(Path(described["model"]).expanduser()),
        "benchmark": benchmark,
        "dataset": {"name": dataset.benchmark.name, **dataset.to_dict()},
        "template": template.to_dict(),
        "blind": blind,
        "methods": {name: method.aggregation for name, method in (methods or {}).items()},
        "items": len(items),
        "packages": {name: version(name) for name in _PACKAGES},
        "machine": _machine(),
        "plan": store.plan_lines(_plan(tracer, encoded)),
    }
    kinds = tuple(example.kind for example in dataset.examples)
    encoded_items = tuple(encoded)
    return Job(benchmark, tuple(items), kinds, encoded_items, strict(info), methods or {}, blind)


def _conversation(tracer: "Tracer", items: Sequence[Item]) -> dict[str, Any]:
    """The chat template as `describe` has it, where items bring conversations that it writes."""
    from tracelm.text.tokens import Chat, describe_chat

    if all(item.messages is None for item in items):
        return {}
    return {"chat": describe_chat(tracer.tokenizer, tracer.chat or Chat())}


def compute(tracer: "Tracer", job: Job, group: int, places: Sequence[int]) -> list[Row]:
    """The records of one group of the plan, in its order.

    A group that meets logits that are not finite is done again item by item, so that only the items
    that have them fail.

    Args:
        tracer: The model.
        job: What is run.
        group: Number of the group in the plan.
        places: Its items.
    """
    where = {p: Place(job.benchmark, job.kinds[p], p, group) for p in places}
    known = {p: e for p in places if not isinstance(e := job.encoded[p], ItemError)}
    start = time.perf_counter()
    decided = _decide(tracer, known, job)
    seconds = time.perf_counter() - start
    tokens = {p: _tokens(e) for p, e in known.items()}
    share = seconds / max(sum(tokens.values()), 1)
    rows = []
    for place in places:
        answer = decided.get(place, job.encoded[place])
        if isinstance(answer, Decision):
            rows.append(record(where[place], known[place], answer, share * tokens[place]))
        else:
            rows.append(failure(where[place], job.items[place], str(answer)))
    return rows


def part(tracer: "Tracer", job: Job, group: int, places: Sequence[int]) -> Part:
    """What `compute` gives, ready to be kept."""
    rows = compute(tracer, job, group, places)
    failed = sum(row["error"] is not None for row in rows)
    return Part(group, store.serialise(rows), len(rows), failed)


def execute(
    tracer: "Tracer",
    job: Job,
    out: Path,
    *,
    shard: Shard | None = None,
    max_failures: int | None = None,
    advance: Callable[[int], None] | None = None,
) -> RunResult:
    """Do what the cell lacks and keep it, group by group; started again, it goes on.

    Args:
        tracer: The model.
        job: What is run.
        out: Root of the cells.
        shard: Which part of the plan is done here; None for all.
        max_failures: Stop where more items than this have failed; None for no limit.
        advance: Told how many items are done, at the start and after every group.

    Raises:
        RecordError: The cell holds another run, the disk refuses, or too many items failed.
        RunLockedError: Another process does the same.
    """

    def parts(run: Run) -> Iterable[Part]:
        plan = run.plan
        return (part(tracer, job, group, plan[group]) for group in run.pending)

    return collect(job.info, out, parts, shard=shard, max_failures=max_failures, advance=advance)


def collect(
    info: RunInfo,
    out: Path,
    parts: Callable[[Run], Iterable[Part]],
    *,
    shard: Shard | None = None,
    max_failures: int | None = None,
    advance: Callable[[int], None] | None = None,
) -> RunResult:
    """Keep the parts that a cell lacks, as they come and in any order.

    Args:
        info: What is run.
        out: Root of the cells.
        parts: Makes the pending parts of a run, one by one, each when it is asked for.
        shard: Which part of the plan is done here; None for all.
        max_failures: Stop where more items than this have failed; None for no limit.
        advance: Told how many items are done, at the start and after every group.

    Raises:
        RecordError: The cell holds another run, the disk refuses, or too many items failed.
        RunLockedError: Another process does the same.
    """
    cell = store.cell_folder(out, info["model"], info["benchmark"])
    with Run(cell, info, shard) as run:
        plan = run.plan
        resumed = done = sum(len(plan[g]) for g in run.done)
        failed = sum(_count_failed(run.folder / store.part_name(g)) for g in run.done)
        if advance is not None:
            advance(resumed)
        _stop_above(max_failures, failed, run.folder)
        for made in parts(run):
            run.keep(made.group, made.content)
            done, failed = done + made.items, failed + made.failed
            if advance is not None:
                advance(made.items)
            _stop_above(max_failures, failed, run.folder)
        return RunResult(run.cell, done, resumed, failed, tuple(run.set_aside))


def label(dataset: Dataset, template: Template) -> str:
    """The benchmark as records and folders name it: `truthfulqa`, `truthfulqa@own6`."""
    benchmark = dataset.benchmark
    if template.name.startswith("user/"):
        return f"{benchmark.name}@user-{template.variant}"
    if template.variant == benchmark.default_variant:
        return benchmark.name
    return f"{benchmark.name}@{template.variant}"


def _plan(tracer: "Tracer", encoded: "Sequence[Encoded | ItemError]") -> list[list[int]]:
    """Groups of places; items without tokens are a group of their own, the first."""
    failed = [p for p, e in enumerate(encoded) if isinstance(e, ItemError)]
    known = [(p, e) for p, e in enumerate(encoded) if not isinstance(e, ItemError)]
    groups = tracer.plan([e for _, e in known]) if known else []
    return [*([failed] if failed else []), *([known[i][0] for i in group] for group in groups)]


def _decide(
    tracer: "Tracer", encoded: "dict[int, Encoded]", job: Job
) -> dict[int, Decision | NonFiniteError]:
    """Decisions by place, or why there is none."""
    if not encoded:
        return {}
    try:
        decisions = tracer.decide(list(encoded.values()), "all", job.methods, blind=job.blind)
        return dict(zip(encoded, decisions, strict=True))
    except NonFiniteError as error:
        if len(encoded) == 1:
            return dict.fromkeys(encoded, error)
    answers: dict[int, Decision | NonFiniteError] = {}
    for place, one in encoded.items():
        answers |= _decide(tracer, {place: one}, job)
    return answers


def _tokens(encoded: "Encoded") -> int:
    return encoded.prompt_tokens + sum(encoded.candidate_tokens)


def _count_failed(part: Path) -> int:
    column = store.read_part(part)["error"]
    return int(len(column) - column.null_count)


def _stop_above(most: int | None, failed: int, folder: Path) -> None:
    if most is not None and failed > most:
        raise RecordError(
            f"stopped: {failed} items failed, more than the {most} of --max-failures; "
            f"{folder} keeps what was done, their `error` says why"
        )


def _machine() -> dict[str, str]:
    return {"system": platform.platform(), "python": platform.python_version()}
