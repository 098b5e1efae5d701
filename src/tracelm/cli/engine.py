"""The options of the commands that can spread their work over Ray."""

import os
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from tracelm.cli.progress import waiting

if TYPE_CHECKING:
    from tracelm.engines.ray import Cluster

EngineOption = Annotated[
    Literal["local", "ray"], typer.Option(help="This process, or workers of Ray.")
]
AddressOption = Annotated[
    str | None,
    typer.Option(
        help="Ray cluster, `auto` for this machine's, `local` to start one; left out, RAY_ADDRESS, "
        "else `local`."
    ),
]
WorkersOption = Annotated[
    int | None, typer.Option(min=1, help="Copies of the model on Ray; 1 if left out.")
]
GpusOption = Annotated[
    float | None, typer.Option(min=0, help="GPUs of each; none if left out, 0.5 shares one.")
]
CpusOption = Annotated[
    float | None, typer.Option(min=0.01, help="CPU cores, and threads, of each; 1 if left out.")
]


def read_cluster(
    engine: str,
    address: str | None,
    workers: int | None,
    gpus_per_worker: float | None,
    cpus_per_worker: float | None,
) -> "Cluster | None":
    """The cluster that the options name; None for this process.

    Raises:
        typer.BadParameter: Options of Ray without it.
    """
    asked = {
        "address": address,
        "workers": workers,
        "gpus_per_worker": gpus_per_worker,
        "cpus_per_worker": cpus_per_worker,
    }
    given = {name: value for name, value in asked.items() if value is not None}
    if engine == "local":
        for name in given:
            raise typer.BadParameter(f"--{name.replace('_', '-')} needs --engine ray")
        return None
    with waiting("loading Ray"):
        from tracelm.engines.ray import Cluster
    return Cluster(**{"address": os.environ.get("RAY_ADDRESS") or "local", **given})  # type: ignore[arg-type]
