"""Ray on several nodes, one of which is killed during a run."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from spread import Load, assert_same_records, notes, ready_for_workers
from tracer_double import TracerDouble, dataset

from lastword.engines.local import LocalEngine

pytestmark = pytest.mark.slow
ray = pytest.importorskip("ray", reason='no Ray here: pip install "lastword[ray]"')

ITEMS = 40
NODE = {"num_cpus": 1, "object_store_memory": 80 * 2**20}


@pytest.fixture
def machines() -> Iterator[Any]:
    """Two nodes that hold a worker each; Ray detects the loss of one within seconds."""
    from ray.cluster_utils import Cluster

    health_check = {"health_check_period_ms": 500, "health_check_failure_threshold": 10}
    with pytest.MonkeyPatch.context() as patch:
        ready_for_workers(patch)
        cluster = Cluster(
            initialize_head=True,
            head_node_args=NODE | {"include_dashboard": False, "_system_config": health_check},
        )
        cluster.add_node(**NODE)
        yield cluster
        ray.shutdown()
        cluster.shutdown()


def test_only_the_current_group_of_a_lost_node_is_repeated(tmp_path, machines):
    from lastword.engines.ray import Cluster, Pool

    data = dataset(tmp_path, ITEMS)
    lost: list[set[str]] = []  # the processes that had begun a group before the loss

    def lose(items: int) -> None:
        begun = {pid for pid, *_ in notes(tmp_path / "begun")}
        if len(begun) == 2 and not lost:
            (other,) = machines.worker_nodes
            machines.remove_node(other, allow_graceful=False)
            machines.add_node(**NODE)  # a replacement
            lost.append(begun)

    with Pool(Load(tmp_path, pause=0.5), Cluster(machines.address, workers=2)) as pool:
        nodes = {n["NodeID"] for n in ray.nodes() if n["Alive"]}
        cell = pool.cell(data, data.benchmark.template())
        outcome = cell.execute(tmp_path / "spread", advance=lose)
        left = {n["NodeID"] for n in ray.nodes() if n["Alive"]}
    assert len(nodes) == len(left) == 2 and len(nodes & left) == 1 and lost
    begun = notes(tmp_path / "begun")
    assert len({pid for pid, *_ in begun} - lost[0]) <= 1  # the replacement
    times = Counter(item for _, *ids in begun for item in ids)
    again = {item for item, count in times.items() if count > 1}
    assert len(times) == ITEMS and len(again) <= 3 and max(times.values()) <= 2
    assert outcome.items == ITEMS and outcome.failed == 0

    double: Any = TracerDouble
    with LocalEngine(double) as engine:
        whole = engine.cell(data, data.benchmark.template()).execute(tmp_path / "alone").cell
    assert_same_records(outcome.cell, whole)
