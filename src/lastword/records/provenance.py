"""Provenance: under which Theta records were made, by what, and of how much of a benchmark."""

from collections.abc import Iterable
from dataclasses import dataclass

from lastword.errors import RecordError
from lastword.files.folder import Folder, locate
from lastword.records.info import RunInfo, read_runs
from lastword.records.parts import missing_places
from lastword.theta import Theta

Name = tuple[str, str]


@dataclass(frozen=True)
class Extent:
    """Say how much of its benchmark a cell is.

    Attributes:
        questions: How many the benchmark has.
        sample: How many of them the run was for.
        records: How many records it leaves once it is finished.
    """

    questions: int
    sample: int
    records: int


def thetas(runs: Iterable[RunInfo]) -> dict[Name, Theta]:
    """The Theta of every run, by (model, benchmark).

    Args:
        runs: As `info.read_runs` reads them, here and below.

    Raises:
        ThetaError: A `run.json` with a Theta that this version does not know.
    """
    return {_name(run): Theta.from_dict(run["theta"]) for run in runs}


def extents(runs: Iterable[RunInfo]) -> dict[Name, Extent]:
    """Return how much of its benchmark each run is, where it says so."""
    return {
        _name(run): Extent(
            questions,
            min(questions, run["dataset"]["limit"] or questions),
            run["items"],
        )
        for run in runs
        if (questions := run["dataset"].get("questions")) is not None
    }


def engines(runs: Iterable[RunInfo]) -> dict[Name, str]:
    """Return what computed each run: `vllm 0.32.0, bfloat16, fp8`; the unsaid is left out."""
    return {_name(run): _engine(run) for run in runs}


def _engine(run: RunInfo) -> str:
    """Join engine, version, dtype, quantisation and correction, as far as a run says them."""
    version = run.get("packages", {}).get("transformers")
    engine = run.get("engine") or {"name": "transformers", "version": version}
    name = " ".join(filter(None, (engine["name"], engine["version"])))
    settings = run.get("dtype"), run.get("quantisation"), run.get("correction")
    return ", ".join(filter(None, (name, *settings)))


def _name(run: RunInfo) -> Name:
    return run["model"], run["benchmark"]


def one_theta(runs: Iterable[RunInfo]) -> Theta:
    """The Theta that all runs share.

    Raises:
        RecordError: They were made under different ones.
    """
    (first, theta), *rest = thetas(runs).items()
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
    sentences = []
    for cell, run in read_runs(locate(path)).items():
        if gaps := missing_places(cell):
            sentences.append(
                f"{run['model']} on {run['benchmark']} is not finished: {len(gaps)} of "
                f"{run['items']} items are missing; start `lastword eval` again"
            )
    return sentences
