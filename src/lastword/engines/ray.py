"""Ray: workers on one machine or many, each with one copy of the model.

A worker prepares a cell as a local run does, and computes one group at a time, or a piece of one,
up to the bytes of its part: states never leave it. The driver holds the folder's lock. It lets a
worker plan the next window of items before the current one is done, distributes the missing items
of the groups, and stores the results. A lost worker is replaced, and its group goes back to the
queue; the driver drops a lost worker's results, so that nothing is stored twice.

Plain actors are used instead of Ray Data's `map_batches` (tried in Ray 2.60) for three reasons. It
starts new actors for each data set, so every benchmark would load every copy of the model again.
Its actors cannot compute the plan, which needs a loaded model. And it retries a group that kills
its worker forever, while here the run stops with an error.
"""

import logging
import math
import os
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ray
from ray.exceptions import RayError, RayTaskError

from lastword.decide.pace import Pace
from lastword.decide.recording import plan_groups
from lastword.engines import Assignment, Engine
from lastword.errors import InputError, ModelError, RecordError, TraceError, one_line
from lastword.lab.evaluation import runner
from lastword.lab.evaluation.work import Work
from lastword.records.info import RunInfo, differences
from lastword.records.run import Run

if TYPE_CHECKING:
    from lastword.decide.decider import Decider

MOST_LOSSES = 3  # number of workers lost with one group after which the run stops
PATIENCE_SECONDS = 60.0  # interval of the warnings that no worker is ready

Handle = Any  # ray's actor handles and object references have no useful static type
Ref = Any


@dataclass(frozen=True)
class Cluster:
    """A Ray cluster, and the resources to use on it.

    Attributes:
        address: Address of a running cluster (`auto` for this machine's, `ray://host:10001`);
            `local` starts one on this machine and stops it afterwards.
        gpus_per_worker: GPUs per worker; a fraction lets workers share one, 0 hides them.
        cpus_per_worker: CPU cores, and threads, per worker.
    """

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

    @property
    def starts_here(self) -> bool:
        """True if Ray is started here, only for this run."""
        return self.address == "local"

    @property
    def share(self) -> dict[str, float]:
        """The resources of one worker, as options of Ray."""
        return {"num_cpus": self.cpus_per_worker, "num_gpus": self.gpus_per_worker}


@contextmanager
def connected(cluster: Cluster, spare: int = 0) -> Iterator[None]:
    """Connect to Ray during the block; an existing connection is used and stays open.

    Args:
        cluster: The Ray cluster.
        spare: CPUs for light tasks, besides those of the workers, of a cluster that is started
            here; 0 gives it all CPUs of the machine.

    Raises:
        InputError: No cluster at the address, or this machine is too small for the workers.
    """
    if ray.is_initialized():
        yield
        return
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    local: dict[str, Any] = {"include_dashboard": False} if cluster.starts_here else {}
    if cluster.starts_here and spare:
        local["num_cpus"] = math.ceil(cluster.workers * cluster.cpus_per_worker) + spare
    try:
        ray.init(address=cluster.address, log_to_driver=False, logging_level=logging.ERROR, **local)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise InputError(
            f"no Ray at {cluster.address} ({last_line(error)}); give the address of a running "
            "cluster, or `local` to start one here"
        ) from error
    try:
        if cluster.starts_here:
            _require_room(cluster)
        yield
    finally:
        ray.shutdown()


def hide_gpus() -> None:
    """Hide all GPUs from a worker without any; Ray hides only GPUs that it has assigned."""
    if not ray.get_runtime_context().get_accelerator_ids()["GPU"]:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""


