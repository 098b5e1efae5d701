"""The place where a command computes, and the options of Ray."""

import os
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from lastword.cli.progress import waiting

if TYPE_CHECKING:
    from lastword.engines.ray import Cluster


@dataclass(frozen=True)
class EngineOptions:
    """The place where the work is done; of Ray, what is left out is as `Cluster` has it."""

    engine: Annotated[
        Literal["local", "ray", "vllm"],
        "This process, workers of Ray, or vLLM in a process of its own.",
    ] = "local"
    address: Annotated[
        str | None,
        "Ray cluster, `auto` for this machine's, `local` to start one; left out, RAY_ADDRESS, else "
        "`local`.",
    ] = None
    workers: Annotated[
        int | None, "Copies of the model on Ray; 1 if left out.", typer.Option(min=1)
    ] = None
    gpus_per_worker: Annotated[
        float | None, "GPUs of each; none if left out, 0.5 shares one.", typer.Option(min=0)
    ] = None
    cpus_per_worker: Annotated[
        float | None, "CPU cores, and threads, of each; 1 if left out.", typer.Option(min=0.01)
    ] = None

    def cluster(self) -> "Cluster | None":
        """Return the cluster that the options name; None for one process.

        Raises:
            typer.BadParameter: Options of Ray without it.
        """
        options = {name: value for name, value in asdict(self).items() if value is not None}
        if options.pop("engine") != "ray":
            for name in options:
                raise typer.BadParameter(f"--{name.replace('_', '-')} needs --engine ray")
            return None
        with waiting("loading Ray"):
            from lastword.engines.ray import Cluster
        return Cluster(**{"address": os.environ.get("RAY_ADDRESS") or "local", **options})
