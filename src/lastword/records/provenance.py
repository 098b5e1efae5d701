"""Provenance: under which Theta records were made, and by what."""

from collections.abc import Iterable

from lastword.errors import RecordError
from lastword.files.folder import Folder, locate
from lastword.records.info import RunInfo, read_runs
from lastword.records.parts import missing_places
from lastword.rule.theta import Theta


def one_theta(runs: Iterable[RunInfo]) -> Theta:
    """Return the Theta that all runs share.

    Raises:
        RecordError: They were made under different ones.
        ThetaError: A `run.json` with a Theta that this version does not know.
    """
    thetas = {f"{run['model']} on {run['benchmark']}": run["theta"] for run in runs}
    (first, theta), *rest = [
        (name, Theta.from_dict(constants)) for name, constants in thetas.items()
    ]
    for name, other in rest:
        if other != theta:
            raise RecordError(f"{first} and {name} have different Thetas; ablate them apart")
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
