"""Ablations: compared with the router item by item, and rows that must not change."""

from dataclasses import replace

import numpy as np
import pytest
from synthetic import answered, cells, synthetic_cell, synthetic_grid

from lastword.errors import RecordError
from lastword.lab.report.ablation import (
    GRIDS,
    Effect,
    deltas,
    necessity,
    necessity_table,
    sweep_table,
    sweeps,
)
from lastword.records.cells import summarise
from lastword.records.readings import AblatedRule, read
from lastword.rule import geometry, router
from lastword.rule.operators import OPERATORS, Ruling
from lastword.rule.theta import Theta

NAMES = tuple(OPERATORS)


@pytest.fixture(scope="module")
def grid():
    parted = cells(synthetic_grid(3, 80, seed=5, failed=1))
    return parted, [read(cell, Theta()) for cell in parted]


@pytest.fixture(scope="module")
def rows(grid):
    return necessity(grid[1], Theta())


@pytest.fixture(scope="module")
def swept(grid):
    return sweeps(grid[1], Theta())


def trajectory_of(record):
    return geometry.Trajectory(np.array(record["trajectory"]), np.array(record["t_scores"]))


def routed(record, theta, invariant=None):
    """Return the router's correction for one record."""
    value = record["invariant"] if invariant is None else invariant
    ruling = router.next_step(trajectory_of(record), value, theta)
    assert isinstance(ruling, Ruling)
    return ruling


def assert_decides(cell, readings, rule, corrections):
    operators, u = readings.decide(rule)
    assert [NAMES[k] for k in operators] == [c.operator for c in corrections]
    for scores, correction in zip(u, corrections, strict=True):
        np.testing.assert_array_equal(scores[: len(correction.scores)], correction.scores)
        assert (scores[len(correction.scores) :] == -np.inf).all()


def test_the_published_rule_reproduces_the_recorded_decisions(grid):
    operators = set()
    for cell, readings in zip(*grid, strict=True):
        chosen, every = readings.decide(AblatedRule())
        items = answered(cell)
        assert every.argmax(axis=1).tolist() == items["index"].tolist()
        assert [NAMES[k] for k in chosen] == items["operator"].tolist()
        for scores, u in zip(every, items["scores"], strict=True):
            np.testing.assert_array_equal(scores[: len(u)], u)
        summary = summarise(cell)
        assert deltas(readings, AblatedRule()) == pytest.approx(
            (summary.delta_mc1, summary.delta_mc2)
        )
        operators |= set(items["operator"])
    assert operators == set(NAMES)


@pytest.mark.parametrize(
    ("parameter", "value"),
    [("tau_dim", 1.1), ("eta", 0.5), ("eta", 2.0), ("tau_logr", 0.0), ("tau_H", 0.95)]
    + [("gamma", -3.0), ("gamma", 0.0), ("tau_I", 3.0), ("eta", 0.0)]
    + [("invariant", np.inf), ("invariant", 0.0)],
)
def test_other_constants_and_forced_branches_agree_with_the_router(grid, parameter, value):
    forced = value if parameter == "invariant" else None
    theta = Theta() if parameter == "invariant" else replace(Theta(), **{parameter: value})
    for cell, readings in zip(*grid, strict=True):
        corrections = [routed(item, theta, forced) for _, item in answered(cell).iterrows()]
        assert_decides(cell, readings, AblatedRule(theta, invariant=forced), corrections)


def test_a_forced_arm_applies_to_every_item(grid):
    binary = set()
    for cell, readings in zip(*grid, strict=True):
        spatial, scalar = [], []
        for _, item in answered(cell).iterrows():
            arm = "mix" if item["invariant"] > 1 else "early"
            spatial.append(OPERATORS["decisive"](trajectory_of(item), Theta()))
            scalar.append(OPERATORS[arm](trajectory_of(item), Theta()))
        assert_decides(cell, readings, AblatedRule(candidate_space="always"), spatial)
        assert_decides(cell, readings, AblatedRule(candidate_space="never"), scalar)
        binary |= {c.operator for c in spatial if len(c.scores) == 2}
    assert binary == {"decisive", "base"}, "binary items pass the three gates too"


@pytest.mark.parametrize("dropped", [{"mix"}, {"early"}, {"mix", "early"}, {"decisive"}])
def test_a_dropped_operator_is_replaced_by_the_base_only_where_it_applied(grid, dropped):
    for cell, readings in zip(*grid, strict=True):
        _, u = readings.decide(AblatedRule(dropped=frozenset(dropped)))
        for place, (_, item) in enumerate(answered(cell).iterrows()):
            replaced = item["operator"] in dropped
            expected = item["base_scores"] if replaced else item["scores"]
            np.testing.assert_array_equal(u[place][: len(expected)], expected)


def test_sweeps_have_all_values_of_the_grid_and_mark_the_runs(rows, swept):
    assert {name: tuple(row.value for row in effects) for name, effects in swept.items()} == GRIDS
    for name, effects in swept.items():
        current = next(row for row in effects if row.value == getattr(Theta(), name))
        np.testing.assert_array_equal(current.deltas, rows[0].deltas)
    marked = [row[:2] for row in sweep_table(swept, Theta()).rows if str(row[0]).endswith("†")]
    assert marked == [(f"{name}†", getattr(Theta(), name)) for name in GRIDS]


def test_rows_have_means_in_points_and_count_unrounded_regressions():
    deltas = np.array([[-1e-6, 0.0, -1e-17, 0.2, np.nan, np.nan], [0.1, -0.2, *[np.nan] * 4]])
    [line] = necessity_table([Effect("x", deltas)]).rows
    assert line == ("x", pytest.approx(25 * (0.2 - 1e-6)), pytest.approx(-5), 1, 1, 4)


def test_a_single_candidate_keeps_the_base_under_every_rule():
    records = synthetic_cell("org/m", "halueval-qa", 4)
    for name in ("trajectory", "t_scores", "blind_scores", "base_scores", "scores", "truthful"):
        records[name] = [value[:1] for value in records[name]]
    records[["mc1_base", "mc1", "mc2_base", "mc2"]] = np.nan
    [cell] = cells(records)
    for rule in (AblatedRule(), AblatedRule(candidate_space="always"), AblatedRule(invariant=0.0)):
        operators, _ = read(cell, Theta()).decide(rule)
        assert (operators == NAMES.index("base")).all()
    assert all(np.isnan(deltas(read(cell, Theta()), AblatedRule())))


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [("trajectory", None, "lastword eval"), ("t_scores", None, "lastword eval")]
    + [("invariant", np.nan, "lastword eval"), ("trajectory", np.full((2, 13), np.nan), "depths")],
)
def test_records_without_all_depths_are_refused(column, value, message):
    records = synthetic_cell("org/m", "halueval-qa", 3)
    records[column] = [value] * 3
    with pytest.raises(RecordError, match=message):
        read(cells(records)[0], Theta())
