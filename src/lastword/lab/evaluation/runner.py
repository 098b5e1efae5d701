"""Runner: runs a model on a benchmark, group by group, and stores the records.

`prepare` determines the missing work. Items are encoded and planned one window at a time (`encode`,
`plan_groups`), so that one window is in memory. `part` computes one group, or a piece of
a slow one, without using the disk. `collect` stores the parts as they are computed. `execute` does
everything in one process. A distributed engine calls the others in its workers, and `collect` on
the machine that stores the records.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lastword.decide.pace import Pace
from lastword.decide.recording import paced, plan_groups, record_group
from lastword.errors import ItemError
from lastword.files.strict_json import strict
from lastword.lab.evaluation.work import Work
from lastword.model.digest import load_digest
from lastword.model.options import LoadOptions
from lastword.model.weights.identity import model_name
from lastword.records.info import (
    RUN_FILE,
    RunInfo,
    cell_folder,
    differences,
    machine,
    packages,
    read_run,
)
from lastword.records.parts import serialise
from lastword.records.record import Place, Row
from lastword.records.run import Run, Shard
from lastword.text.chat import Chat, describe_chat
from lastword.text.items import Item
from lastword.text.prompt_template import template_name
from lastword.text.tokens import EncodedItem

if TYPE_CHECKING:
    from lastword.decide.decider import Decider

Batch = dict[int, EncodedItem | ItemError]
WINDOW = 2048  # number of items that are encoded and planned together


@dataclass(frozen=True)
class EvalJob:
    """The work of one cell: a model on a benchmark with a template.

    Attributes:
        work: The benchmark, the template and the extent of reading.
        items: The items, in the benchmark's order.
        info: The content of `run.json` before anything is planned.
    """

    work: Work
    items: tuple[Item, ...]
    info: RunInfo

    def cell(self, out: Path) -> Path:
        """Return the folder of the cell under a root."""
        return cell_folder(out, self.info["model"], self.work.name)


@dataclass(frozen=True)
class RecordPart:
    """Some or all records of one group, as the bytes of their file."""

    group: int
    content: bytes
    items: int


@dataclass(frozen=True)
class RunResult:
    """The result of one start of a job.

    Attributes:
        items: Number of items of this start, which may be those of a shard.
        resumed: Number of these that an earlier start had done.
        failed: Number of these that failed, now or earlier.
        set_aside: Damaged parts that were renamed and computed again.
    """

    cell: Path
    items: int
    resumed: int
    failed: int
    set_aside: tuple[Path, ...]


def prepare(decider: "Decider", work: Work) -> EvalJob:
    """Return the job of a cell: its items, and the record of its settings.

    Raises:
        InputError: The template cannot be rendered, the chat template refuses every prompt, the
            correction's answers depend on the order of items.
        CertificateError: The decider's certificate is for another template.
    """
    from lastword.methods.correction import require_pure  # imports torch

    require_pure(decider.correction)
    if decider.certificate is not None:
        decider.certificate.check_template(template_name(work.template.to_dict()))
    needs = [decider.correction.needs, *(method.needs for method in work.methods.values())]
    items = work.dataset.items(
        work.template,
        blind=work.blind != "none" or any(n.blind for n in needs),
        content_free=any(n.content_free for n in needs),
    )
    described = decider.describe() | _conversation(decider, items)
    info = {
        **described,
        "model": model_name(described["model"]),
        "weights": decider.tracer.digests or None,
        **_settings(work),
        "machine": machine(),
        "plan": [],
    }
    return EvalJob(work, tuple(items), strict(info))


def finished(
    options: LoadOptions,
    work: Work,
    out: Path,
    shard: Shard | None = None,
) -> RunResult | None:
    """Return the result of a start that has nothing to do, without loading the model.

    Returns None if there is work, or if only the model can show that there is none.

    Raises:
        RecordError: The cell is of another schema.
    """
    cell = cell_folder(out, model_name(options.alias or options.label), work.name)
    folder = cell if shard is None else cell / shard.folder
    if not ((cell / RUN_FILE).is_file() and folder.is_dir()):
        return None
    info = read_run(cell)
    settings = {"record": None} | _settings(work)
    # Settings say which benchmark is run how. The digest of the options says on which weights,
    # without reading them; None means that only the loaded model can tell.
    same = not differences({name: info.get(name) for name in settings}, settings)
    if not same or info.get("asked") is None or info["asked"] != load_digest(options):
        return None
    run = Run(cell, info, shard)
    if run.look() or not run.whole:
        return None
    return RunResult(cell, run.records, run.records, run.failed, ())


def _conversation(decider: "Decider", items: Sequence[Item]) -> dict[str, Any]:
    """Return `describe`'s facts of the chat template, if any item is a conversation."""
    if all(item.messages is None for item in items):
        return {}
    return {"chat": describe_chat(decider.tracer.tokenizer, decider.tracer.chat or Chat())}


