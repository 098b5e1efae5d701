"""Ray's workers write the records of a local run, even if some are killed."""

import os
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest
from forked import Forks
from spread import PRIORITY, Load, assert_same_records, notes, ready_for_workers
from tracer_double import TracerDouble, dataset

import lastword
from lastword.engines.local import LocalEngine
from lastword.errors import InputError, ModelError, RecordError, RunLockedError
from lastword.lab.benchmarks.benchmark import Dataset
from lastword.lab.evaluation.runner import RunResult
from lastword.records.info import differences, find_cells, plan_of, read_run
from lastword.records.merge import merge
from lastword.records.parts import missing_places, part_paths, read_part
from lastword.records.run import Run, Shard

ITEMS = 40

try:
    import ray
except ModuleNotFoundError:
    ray = None

RAY_MARKS = [
    pytest.mark.slow,
    pytest.mark.skipif(ray is None, reason='no Ray here: pip install "lastword[ray]"'),
]


def needs_ray(test: Any) -> Any:
    for mark in RAY_MARKS:
        test = mark(test)
    return test


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Two workers on a local Ray that several pools use."""
    from lastword.engines.ray import Cluster

    with pytest.MonkeyPatch.context() as patch:
        ready_for_workers(patch)
        ray.init(
            address="local",
            num_cpus=2,
            include_dashboard=False,
            object_store_memory=80 * 2**20,
            log_to_driver=False,
        )
        yield Cluster(workers=2)
        ray.shutdown()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The records of an undisturbed run in this process."""
    folder = tmp_path_factory.mktemp("whole")
    with LocalEngine(lambda: double()) as engine:
        data = dataset(folder, ITEMS)
        cell = engine.cell(data, data.benchmark.template()).execute(folder).cell
        assert isinstance(cell, Path)
        return cell


def double(**options: Any) -> Any:
    return TracerDouble(**options)


def run(
    load: Load,
    cluster: Any,
    out: Path,
    data: Dataset | None = None,
    advance: Callable[[int], None] | None = None,
    shard: Shard | None = None,
) -> RunResult:
    from lastword.engines.ray import Pool

    items = data or dataset(load.folder, ITEMS)
    with Pool(load, cluster) as pool:
        cell = pool.cell(items, items.benchmark.template())
        return cell.execute(out, shard, advance)


@needs_ray
def test_workers_write_the_records_of_a_local_run(tmp_path, cluster, whole):
    counts: list[int] = []
    outcome = run(Load(tmp_path, pause=0.4), cluster, tmp_path, advance=counts.append)
    assert_same_records(outcome.cell, whole)
    assert differences(read_run(outcome.cell), read_run(whole)) == []
    assert (outcome.items, outcome.resumed, outcome.failed) == (ITEMS, 0, 0)
    assert counts[0] == 0 and sum(counts) == ITEMS
    begun = notes(tmp_path / "begun")
    assert Counter(map(len, begun))[4] == ITEMS // 3  # the double forms groups of three items
    assert len({pid for pid, *_ in begun}) == 2, "one worker did everything"


@needs_ray
def test_only_the_group_of_a_killed_worker_is_repeated(tmp_path, cluster, whole):
    finished: list[set[str]] = []

    def kill_all(items: int) -> None:
        """Kill both workers: one computes a group, and the other has just finished one."""
        begun = notes(tmp_path / "begun")
        if not finished and any("q12" in ids for ids in begun):
            done = {p for p in tmp_path.rglob("part-*.parquet")}
            finished.append({i for p in done for i in read_part(p)["id"].to_pylist()})
            (tmp_path / "go").touch()
            for pid in {int(pid) for pid, *_ in begun}:
                os.kill(pid, signal.SIGKILL)

    outcome = run(Load(tmp_path, held=("q12",)), cluster, tmp_path, advance=kill_all)
    assert_same_records(outcome.cell, whole)
    # Two workers, and their replacements; the first one may finish before the other has started.
    assert len(notes(tmp_path / "loaded")) in (3, 4)
    times = Counter(item for _, *ids in notes(tmp_path / "begun") for item in ids)
    assert len(times) == ITEMS and {times[i] for i in finished[0]} == {1}
    again = {item for item, count in times.items() if count > 1}
    assert "q12" in again and len(again) <= 3, "more than the current group was repeated"


@needs_ray
def test_a_group_that_ends_its_workers_stops_the_run_after_the_other_groups(
    tmp_path, cluster, whole
):
    with pytest.raises(RecordError, match="3 workers were lost computing group") as stop:
        run(Load(tmp_path, deadly=("q7",)), cluster, tmp_path)
    assert "\n" not in str(stop.value)
    assert sum("q7" in ids for ids in notes(tmp_path / "begun")) == 3
    cell = find_cells(tmp_path)[0]
    plan = plan_of(read_run(cell))
    assert 1 <= len(missing_places(cell)) <= 3 and len(plan) > 10
    data = dataset(tmp_path, ITEMS)
    with LocalEngine(double) as engine:  # resume in this process
        outcome = engine.cell(data, data.benchmark.template()).execute(tmp_path)
    assert outcome.items - outcome.resumed in (1, 2, 3)
    assert_same_records(cell, whole)


