"""`lastword ablate` on stored records."""

from dataclasses import replace

import numpy as np
import pytest
from synthetic import synthetic_cell, synthetic_grid, write_cells
from typer.testing import CliRunner

from lastword.cli import app
from lastword.errors import RecordError
from lastword.records.info import one_theta, read_runs
from lastword.rule.theta import ScorerTheta, Theta


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    write_cells(synthetic_grid(2, 24), folder)
    return folder


def ablate(*arguments):
    result = CliRunner().invoke(app, ["ablate", *map(str, arguments)], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result


def test_both_tables_are_printed_and_written(runs, golden, tmp_path):
    golden("ablate", (result := ablate(runs)).stdout)
    assert result.stderr == ""
    assert ablate(runs, "--format", "csv").stdout.startswith("Variant,")
    ablate(runs, "--out", tmp_path)
    names = {f"{name}.{ending}" for name in ("ablation", "sweeps") for ending in ("md", "csv")}
    assert {path.name for path in tmp_path.iterdir()} == names


def test_the_theta_of_the_runs_is_read_back(tmp_path):
    theta = replace(Theta(), tau_H=0.5, scorer=ScorerTheta(outside="clip"))
    write_cells(synthetic_cell("org/m", "halueval-qa", 8, theta=theta), tmp_path, theta)
    assert one_theta(read_runs(tmp_path).values()) == theta
    assert "TRACE (as run)" in ablate(tmp_path).stdout
    write_cells(synthetic_cell("org/m", "halueval-sum", 8), tmp_path)
    with pytest.raises(RecordError, match="halueval-qa and .*halueval-sum"):
        ablate(tmp_path)


def test_missing_records_are_reported(tmp_path):
    write_cells(synthetic_cell("org/m", "halueval-qa", 24), tmp_path)
    next(tmp_path.rglob("part-00008.parquet")).unlink()
    assert "8 of 24 items" in ablate(tmp_path).stderr


def test_runs_without_usable_items_are_refused(tmp_path):
    failed = synthetic_cell("org/m", "halueval-qa", 3, failed=3).assign(invariant=2.0)
    bare = synthetic_cell("org/m", "halueval-qa", 4)
    unknown = {name: np.nan for name in bare.columns if name.startswith("mc")}
    write_cells(failed, tmp_path / "failed")
    write_cells(bare.assign(truthful=None, **unknown), tmp_path / "bare")
    faults = {"failed": "3 items failed.* 700", "bare": "4 items have no", "none": "no records"}
    for name, message in faults.items():
        with pytest.raises(RecordError, match=message):
            ablate(tmp_path / name)