class RayWorker:
    """One copy of the model, in a separate process.

    Args:
        load: Function that makes the decider, called for the first cell.
    """

    def __init__(self, load: "Callable[[], Decider]") -> None:
        # The model is loaded in `take`: Ray reports errors of methods, but an error in a
        # constructor looks like a lost worker.
        self._load = load
        self._decider: Decider | None = None
        self._job: runner.EvalJob | None = None
        self._pace = Pace()

    def take(self, work: Work) -> RunInfo:
        """Prepare a cell, whose groups are computed next, and return its `run.json`.

        Raises:
            TraceError: The model cannot be loaded, or the cell cannot be prepared.
        """
        if self._decider is None:
            hide_gpus()
            self._decider = self._load()
        self._job = runner.prepare(self._decider, work)
        return self._job.info

    def plan(self, places: Sequence[int]) -> list[list[int]]:
        """Return the groups of indices to compute together, for a window of the current cell."""
        assert self._decider is not None and self._job is not None
        return plan_groups(self._decider, runner.encode(self._decider, self._job, places))

    def compute(self, group: int, places: Sequence[int]) -> runner.RecordPart:
        """Return records of missing items of a group, as many as make up a part."""
        assert self._decider is not None and self._job is not None
        batch = runner.encode(self._decider, self._job, places)
        return runner.part(self._decider, self._job, group, batch, self._pace)


@dataclass(frozen=True)
class Task:
    """A request to a worker: a group, the plan of a window, or neither to prepare the cell."""

    worker: Handle
    group: int | None = None
    window: range | None = None


class Dispatch:
    """One cell on the workers of a pool, executed once.

    Attributes:
        info: The `run.json` from the first worker that prepared the cell.
    """

    def __init__(self, pool: "Pool", work: Work) -> None:
        self._pool = pool
        self._work = ray.put(work)
        self._losses: Counter[int | None] = Counter()
        self._tasks: dict[Ref, Task] = {}
        for worker in pool.workers:
            self._take(worker)
        task, self.info = self._next()
        self._idle: deque[Handle] = deque([task.worker])
        self._todo: deque[int] = deque()

    def execute(self, out: Path, *how: Any, **more: Any) -> runner.RunResult:
        """Compute the missing items of the cell with all workers; see `runner.collect`.

        Raises:
            ModelError: A worker's model or settings differ from the first one's.
            RecordError: As in `runner.collect`, or several workers were lost with one group.
        """
        return runner.collect(self.info, out, self._parts, *how, **more)

    def _parts(self, run: Run) -> Iterator[runner.RecordPart]:
        self._todo = deque(run.gaps)
        while not run.whole:
            self._hand_out(run)
            task, answer = self._next()
            self._idle.append(task.worker)
            if task.window is not None:
                first = len(run.plan)
                run.extend(answer)
                self._todo.extend(group for group in run.gaps if group >= first)
            elif task.group is None:
                _require_same(self.info, answer)
            else:
                yield answer
                if task.group in run.gaps:  # only a piece of it was computed
                    self._todo.appendleft(task.group)

    def _hand_out(self, run: Run) -> None:
        """Assign work to idle workers; the next window is planned before the groups run out."""
        planning = any(task.window is not None for task in self._tasks.values())
        nearly_done = len(self._todo) <= len(self._pool.workers)
        if self._idle and nearly_done and not planning and run.plan_size < self.info["items"]:
            window = runner.window_from(run.plan_size, self.info["items"])
            worker = self._idle.popleft()
            self._tasks[worker.plan.remote(window)] = Task(worker, window=window)
        while self._todo and self._idle:
            worker, group = self._idle.popleft(), self._todo.popleft()
            answer = worker.compute.remote(group, run.gaps[group])
            self._tasks[answer] = Task(worker, group)

    def _take(self, worker: Handle) -> None:
        self._tasks[worker.take.remote(self._work)] = Task(worker)

    def _next(self) -> tuple[Task, Any]:
        """Return the next result; workers that are lost meanwhile are replaced."""
        while True:
            ref = self._wait()
            task = self._tasks.pop(ref)
            try:
                return task, ray.get(ref)
            except RayTaskError as error:  # an exception in the worker's code
                if isinstance(error.cause, TraceError | ModuleNotFoundError):
                    raise error.cause from None
                raise
            except RayError as error:  # the worker's process, machine or result is lost
                self._replace(task, error)

    def _wait(self) -> Ref:
        while True:
            ready, _ = ray.wait(list(self._tasks), timeout=PATIENCE_SECONDS)
            if ready:
                return ready[0]
            if all(task.group is None and task.window is None for task in self._tasks.values()):
                logging.getLogger(__name__).warning(
                    "no worker is ready yet: models are loading, or Ray has no room for %s a "
                    "worker (free: %s)",
                    _amounts(self._pool.cluster.share),
                    _amounts(ray.available_resources()),
                )

    def _replace(self, task: Task, error: RayError) -> None:
        """Replace a lost worker, and put its group at the end of the queue."""
        self._losses[task.group] += 1
        if self._losses[task.group] >= MOST_LOSSES:
            raise _give_up(task.group, error)
        if task.group is not None:
            self._todo.append(task.group)
        self._take(self._pool.replace(task.worker))


