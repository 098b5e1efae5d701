"""Runner: runs a model on a benchmark and stores the records; a restart continues."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
from lastword.records.store import WHOLE, Run, Shard
from lastword.text.chat import Chat, describe_chat
from lastword.text.items import Item
from lastword.text.prompt_template import template_name

if TYPE_CHECKING:
    from lastword.decide.decider import Decider


@dataclass(frozen=True)
class RunResult:
    """The result of one start of a cell, or of a shard of it.

    An earlier start had done `resumed` of its items; `set_aside` are damaged parts.
    """

    cell: Path
    items: int
    resumed: int
    failed: int
    set_aside: tuple[Path, ...] = ()


def evaluate(
    decider: "Decider",
    work: Work,
    out: Path,
    shard: Shard = WHOLE,
    advance: Callable[[int], None] = lambda done: None,
) -> RunResult:
    """Compute and store the missing records of a cell; a restart continues.

    `advance` is called with the number of items done, at the start and after every group.

    Raises:
        InputError: A template cannot be rendered, or the answers depend on the order of items.
        CertificateError: The decider's certificate is for another template.
        RecordError: The cell has another run, or the disk fails.
        RunLockedError: Another process runs the same cell.
    """
    from lastword.decide.recording import records_of  # imports torch
    from lastword.methods.contract import require_pure

    require_pure(decider.correction)
    if decider.certificate is not None:
        decider.certificate.check_template(template_name(work.template.to_dict()))
    needs = [decider.correction.needs, *(method.needs for method in work.methods.values())]
    items = work.dataset.items(
        work.template,
        blind=work.blind != "none" or any(n.blind for n in needs),
        content_free=any(n.content_free for n in needs),
    )
    info = run_info(decider, work, items)
    kinds = [example.kind for example in work.dataset.examples]
    scope = replace(decider.scope("all", work.blind, work.methods), readings=True)
    with Run(cell_folder(out, info["model"], work.name), info, shard) as run:
        resumed = len(run.failed)
        advance(resumed)
        run.fill(records_of(decider, items, run.missing, scope, work.name, kinds), advance)
        return _result(run, resumed)


def run_info(decider: "Decider", work: Work, items: Sequence[Item]) -> RunInfo:
    """Return the content of a cell's `run.json`."""
    described = decider.describe()
    if any(item.messages is not None for item in items):
        chat = decider.tracer.chat or Chat()
        described |= {"chat": describe_chat(decider.tracer.tokenizer, chat)}
    info: RunInfo = strict(
        {
            **described,
            "model": model_name(described["model"]),
            "weights": decider.tracer.digests or None,
            **_settings(work),
            "machine": machine(),
        }
    )
    return info


def finished(options: LoadOptions, work: Work, out: Path, shard: Shard = WHOLE) -> RunResult | None:
    """Return the result of a start that has nothing to do, without loading the model.

    The result is None if there is work, or if only the model can show that there is none.
    """
    cell = cell_folder(out, model_name(options.alias or options.label), work.name)
    if not (cell / RUN_FILE).is_file():
        return None
    info = read_run(cell)
    settings = _settings(work)
    # Settings say which benchmark is run how. The digest of the options says on which weights,
    # without reading them; None means that only the loaded model can tell.
    same = not differences({name: info.get(name) for name in settings}, settings)
    if not same or info.get("asked") is None or info["asked"] != load_digest(options):
        return None
    run = Run(cell, info, shard)
    return None if run.look() or run.missing else _result(run, len(run.failed))


def _result(run: Run, resumed: int) -> RunResult:
    failed = sum(run.failed.values())
    return RunResult(run.cell, len(run.failed), resumed, failed, tuple(run.set_aside))


def _settings(work: Work) -> dict[str, Any]:
    return work.describe() | {"packages": packages()}
