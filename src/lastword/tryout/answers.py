"""Makes the records of a model's answers to labelled items, in memory and in a folder."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from lastword.decide.decider import Decider
from lastword.decide.recording import records_of
from lastword.decide.tracer import Tracer
from lastword.files.strict_json import strict
from lastword.methods.contract import Method
from lastword.model.weights.identity import model_name
from lastword.records.cells import Cell, cell_of, read_cells
from lastword.records.columns import Row
from lastword.records.info import SCHEMA, RunInfo, cell_folder, machine, packages
from lastword.records.store import Run
from lastword.text.prompt_template import Template
from lastword.tryout.labels import Labels


def _run_info(
    decider: Decider, labels: Labels, template: Template, methods: Mapping[str, Method]
) -> RunInfo:
    """Return the run of labelled items on a model, as in `run.json`."""
    described = decider.describe()
    info: RunInfo = strict(
        {
            **described,
            "model": model_name(described["model"]),
            "weights": decider.tracer.digests or None,
            "schema": SCHEMA,
            "benchmark": labels.run_name(template),
            "dataset": {"name": labels.digest_name, "fingerprint": labels.fingerprint},
            "template": template.to_dict(),
            "blind": "all",
            "methods": {name: method.aggregation for name, method in methods.items()},
            "items": len(labels.rows),
            "packages": packages(),
            "machine": machine(),
        }
    )
    return info


def records_folder(root: Path, tracer: Tracer, labels: Labels, template: Template) -> Path:
    """Return the folder in `root` for a model's records of the labelled rows."""
    return cell_folder(root, model_name(tracer.source["model"]), labels.run_name(template))


def answer(
    decider: Decider,
    labels: Labels,
    template: Template,
    methods: Mapping[str, Method],
    root: Path | None = None,
    advance: Callable[[int], None] = lambda done: None,
) -> Cell:
    """Return the records of every labelled row.

    Each row is read at every depth, with and without its text.

    Args:
        decider: The model.
        labels: The labelled rows.
        template: The prompt template.
        methods: Other methods that score the rows.
        root: Folder that stores the records, in a folder per run. Records in it are not computed
            again.
        advance: Called with the number of rows done since the last call.

    Raises:
        RecordError: The folder has another run, or cannot be written.
        RunLockedError: Another process writes to it.
    """
    info, items = _run_info(decider, labels, template, methods), labels.items(template)
    scope = decider.scope("all", "all", methods)

    def groups(places: Sequence[int]) -> Iterator[list[Row]]:
        return records_of(decider, items, places, scope, info["benchmark"])

    if root is None:
        rows: list[Row] = []
        for group in groups(range(len(items))):
            rows += group
            advance(len(group))
        return cell_of(rows, info)
    folder = records_folder(root, decider.tracer, labels, template)
    with Run(folder, info) as run:
        advance(len(run.failed))
        run.fill(groups(run.missing), advance)
    return read_cells(folder)[0]