class Pool(Engine):
    """The engine with many processes: workers that live until it is closed.

    Args:
        load: Function that makes the decider in each worker, on any machine of the cluster.
    """

    def __init__(self, load: "Callable[[], Decider]", cluster: Cluster) -> None:
        self.cluster = cluster
        self.workers: list[Handle] = []
        self._load = load
        self._connection = ExitStack()

    def __enter__(self) -> "Pool":
        """Connect, and start the workers.

        Raises:
            InputError: There is no cluster, or the machine is too small.
        """
        self._connection.enter_context(connected(self.cluster))
        self.workers = [self._start() for _ in range(self.cluster.workers)]
        return self

    def __exit__(self, *_: object) -> None:
        """Kill the workers, whatever their state."""
        for worker in self.workers:
            ray.kill(worker)
        self._connection.close()

    def assign(self, work: Work) -> Assignment:
        """Return the work of a cell, which a worker prepares.

        Raises:
            TraceError: The model cannot be loaded, or the cell cannot be prepared.
        """
        dispatch = Dispatch(self, work)
        return Assignment(dispatch.info, dispatch.execute)

    def replace(self, worker: Handle) -> Handle:
        """Kill a worker and start another one."""
        ray.kill(worker)
        self.workers.remove(worker)
        self.workers.append(self._start())
        return self.workers[-1]

    def _start(self) -> Handle:
        actor = ray.remote(RayWorker).options(max_restarts=0, **self.cluster.share)
        return actor.remote(self._load)


def _require_room(cluster: Cluster) -> None:
    here = ray.cluster_resources()
    demand = {
        "CPU": cluster.workers * cluster.cpus_per_worker,
        "GPU": cluster.workers * cluster.gpus_per_worker,
    }
    if any(amount > here.get(name, 0.0) for name, amount in demand.items()):
        raise InputError(
            f"{cluster.workers} workers take {_amounts(demand)} and this machine has "
            f"{_amounts(here)}; take fewer or smaller workers, or give the address of a larger "
            "cluster"
        )


def _require_same(info: RunInfo, other: RunInfo) -> None:
    if differing := differences(info, other):
        raise ModelError(
            f"two workers have different models or packages: {'; '.join(differing)}; give every "
            "machine the same model and packages"
        )


def _give_up(group: int | None, error: RayError) -> TraceError:
    times, last = f"{MOST_LOSSES} workers were lost", f"the last: {last_line(error)}"
    if group is None:
        return ModelError(
            f"{times} while loading the model ({last}); they may need more memory: fewer workers "
            "to a machine, or more of it for each"
        )
    return RecordError(
        f"{times} computing group {group} of the plan ({last}); its parts before are kept: start "
        "again with more memory for each worker, or in another --out with smaller batch_tokens"
    )


def _amounts(resources: dict[str, float]) -> str:
    amounts = {name.removeprefix("num_").upper().rstrip("S"): n for name, n in resources.items()}
    return " and ".join(f"{amounts.get(name, 0.0):g} {name}" for name in ("CPU", "GPU"))


def last_line(error: BaseException) -> str:
    """Return an error of Ray in one line; of a traceback, the last line."""
    text = str(error).strip()
    line = text.splitlines()[-1] if "\n  File " in text else text
    return one_line(line)[:200] or type(error).__name__
