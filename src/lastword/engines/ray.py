"""Ray: runs the shards of an evaluation on one machine or many, each with one copy of the model.

The workers write to one folder, which all machines share, as with `--shard i/n`.
"""

import logging
import math
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ray
from ray.exceptions import RayError, RayTaskError

from lastword.errors import InputError, RecordError, TraceError, one_line
from lastword.lab.evaluation.runner import RunResult, evaluate
from lastword.lab.evaluation.work import Work
from lastword.records.store import Shard, missing_places

if TYPE_CHECKING:
    from lastword.decide.decider import Decider


_SPARE = 2  # CPUs for reading and writing; if the workers have all CPUs, nothing is ever read


@dataclass(frozen=True)
class Cluster:
    """A Ray cluster, and the resources to use on it."""

    address: str = "local"
    workers: int = 1
    gpus_per_worker: float = 0.0
    cpus_per_worker: float = 1.0

    def __post_init__(self) -> None:
        """Refuse a cluster without workers, or workers without resources."""
        if self.workers < 1 or self.gpus_per_worker < 0 or not self.cpus_per_worker > 0:
            raise InputError(
                "an engine has at least one worker, each with 0 or more GPUs and some CPU; "
                f"not {self.workers} with {self.gpus_per_worker:g} and {self.cpus_per_worker:g}"
            )


@contextmanager
def connected(cluster: Cluster) -> Iterator[None]:
    """Connect to Ray during the block; an existing connection is used and stays open."""
    if ray.is_initialized():
        yield
        return
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    local: dict[str, Any] = {}
    if cluster.address == "local":  # Ray runs only for this block
        cpus = math.ceil(cluster.workers * cluster.cpus_per_worker) + _SPARE
        local = {"include_dashboard": False, "num_cpus": cpus}
    try:
        ray.init(address=cluster.address, log_to_driver=False, logging_level=logging.ERROR, **local)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise InputError(
            f"no Ray at {cluster.address} ({last_line(error)}); give the address of a running "
            "cluster, or `local` to start one here"
        ) from error
    try:
        gpus = cluster.workers * cluster.gpus_per_worker
        if local and gpus > (here := ray.cluster_resources().get("GPU", 0.0)):
            raise InputError(
                f"{cluster.workers} workers take {gpus:g} GPU and this machine has {here:g}; take "
                "fewer or smaller workers, or give the address of a larger cluster"
            )
        yield
    finally:
        ray.shutdown()


def hide_gpus() -> None:
    """Hide all GPUs from a worker without any; Ray hides only GPUs that it has assigned."""
    if not ray.get_runtime_context().get_accelerator_ids()["GPU"]:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""


def evaluate_shards(
    cluster: Cluster, load: "Callable[[], Decider]", works: Sequence[Work], out: Path
) -> list[RunResult]:
    """Run cells in shards, one per worker, and return the result of each cell."""
    with connected(cluster):
        task = ray.remote(_evaluate).options(
            num_cpus=cluster.cpus_per_worker, num_gpus=cluster.gpus_per_worker
        )
        shards = [Shard(i, cluster.workers) for i in range(cluster.workers)]
        try:
            each = ray.get([task.remote(load, works, out.absolute(), one) for one in shards])
        except RayTaskError as error:  # an exception in the worker's code
            if isinstance(error.cause, TraceError | ModuleNotFoundError):
                raise error.cause from None
            raise
        except RayError as error:  # Ray repeats a lost task three times
            raise RecordError(
                f"workers were lost ({last_line(error)}); what they stored is kept: start again "
                "with more memory for each worker, or with smaller batch_tokens"
            ) from error
    return [_joined(results) for results in zip(*each, strict=True)]


def _evaluate(
    load: "Callable[[], Decider]", works: Sequence[Work], out: Path, shard: Shard
) -> list[RunResult]:
    hide_gpus()
    decider = load()
    return [evaluate(decider, work, out, shard) for work in works]


def _joined(results: Sequence[RunResult]) -> RunResult:
    cell = results[0].cell
    if not cell.exists() or missing_places(cell):
        raise RecordError(
            f"records are missing in {cell}; give an --out that all machines share, or run one "
            "--shard i/n on each and `lastword merge` their folders"
        )
    items, resumed, failed = (
        sum(getattr(result, name) for result in results) for name in ("items", "resumed", "failed")
    )
    return RunResult(cell, items, resumed, failed, sum((r.set_aside for r in results), ()))


def last_line(error: BaseException) -> str:
    """Return an error of Ray in one line; of a traceback, the last line."""
    text = str(error).strip()
    line = text.splitlines()[-1] if "\n  File " in text else text
    return one_line(line)[:200] or type(error).__name__
