"""Makes the records of a model's answers to labelled items, in memory and in a folder."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from lastword.decide.decider import Decider
from lastword.decide.recording import records_of
from lastword.decide.tracer import Tracer
from lastword.files.strict_json import strict
from lastword.methods import resolve
from lastword.methods.contract import Method
from lastword.model.weights.identity import model_name
from lastword.records.cells import Cell, cell_of, read_cells
from lastword.records.columns import Row
from lastword.records.info import SCHEMA, RunInfo, cell_folder, machine, packages
from lastword.records.store import Run
from lastword.tryout.material import TryJob

PEERS = ("contextual",)  # methods whose prompts are read besides the model's


def _run_info(decider: Decider, job: TryJob, methods: Mapping[str, Method]) -> RunInfo:
    labels, described = job.asked, decider.describe()
    info: RunInfo = strict(
        {
            **described,
            "model": model_name(described["model"]),
            "weights": decider.tracer.digests or None,
            "schema": SCHEMA,
            "benchmark": labels.run_name(job.template),
            "dataset": {"name": labels.digest_name, "fingerprint": labels.fingerprint},
            "template": job.template.to_dict(),
            "blind": "all",
            "methods": {name: method.aggregation for name, method in methods.items()},
            "items": len(labels.rows),
            "packages": packages(),
            "machine": machine(),
        }
    )
    return info


def answer(
    job: TryJob,
    tracer: Tracer,
    root: Path | None = None,
    advance: Callable[[int], None] = lambda done: None,
) -> Cell:
    """Return the records of the rows that the model answers, read at every depth.

    `root` stores the records, in a folder per run; those in it are not computed again. `advance` is
    called with the number of rows done since the last call.

    Raises:
        RecordError: The folder has another run, or cannot be written.
        RunLockedError: Another process writes to it.
    """
    methods, decider = resolve(PEERS, tracer.facts), Decider(tracer)
    info, items = _run_info(decider, job, methods), job.asked.items(job.template)
    scope = decider.scope("all", "all", methods)

    def groups(places: Sequence[int]) -> Iterator[list[Row]]:
        return records_of(decider, items, places, scope, info["benchmark"])

    if root is None:
        rows: list[Row] = []
        for group in groups(range(len(items))):
            rows += group
            advance(len(group))
        return cell_of(rows, info)
    folder = cell_folder(root, info["model"], info["benchmark"])
    with Run(folder, info) as run:
        advance(len(run.failed))
        run.fill(groups(run.missing), advance)
    return read_cells(folder)[0]
