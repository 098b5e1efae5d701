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


def uncertain_branches(infos: Iterable[RunInfo]) -> list[str]:
    """Say of which models the readings of I(M) lie on both sides of tau_I, a sentence each."""
    told = {}
    for run in infos:
        values = [value for value in (run.get("invariant_readings") or {}).values() if value]
        tau_I = run["theta"]["tau_I"]
        if len({value > tau_I for value in values}) > 1:
            told[run["model"]] = (
                f"{run['model']}: the readings of I(M) lie on both sides of tau_I = {tau_I:g} "
                f"({min(values):.2f} to {max(values):.2f}), so the scalar branch depends on them"
            )
    return list(told.values())


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