@needs_ray
def test_workers_resume_the_run_of_another_engine(tmp_path, cluster, whole):
    data = dataset(tmp_path, ITEMS)
    run(Load(tmp_path), cluster, tmp_path, data, shard=Shard(0, 2))
    first = notes(tmp_path / "begun")
    with LocalEngine(double) as engine:
        engine.cell(data, data.benchmark.template()).execute(tmp_path, Shard(1, 2))
    (merged,) = merge([tmp_path])
    assert merged.missing == 0 and 0 < len(first) < ITEMS // 3
    for torn in list(part_paths(merged.folder).values())[:4]:
        torn.write_bytes(b"torn")
    outcome = run(Load(tmp_path), cluster, tmp_path, data)
    assert len(outcome.set_aside) == 4 and outcome.items == ITEMS
    assert len(notes(tmp_path / "begun")) == len(first) + 4
    assert_same_records(outcome.cell, whole)


@needs_ray
def test_a_pool_loads_its_models_once(tmp_path, cluster):
    from lastword.engines.ray import Pool

    load = Load(tmp_path, options={"refuse": ["q3"], "poison": ["q5"]})
    with Pool(load, cluster) as pool:
        for folder in (tmp_path / "a", tmp_path / "b"):
            folder.mkdir()
            data = dataset(folder, 20)
            cell = pool.cell(data, data.benchmark.template())
            assert cell.execute(folder).failed == 2
        again = pool.cell(data, data.benchmark.template())
        with Run(find_cells(tmp_path / "b")[0], again.info), pytest.raises(RunLockedError):
            again.execute(tmp_path / "b")
    loads = [process for (process,) in notes(tmp_path / "loaded")]
    assert 1 <= len(set(loads)) == len(loads) <= 2  # on a slow machine, the first may finish alone
    errors = lastword.load_records(tmp_path / "a").set_index("id")["error"]
    assert "depth 3" in errors["q5"] and "the context is 512" in errors["q3"]


@needs_ray
@pytest.mark.parametrize(
    ("how", "message", "loads"),
    [
        ("refuses", "there is no such model; name another", (1, 2)),
        ("dies", "3 workers were lost while loading the model", (3, 4)),
        ("differs", "two workers have different models or packages: dtype was", (2,)),
    ],
)
def test_a_model_that_cannot_be_loaded_is_an_error_in_one_line(
    tmp_path, cluster, how, message, loads
):
    with pytest.raises(ModelError, match=message) as stop:
        run(Load(tmp_path, how=how, pause=0.3), cluster, tmp_path)
    assert "\n" not in str(stop.value)
    assert len(notes(tmp_path / "loaded")) in loads


@needs_ray
def test_workers_are_at_least_one():
    from lastword.engines.ray import Cluster

    with pytest.raises(InputError, match="at least one worker"):
        Cluster(workers=0)


@pytest.fixture
def command(forks: Forks) -> Callable[..., CompletedProcess[str]]:
    """Run the command line in another process."""
    return partial(forks.run, "-m", "lastword", env=os.environ | PRIORITY | {"COLUMNS": "200"})


@needs_ray
def test_eval_with_ray_prints_and_stores_the_same(command, tmp_path):
    # `local` starts a separate Ray, even if another one runs on the machine.
    args = ["eval", "--model", "lastword/demo-organism", "--benchmark", "demo", "--limit", "24"]
    args += ["--load", "batch_tokens=256"]
    here = command(*args, "--out", tmp_path / "here")
    there = command(
        *args, "--out", tmp_path / "there", "--engine", "ray",
        *("--engine-options", "cpus_per_worker=0.5", "--engine-options", "workers=2"),
        *("--engine-options", "address=local"),
    )  # fmt: skip
    assert here.returncode == there.returncode == 0, there.stderr
    assert there.stdout == here.stdout
    with_ray, without_ray = (find_cells(tmp_path / name)[0] for name in ("there", "here"))
    assert len(part_paths(with_ray)) > 2
    assert_same_records(with_ray, without_ray)


@needs_ray
def test_workers_that_do_not_fit_the_machine_are_refused(command, tmp_path):
    process = command(
        "eval", "--model", "lastword/demo-organism", "--benchmark", "demo", "--out", tmp_path,
        "--engine", "ray", "--engine-options", "workers=2",
        *("--engine-options", "gpus_per_worker=9000"),
    )  # fmt: skip
    assert process.returncode == 1 and process.stdout == ""
    assert "2 workers take 2 CPU and 18000 GPU and this machine has" in process.stderr
    assert process.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("engine", "option"),
    [("local", "workers=2"), ("ray", "worker=2"), ("ray", "workers=two")],
)
def test_unknown_options_of_an_engine_are_refused(command, tmp_path, engine, option):
    args = ["eval", "--model", "no/model", "--benchmark", "demo", "--out", tmp_path]
    process = command(*args, "--engine", engine, "--engine-options", option)
    assert process.returncode == 2 and "--engine-options" in process.stderr
