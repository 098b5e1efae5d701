"""Settings: under which Theta the records of a folder were made, and of how much of a benchmark."""

from collections.abc import Mapping
from dataclasses import dataclass

from tracelm.errors import RecordError
from tracelm.evaluation.store import RunInfo, find_cells, missing_places, read_run
from tracelm.files.folder import Folder, locate
from tracelm.theta import Theta

Name = tuple[str, str]


@dataclass(frozen=True)
class Extent:
    """How much of its benchmark a cell is.

    Attributes:
        questions: How many the benchmark has.
        asked: How many of them the run was for.
        records: How many records it leaves once it is finished.
    """

    questions: int
    asked: int
    records: int


def read_thetas(path: str | Folder) -> dict[Name, Theta]:
    """The Theta of every cell at or under a path, by (model, benchmark).

    Raises:
        RecordError: No records, or a `run.json` that cannot be read.
        ThetaError: A `run.json` with a Theta that this version does not know.
    """
    runs = [read_run(cell) for cell in find_cells(locate(path))]
    return {(run["model"], run["benchmark"]): Theta.from_dict(run["theta"]) for run in runs}


def read_extents(path: str | Folder) -> dict[Name, Extent]:
    """How much of its benchmark each cell at or under a path is, where its run says so.

    Raises:
        RecordError: No records, or a `run.json` that cannot be read.
    """
    runs = [read_run(cell) for cell in find_cells(locate(path))]
    return {
        (run["model"], run["benchmark"]): Extent(
            questions,
            min(questions, run["dataset"]["limit"] or questions),
            run["items"],
        )
        for run in runs
        if (questions := run["dataset"].get("questions")) is not None
    }


def read_engines(path: str | Folder) -> dict[Name, str]:
    """What computed each cell at or under a path: `vllm 0.32.0, bfloat16, fp8`.

    Raises:
        RecordError: No records, or a `run.json` that cannot be read.
    """
    runs = [read_run(cell) for cell in find_cells(locate(path))]
    return {(run["model"], run["benchmark"]): _engine(run) for run in runs}


def _engine(run: RunInfo) -> str:
    """Engine, version, dtype and quantisation, of what a run says of them."""
    own = {"name": "transformers", "version": run["packages"]["transformers"]}
    engine = run.get("engine") or own
    told = (f"{engine['name']} {engine['version']}", run["dtype"], run.get("quantisation"))
    return ", ".join(part for part in told if part is not None)


def one_theta(thetas: Mapping[Name, Theta]) -> Theta:
    """The Theta that all cells share.

    Raises:
        RecordError: They were made under different ones.
    """
    (first, theta), *rest = thetas.items()
    for name, other in rest:
        if other != theta:
            raise RecordError(
                f"{' on '.join(first)} and {' on '.join(name)} were run under different Thetas; "
                "ablate them apart"
            )
    return theta


def unfinished(path: str | Folder) -> list[str]:
    """One sentence for every cell at or under a path that lacks records.

    Raises:
        RecordError: No records, or a `run.json` that cannot be read.
    """
    said = []
    for cell in find_cells(locate(path)):
        run, missing = read_run(cell), missing_places(cell)
        if missing:
            said.append(
                f"{run['model']} on {run['benchmark']} is not finished: {len(missing)} of "
                f"{run['items']} items are missing; start `tracelm eval` again"
            )
    return said