def window_from(start: int, items: int) -> range:
    """Return the places of the items that are encoded and planned together from `start` on."""
    return range(start, min(start + WINDOW, items))


def encode(decider: "Decider", job: EvalJob, places: Sequence[int]) -> Batch:
    """Return encoded items, or their errors, by index."""
    return dict(zip(places, decider.encode([job.items[p] for p in places]), strict=True))


def compute(decider: "Decider", job: EvalJob, group: int, batch: Batch) -> list[Row]:
    """Return the records of one batch of a group's items, in their order."""
    examples, name = job.work.dataset.examples, job.work.name
    places = {p: Place(name, examples[p].kind, p, group) for p in batch}
    scope = decider.scope(job.work.record, job.work.blind, job.work.methods)
    scope = replace(scope, readings=job.work.record == "all")
    rows = record_group(decider, job.items, places, batch, scope)
    return list(rows.values())


def part(decider: "Decider", job: EvalJob, group: int, batch: Batch, pace: Pace) -> RecordPart:
    """Return the records of a group's first missing items, as many as the pace allows."""
    rows = paced(batch, partial(compute, decider, job, group), pace)
    return RecordPart(group, serialise(rows), len(rows))


def execute(
    decider: "Decider",
    job: EvalJob,
    out: Path,
    shard: Shard | None = None,
    advance: Callable[[int], None] | None = None,
) -> RunResult:
    """Compute and store the missing records of a cell, part by part; a restart continues.

    `advance` is called with the number of items done, at the start and after every part.

    Raises:
        RecordError: The cell has another run, or the disk fails.
        RunLockedError: Another process runs the same cell.
    """

    def parts(run: Run) -> Iterator[RecordPart]:
        pace = Pace()
        window: Batch = {}
        while not run.whole:
            if not run.gaps:
                window = encode(decider, job, window_from(run.plan_size, len(job.items)))
                run.extend(plan_groups(decider, window))
                continue
            group, places = next(iter(run.gaps.items()))  # stored items are removed from it
            if not window.keys() >= {*places}:  # an earlier start has planned them
                window = encode(decider, job, places)
            yield part(decider, job, group, {p: window[p] for p in places}, pace)

    return collect(job.info, out, parts, shard, advance)


def collect(
    info: RunInfo,
    out: Path,
    parts: Callable[[Run], Iterable[RecordPart]],
    shard: Shard | None = None,
    advance: Callable[[int], None] | None = None,
) -> RunResult:
    """Store the missing parts of a cell, in any order.

    `parts` yields them; each is stored before the next one is computed. Other arguments and errors
    are those of `execute`.
    """
    cell = cell_folder(out, info["model"], info["benchmark"])
    with Run(cell, info, shard) as run:
        resumed = run.records
        if advance is not None:
            advance(resumed)
        for part in parts(run):
            run.keep(part.group, part.content)
            if advance is not None:
                advance(part.items)
        return RunResult(run.cell, run.records, resumed, run.failed, tuple(run.set_aside))


def _settings(work: Work) -> RunInfo:
    """Return the fields of `run.json` that do not depend on the model."""
    return work.describe() | {"packages": packages()}
