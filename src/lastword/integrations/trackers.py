"""Trackers: a cell of `lastword eval` as a run of trackio, wandb or mlflow, by their own libraries.

Where a run is kept is the tracker's own matter, and so are its variables (TRACKIO_DIR, WANDB_MODE,
MLFLOW_TRACKING_URI, ...).
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from lastword.files.folder import Folder
    from lastword.records.cells import Summary

Tracker = Literal["trackio", "wandb", "mlflow"]
PROJECT = "lastword"  # what all runs stand under

Log = Callable[
    [Mapping[str, float], int], object
]  # figures, and the records that were done by then

_SETTINGS = (
    "model",
    "revision",
    "benchmark",
    "dtype",
    "head_dtype",
    "quantize",
    "device",
    "attention",
    "depth",
    "vocabulary",
    "invariant",
    "outside_paper",
    "blind",
    "items",
    "created",
)


@dataclass
class Tracked:
    """A run that is open.

    Attributes:
        log: Takes its figures; None where nobody wants them.
        records: How many are done.
    """

    log: Log | None
    records: int = 0

    def advance(self, records: int) -> None:
        """Tell of more records."""
        self.records += records
        if self.log is not None:
            self.log({"records": float(self.records)}, self.records)

    def judge(self, cell: "Folder") -> None:
        """Tell the metrics of a cell.

        Raises:
            RecordError: It has no records.
        """
        if self.log is None:
            return
        from lastword.records.cells import summarise
        from lastword.records.stored import read_cells

        (parted,) = read_cells(cell)
        self.log(metrics(summarise(parted)), self.records)


@contextmanager
def tracked(tracker: Tracker | None, info: Mapping[str, Any]) -> Iterator[Tracked]:
    """A run for a cell, named after it and with its settings; ended with the block.

    Args:
        tracker: Whose; None for nobody's.
        info: What the cell's `run.json` says.

    Raises:
        ModuleNotFoundError: The tracker's library is not installed.
    """
    if tracker is None:
        yield Tracked(None)
        return
    name = f"{info['model']} on {info['benchmark']}"
    with _OPEN[tracker](name, parameters(info)) as log:
        yield Tracked(log)


def parameters(info: Mapping[str, Any]) -> dict[str, str | int | float]:
    """The settings of a run, flat: the model, its branch, the template, the data, the versions."""
    settings = {name: info.get(name) for name in _SETTINGS}
    theta, invariant = info["theta"], info.get("invariant")
    if invariant is not None:
        settings["branch"] = "mix" if invariant > theta["tau_I"] else "early"
    settings["template"] = info["template"]["name"]
    settings["data"] = info["dataset"].get("fingerprint")
    settings |= {f"version.{name}": version for name, version in info["packages"].items()}
    return {name: value for name, value in settings.items() if value is not None}


def metrics(summary: "Summary") -> dict[str, float]:
    """A cell's figures, flat; what is undefined is left out."""
    plain = {n: value for n, value in vars(summary).items() if isinstance(value, int | float)}
    plain |= {"delta_mc1": summary.delta_mc1, "delta_mc2": summary.delta_mc2}
    plain |= {f"items/{name}": count for name, count in asdict(summary.counts).items()}
    for name in ("fired", "gain_mc1", "gain_mc2"):
        plain |= {f"{name}/{op}": value for op, value in getattr(summary, name).items()}
    return {name: float(value) for name, value in plain.items() if value == value}


@contextmanager
def _trackio(name: str, settings: dict[str, Any]) -> Iterator[Log]:
    import trackio

    trackio.init(project=PROJECT, name=name, config=settings, embed=False)
    try:
        yield lambda figures, records: trackio.log(dict(figures), step=records)
    finally:
        trackio.finish()


@contextmanager
def _wandb(name: str, settings: dict[str, Any]) -> Iterator[Log]:
    import wandb

    with wandb.init(project=PROJECT, name=name, config=settings) as run:
        yield lambda figures, records: run.log(dict(figures), step=records)


@contextmanager
def _mlflow(name: str, settings: dict[str, Any]) -> Iterator[Log]:
    import mlflow

    mlflow.set_experiment(PROJECT)
    with mlflow.start_run(run_name=name):
        mlflow.log_params(settings)
        yield lambda figures, records: mlflow.log_metrics(dict(figures), step=records)


_OPEN: dict[Tracker, Callable[[str, dict[str, Any]], AbstractContextManager[Log]]] = {
    "trackio": _trackio,
    "wandb": _wandb,
    "mlflow": _mlflow,
}
