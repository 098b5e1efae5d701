"""Cells as runs of trackers: what each one's own library gives back of them."""

import os
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from synthetic import synthetic_cell, write_cells

import lastword
from lastword.integrations.trackers import Tracker, metrics, parameters, tracked
from lastword.records import cells as lab
from lastword.records.info import find_cells, read_run


@pytest.fixture(scope="module")
def cell(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs")
    write_cells(synthetic_cell(items=40), out)
    (found,) = find_cells(out)
    assert isinstance(found, Path)
    return found


@pytest.fixture(scope="module", autouse=True)
def places(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where each keeps its runs; trackio's place is the whole session's (tests/conftest.py)."""
    folder = tmp_path_factory.mktemp("kept")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLFLOW_TRACKING_URI", str(folder / "mlflow"))
        patch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
        patch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
        patch.setenv("WANDB_MODE", "offline")
        patch.setenv("WANDB_DIR", str(folder))
        patch.setenv("WANDB_SILENT", "true")
        yield folder


def log(tracker: Tracker, cell: Path) -> dict[str, Any]:
    """A cell of 40 items, logged in two steps; its run.json."""
    info = read_run(cell)
    with tracked(tracker, info) as run:
        run.advance(10)
        run.advance(30)
        run.judge(cell)
    return info


def expected(cell: Path) -> dict[str, float]:
    (parted,) = lab.cells(lastword.load_records(cell))
    return metrics(lab.summarise(parted))


def test_parameters_say_what_was_run(cell: Path) -> None:
    info = read_run(cell) | {"dtype": "bfloat16"}
    said = parameters(info)
    assert said["model"] == "org/model-a" and said["benchmark"] == "truthfulqa"
    assert (said["dtype"], said["invariant"], said["branch"]) == ("bfloat16", 2.0, "mix")
    assert said["version.lastword"] == "test" and "revision" not in said
    assert parameters(info | {"invariant": 0.5})["branch"] == "early"


def test_metrics_are_the_cells_and_nothing_undefined(cell: Path) -> None:
    frame = lastword.load_records(cell)
    said = expected(cell)
    first = frame[frame["kind"] == "mc1"]
    assert said["mc1"] == pytest.approx(first["mc1"].mean())
    assert said["delta_mc1"] == pytest.approx((first["mc1"] - first["mc1_base"]).mean())
    assert sum(said[f"gain_mc1/{name}"] for name in ("decisive", "mix", "early")) == pytest.approx(
        said["delta_mc1"]
    )
    assert "pairs" not in said and all(value == value for value in said.values())


def test_trackio(cell: Path) -> None:
    info = log("trackio", cell)
    import trackio
    from trackio.sqlite_storage import SQLiteStorage

    named = {run.name: run for run in trackio.Api().runs("lastword")}  # a page's test may log too
    run = named["org/model-a on truthfulqa"]
    assert {n: run.config[n] for n in parameters(info)} == parameters(info)
    logged = SQLiteStorage.get_logs("lastword", run.name)
    assert [row["records"] for row in logged if "records" in row] == [10, 40]
    (final,) = [row for row in logged if "mc1" in row]
    assert {n: final[n] for n in expected(cell)} == pytest.approx(expected(cell))
    assert final["step"] == 40


def test_mlflow(cell: Path, places: Path) -> None:
    info = log("mlflow", cell)
    import mlflow

    (run,) = mlflow.search_runs(experiment_names=["lastword"], output_format="list")
    assert run.info.run_name == "org/model-a on truthfulqa" and run.info.status == "FINISHED"
    assert run.data.params == {n: str(value) for n, value in parameters(info).items()}
    assert run.data.metrics == pytest.approx(expected(cell) | {"records": 40.0})
    steps = mlflow.MlflowClient().get_metric_history(run.info.run_id, "records")
    assert [(m.step, m.value) for m in steps] == [(10, 10.0), (40, 40.0)]
    assert any((places / "mlflow").rglob("delta_mc1"))


def test_a_run_that_fails_is_marked_so(cell: Path) -> None:
    import mlflow

    with pytest.raises(KeyError), tracked("mlflow", read_run(cell)):
        raise KeyError
    latest, *_ = mlflow.search_runs(experiment_names=["lastword"], output_format="list")
    assert latest.info.status == "FAILED"


@pytest.mark.skipif(find_spec("wandb") is None, reason="wandb is not among the pins: 62 MB")
def test_wandb_offline(cell: Path, places: Path) -> None:
    log("wandb", cell)
    (kept,) = (places / "wandb").glob("offline-run-*/run-*.wandb")
    content = kept.read_bytes()
    assert all(text in content for text in (b"org/model-a", b"delta_mc1", b"mc2_base"))


def test_nobody_is_told_where_nobody_asked(cell: Path) -> None:
    with tracked(None, read_run(cell)) as run:
        run.advance(3)
        run.judge(Path("nowhere"))
    assert run.records == 3


def test_the_command_logs_a_cell_and_one_that_was_finished(run: Any, tmp_path: Path) -> None:
    import mlflow

    line = ["eval", "--model", "lastword/demo-organism", "--benchmark", "demo", "--limit", 6]
    where = tmp_path / "runs"
    for _ in range(2):
        code, out, err = run(*line, "--out", where, "--log", "mlflow")
        assert code == 0 and out.startswith("model"), err
    logged = mlflow.search_runs(
        experiment_names=["lastword"],
        filter_string="params.benchmark = 'demo'",
        output_format="list",
    )
    assert len(logged) == 2
    (cell,) = find_cells(where)
    for entry in logged:
        assert entry.data.metrics == pytest.approx(expected(cell) | {"records": 6.0})
        assert entry.data.params["branch"] == "early" or float(entry.data.params["invariant"]) > 1
    assert os.listdir(where) and not (tmp_path / "mlruns").exists()
