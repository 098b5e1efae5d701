"""The options of the commands that can spread their work over Ray."""

import os
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from tracelm.cli.progress import waiting

if TYPE_CHECKING:
    from tracelm.engines.ray import Cluster


@dataclass(frozen=True)
class EngineOptions:
    """Where the work is done; what is left out is Ray's own."""

    engine: Annotated[
        Literal["local", "ray"], typer.Option(help="This process, or workers of Ray.")
    ] = "local"
    address: Annotated[
        str | None,
        typer.Option(
            help="Ray cluster, `auto` for this machine's, `local` to start one; left out, "
            "RAY_ADDRESS, else `local`."
        ),
    ] = None
    workers: Annotated[
        int | None, typer.Option(min=1, help="Copies of the model on Ray; 1 if left out.")
    ] = None
    gpus_per_worker: Annotated[
        float | None, typer.Option(min=0, help="GPUs of each; none if left out, 0.5 shares one.")
    ] = None
    cpus_per_worker: Annotated[
        float | None, typer.Option(min=0.01, help="CPU cores, and threads, of each; 1 if left out.")
    ] = None

    def cluster(self) -> "Cluster | None":
        """The cluster that the options name; None for this process.

        Raises:
            typer.BadParameter: Options of Ray without it.
        """
        given = {name: value for name, value in asdict(self).items() if value is not None}
        if given.pop("engine") == "local":
            for name in given:
                raise typer.BadParameter(f"--{name.replace('_', '-')} needs --engine ray")
            return None
        with waiting("loading Ray"):
            from tracelm.engines.ray import Cluster
        return Cluster(**{"address": os.environ.get("RAY_ADDRESS") or "local", **given})
