"""Comparison of methods, from records alone and from a run."""

from typing import Any

import numpy as np
import pytest
from synthetic import cells, synthetic_cell, whole
from typer.testing import CliRunner

from lastword.cli import app
from lastword.errors import RecordError
from lastword.lab.evaluation.controls import controls
from lastword.lab.report.comparison import (
    ORACLE,
    compare,
)
from lastword.records.cells import Cell
from lastword.records.metrics import mc1
from lastword.trust.paired import mcnemar

UNREAD = ("chance", "shortest", "longest", "anti-blind")  # rows of the controls


def cell_with(**methods: Any) -> Cell:
    """Return a cell like halueval-qa's, with methods that score by these functions of a row."""
    frame: Any = synthetic_cell(benchmark="halueval-qa", items=40, seed=4)
    frame["methods"] = [
        {name: score(row) for name, score in methods.items()} for row in frame.to_dict("records")
    ]
    (cell,) = cells(frame)
    return cell


def base_sum(row: Any) -> np.ndarray:
    return np.asarray(row["base_scores"]) * row["candidate_tokens"]


def best(row: Any) -> np.ndarray:
    return np.asarray(row["truthful"], dtype=float)


def test_a_method_is_compared_with_the_base_of_its_aggregation():
    cell = cell_with(summed=base_sum, mean=base_sum)
    # As means over tokens, the same scores are a different method.
    compared = compare(cell, {"summed": "sum", "mean": "mean"})
    summed, mean = compared.standings
    assert (summed.base, mean.base) == ("base-sum", "base-mean")
    test = summed.against_base
    assert (test.won, test.lost, test.p) == (0, 0, 1.0)
    assert mean.against_base.won + mean.against_base.lost > 0
    assert summed.mc2_normalised == pytest.approx(cell.items["mc2_base"].mean())
    assert summed.mc2 == mean.mc2 == mean.mc2_normalised != summed.mc2_normalised


def test_counts_and_tests_agree_with_the_items():
    cell = cell_with(best=best, worst=lambda row: -best(row), trace=lambda row: row["scores"])
    first, last, trace = compare(cell, dict.fromkeys(("best", "worst", "trace"), "mean")).standings
    base, corrected = (whole(cell)[n].to_numpy() for n in ("mc1_base", "mc1"))
    wrong, right = int((base < 1).sum()), int((base > 0).sum())
    on_base, on_trace = (
        [vars(s)[f"against_{n}"] for s in (first, last, trace)] for n in ("base", "trace")
    )
    assert first.delta_mc1 == pytest.approx(1 - base.mean())
    assert (first.mc1, on_base[0].won, on_base[0].lost) == (1.0, wrong, 0)
    assert (last.mc1, on_base[1].won, on_base[1].lost) == (0.0, 0, right)
    assert on_base[0].p == mcnemar(wrong, 0)
    assert (on_trace[0].won, on_trace[0].lost) == (int((corrected < 1).sum()), 0)
    assert trace.mc1 == pytest.approx(corrected.mean()) and np.isnan(on_trace[2].p)
    assert first.mc3 == 1.0 and last.mc3 == 0.0
    # Holm: three tests against the base, two against TRACE.
    for tests in (on_base, on_trace[:2]):
        least = len(tests) * min(test.p for test in tests)
        assert min(test.p_holm for test in tests) == pytest.approx(min(1.0, least))


def test_items_without_scores_do_not_count_for_a_method():
    cell = cell_with(some=lambda row: best(row) if row["place"] % 2 else None, none=lambda _: None)
    some, none = compare(cell, {"some": "mean", "none": "mean"}).standings
    assert some.items == 20 and some.mc1 == 1.0 and some.against_base.lost == 0
    assert none.items == 0 and np.isnan(none.mc1) and np.isnan(none.against_base.p_holm)
    assert some.against_base.p_holm == some.against_base.p


def test_the_oracle_uses_the_best_depth_of_every_item():
    cell = cell_with(best=best)
    rows = whole(cell)
    expected = [
        any(mc1(S[:, depth], truth) == 1 for depth in range(S.shape[1]))
        for S, truth in zip(rows["trajectory"], rows["truthful"], strict=True)
    ]
    assert controls(cell).oracle == pytest.approx(np.mean(expected))
    assert controls(cell).oracle >= rows["mc1_base"].mean()


def test_records_without_scores_of_the_methods_are_refused():
    (cell,) = cells(synthetic_cell(benchmark="halueval-qa", items=6))
    for lacking in (cell, cell_with(sled=best)):
        with pytest.raises(RecordError, match="has no scores of dola; write them with"):
            compare(lacking, {"dola": "sum"})


def test_the_command_compares_methods_and_resumes(tmp_path):
    arguments = ["compare", "--model", "lastword/demo-organism", "--benchmark", "demo"]
    arguments += ["--limit", "4", "--out", str(tmp_path), "--format", "csv"]
    arguments += [f"--method={name}" for name in ("trace", "dola", "sled@mean")]
    done, again = (CliRunner().invoke(app, arguments) for _ in range(2))
    assert done.exit_code == 0, done.output
    judged, beside = done.stdout.split("\n\n")
    methods = ["Method", "trace", "dola", "sled@mean"]
    assert [line.split(",")[2] for line in judged.splitlines()] == [*methods, *UNREAD, ORACLE]
    assert [line.split(",")[2] for line in beside.splitlines()] == methods
    assert again.stdout == done.stdout
