"""Ray's workers write the records of a run in this process."""

import os
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from subprocess import CompletedProcess

import pytest
from forked import Forks

import lastword
from lastword.errors import InputError
from lastword.records.info import find_cells
from lastword.records.store import part_files

needs_ray = [
    pytest.mark.slow,
    pytest.mark.skipif(
        find_spec("ray") is None,
        reason='no Ray here: pip install "lastword[ray]"',
    ),
]
DEMO = ("eval", "--model", "lastword/demo-organism", "--benchmark", "demo", "--limit", "24")
RAY = ("--engine", "ray", "--engine-options", "address=local", "--engine-options", "workers=2")


@pytest.fixture
def command(forks: Forks) -> Callable[..., CompletedProcess[str]]:
    """Run the command line in another process; Ray's workers do not wait for other tests."""
    priority = {"RAY_worker_niceness": "0", "COLUMNS": "200"}
    return partial(forks.run, "-m", "lastword", env=os.environ | priority)


class TestRay:
    pytestmark = needs_ray

    def test_eval_with_ray_prints_and_stores_the_same(self, command, tmp_path):
        here = command(*DEMO, "--out", tmp_path / "here")
        there = (*DEMO, *RAY, "--engine-options", "cpus_per_worker=0.5", "--out", tmp_path / "t")
        first = command(*there)
        assert here.returncode == first.returncode == 0, first.stderr
        assert first.stdout == here.stdout
        mine, theirs = (
            lastword.load_records(tmp_path / name).drop(columns="seconds") for name in ("t", "here")
        )
        assert mine["id"].tolist() == theirs["id"].tolist()
        for name in ("scores", "trajectory"):
            for a, b in zip(mine[name], theirs[name], strict=True):
                assert a == pytest.approx(b, abs=1e-5)
        # What is lost is computed again, by either engine.
        (cell,) = find_cells(tmp_path / "t")
        assert len(part_files(cell)) == 2
        part_files(cell)[1].unlink()
        assert command(*there).stdout == here.stdout

    def test_errors_of_workers_are_one_line(self, command, tmp_path):
        absent = ("--model", tmp_path / "absent", *DEMO[3:])
        process = command("eval", *absent, *RAY, "--out", tmp_path)
        assert process.returncode == 1 and process.stdout == "", process.stderr
        assert process.stderr.count("\n") == 1, process.stderr

    def test_workers_that_do_not_fit_the_machine_are_refused(self, command, tmp_path):
        more = ("--engine-options", "gpus_per_worker=9000", "--out", tmp_path)
        process = command(*DEMO, *RAY, *more)
        assert process.returncode == 1 and process.stdout == ""
        assert "2 workers take 18000 GPU and this machine has" in process.stderr
        assert process.stderr.count("\n") == 1

    def test_workers_are_at_least_one(self):
        from lastword.engines.ray import Cluster

        with pytest.raises(InputError, match="at least one worker"):
            Cluster(workers=0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--engine-options", "workers=2"), "--engine-options"),
        (("--engine", "ray", "--engine-options", "worker=2"), "--engine-options"),
        (("--engine", "ray", "--engine-options", "workers=two"), "--engine-options"),
        ((*RAY, "--shard", "0/2"), "leave --shard out"),
    ],
)
def test_options_that_an_engine_does_not_have_are_refused(run, tmp_path, options, message):
    code, _, err = run(*DEMO, "--out", tmp_path, *options)
    assert code == 2 and message in err
