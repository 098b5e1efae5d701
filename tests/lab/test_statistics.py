"""Statistics: the paper's grid, tests against enumeration, and the verdicts."""

from itertools import product
from math import comb, isnan, nan

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from synthetic import cells, synthetic_cell, whole

from lastword.lab.evaluation import statistics
from lastword.lab.evaluation.statistics import (
    Interval,
    bootstrap_mean,
    judge,
    over_cells,
    sign_test,
)
from lastword.lab.report.ablation import deltas
from lastword.lab.report.published import read_published
from lastword.records.cells import Cell, CellCounts, summarise
from lastword.records.metrics import calibration_error, mc1, mc3
from lastword.records.readings import AblatedRule, read
from lastword.rule.theta import Theta
from lastword.trust.paired import folded, mcnemar
from lastword.trust.testing import holm


def published(metric):
    grid = read_published()
    return np.array([getattr(row, f"{metric}_delta") for rows in grid.values() for row in rows])


@pytest.mark.parametrize(
    ("metric", "mean", "low", "high"), [("mc1", 12.2549, 9.25, 15.63), ("mc2", 8.6547, 6.24, 11.53)]
)
def test_the_published_grid_gives_the_published_statistics(metric, mean, low, high):
    summary = over_cells(published(metric))
    assert summary.cells == 45 and summary.negative == 0
    assert summary.mean == pytest.approx(mean, abs=5e-5)
    # The ends of such an interval move by about 0.01 from seed to seed.
    assert summary.interval.low == pytest.approx(low, abs=0.04)
    assert summary.interval.high == pytest.approx(high, abs=0.04)
    assert summary.sign_p == pytest.approx(2.0**-45)


def test_the_bootstrap_agrees_with_enumeration():
    values = np.array([0.0, 0.3, 1.0, 5.0])
    means = [np.mean(draw) for draw in product(values, repeat=4)]
    low, high = np.quantile(means, [0.025, 0.975])
    interval = bootstrap_mean(values, 100_000)
    # The ends are among the few means that four values can have.
    assert interval.low == pytest.approx(low, abs=1e-9)
    assert interval.high == pytest.approx(high, abs=1e-9)


def test_few_or_no_values_have_no_interval_and_ties_no_sign():
    for count, unknown in ((4, True), (5, False)):
        summary = over_cells(np.linspace(0.0, 0.1, count))
        assert summary.cells == count and summary.mean == pytest.approx(0.05)
        assert isnan(summary.interval.low) == isnan(summary.interval.high) == unknown
    assert isnan(bootstrap_mean(np.array([])).low) and isnan(over_cells(np.array([nan])).mean)
    assert isnan(sign_test(np.array([0.0, 0.0])))
    assert sign_test(np.array([0.1, 0.2, 0.0, -0.1, 0.3, 1e-15])) == pytest.approx((1 + 4) / 16)


@given(st.integers(0, 12), st.integers(0, 12))
def test_mcnemar_is_twice_the_binomial_tail(fixed, broken):
    n, k = fixed + broken, min(fixed, broken)
    tail = sum(comb(n, i) for i in range(k + 1)) / 2**n
    assert mcnemar(fixed, broken) == pytest.approx(min(1.0, 2 * tail))


@given(st.lists(st.floats(0, 1) | st.just(nan), min_size=1, max_size=8))
def test_holm_agrees_with_its_step_down_definition(p_values):
    adjusted = holm(np.array(p_values))
    for level in (0.01, 0.05, 0.2):
        rejected, open_ = set(), [i for i, p in enumerate(p_values) if not isnan(p)]
        while open_:
            smallest = min(open_, key=lambda i: p_values[i])
            if p_values[smallest] * len(open_) > level:
                break
            rejected.add(smallest)
            open_.remove(smallest)
        assert {i for i, p in enumerate(adjusted) if p <= level} == rejected
    assert [isnan(p) for p in adjusted] == [isnan(p) for p in p_values]


def cell_with(gains):
    """Return a cell whose items have these gains."""
    records = synthetic_cell("org/m", "halueval-qa", len(gains))
    records["mc1_base"] = [0.0 if g > 0 else 1.0 for g in gains]
    records["mc1"] = records["mc1_base"] + gains
    return cells(records)[0]


def copied(times, **columns):
    """Return a cell with copies of its items, of which six gain and two lose."""
    records = synthetic_cell("org/m", "halueval-qa", 40)
    gains = np.array([1.0] * 6 + [-1.0] * 2 + [0.0] * 32)
    records["mc1_base"] = np.where(gains > 0, 0.0, 1.0)
    records["mc1"] = records["mc1_base"] + gains
    many = records.loc[records.index.repeat(times)].reset_index(drop=True)
    many["id"] = [f"{name}/{place}" for place, name in enumerate(many["id"])]
    return cells(many.assign(**{name: of(many) for name, of in columns.items()}))[0]


def altered_prompts(records):
    return [f" {text.upper()}\n" if n % 2 else text for n, text in enumerate(records["prompt"])]


def test_copies_are_one_group_of_mcnemars_test():
    [once], [often] = (judge([copied(times, prompt=altered_prompts)]) for times in (1, 10))
    assert (once.fixed, once.broken, often.fixed, often.broken) == (6, 2, 60, 20)
    assert (often.won, often.lost) == (once.won, once.lost) == (6, 2)
    assert often.p == once.p == mcnemar(6, 2) > 0.05 > mcnemar(60, 20)
    assert often.delta_mc1 == pytest.approx(once.delta_mc1)
    width = often.interval_mc1.high - often.interval_mc1.low
    assert width >= 0.9 * (once.interval_mc1.high - once.interval_mc1.low)
    assert "McNemar over groups, 6 against 2, p = 0.289" in often.sentence
    assert "groups" not in once.sentence
    [without] = judge([copied(1, prompt=lambda records: [""] * len(records))])  # without its texts
    assert (without.won, without.lost) == (6, 2)


@given(st.lists(st.tuples(st.sampled_from([-1.0, -1 / 3, 0.0, 1 / 3, 1.0]), st.integers(0, 4))))
def test_gains_of_groups_have_the_mean_of_their_items(pairs):
    gains = np.array([gain for gain, _ in pairs])
    groups = np.unique([group for _, group in pairs], return_inverse=True)[1]
    by_group = folded(gains, groups.astype(np.int64))
    assert by_group.sum() / max(by_group.size, 1) == pytest.approx(
        gains.mean() if gains.size else 0
    )
    for number, value in enumerate(by_group):
        assert np.sign(value) == np.sign(round(gains[groups == number].sum(), 9))
    assert folded(gains, np.arange(len(gains))).tolist() == gains.tolist()


@pytest.mark.parametrize(
    ("fixed", "broken", "same", "cells", "objection", "finding"),
    [(20, 0, 80, 1, "", "helps"), (0, 20, 80, 1, "", "hurts"), (20, 20, 60, 1, "", "unclear")]
    + [(0, 0, 30, 1, "", "unclear"), (3, 0, 0, 1, "", "unclear")]
    + [(9, 1, 20, 1, "", "helps"), (9, 1, 20, 3, "", "unclear")]  # by Holm
    + [(20, 0, 80, 1, "and so does longest", "gains"), (20, 0, 80, 1, None, "gains")]
    + [(0, 20, 80, 1, "and so does longest", "hurts")],
)
def test_a_verdict_follows_the_exact_test_and_the_controls(
    fixed, broken, same, cells, objection, finding
):
    cell = cell_with([1.0] * fixed + [-1.0] * broken + [0.0] * same)
    verdict, *_ = judge([cell] * cells, [] if objection is None else [objection] * cells)
    assert (verdict.finding, verdict.fixed, verdict.broken) == (finding, fixed, broken)
    assert verdict.items == fixed + broken + same
    assert bool(verdict.objection) == (finding == "gains")
    assert verdict.objection in verdict.sentence


def test_a_summary_agrees_with_the_records():
    records = synthetic_cell("org/m", "truthfulqa", 200, failed=6, invariant=0.5)
    [cell] = cells(records)
    summary, answered = summarise(cell), records[records["error"].isna()]
    mc1_rows = answered[answered["mc1_base"].notna()]
    assert len(mc1_rows) == 97 and summary.counts == CellCounts(items=97, mc2=97, failed=6)
    assert summary.mc1 == pytest.approx(mc1_rows["mc1"].mean())
    assert summary.delta_mc2 == pytest.approx((answered["mc2"] - answered["mc2_base"]).mean())
    assert summary.scalar == pytest.approx(np.mean([len(c) == 2 for c in mc1_rows["candidates"]]))
    confident = [max(b) < -1 and len(b) == 2 for b in mc1_rows["base_scores"]]
    assert summary.fired["early"] == pytest.approx(np.mean(confident)) and summary.fired["mix"] == 0
    assert summary.fixed == ((mc1_rows["mc1"] - mc1_rows["mc1_base"]) > 0).sum()


def test_pairs_are_counted_by_the_items_metric():
    records = synthetic_cell("org/m", "halueval-qa", 40)
    assert np.isnan(summarise(*cells(records)).pairs)
    records["id"] = [f"pair/{i // 2}/{'ab'[i % 2]}" for i in range(len(records))]
    [cell] = cells(records)
    summary, right = summarise(cell), whole(cell).set_index("id")
    for share, name in ((summary.pairs_base, "mc1_base"), (summary.pairs, "mc1")):
        expected = [right.loc[[f"pair/{i}/a", f"pair/{i}/b"], name].min() == 1 for i in range(20)]
        assert share == pytest.approx(np.mean(expected))


def test_baselines_and_calibration_agree_with_the_items():
    [cell] = cells(synthetic_cell("org/m", "halueval-qa", 50))
    summary, items = summarise(cell), whole(cell)
    short = [[-len(text) for text in texts] for texts in items["candidates"]]
    for value, metric, scores in (
        (cell.wordings["question-blind"], mc1, items["blind_scores"]),
        (cell.wordings["shortest"], mc1, short),  # ties share the credit
        (summary.mc3, mc3, items["scores"]),
    ):
        each = [metric(u, t) for u, t in zip(scores, items["truthful"], strict=True)]
        assert value == pytest.approx(np.mean(each))
    tops = np.array([max(p) for p in items["probabilities"]])
    assert summary.ece == pytest.approx(calibration_error(tops, items["mc1"].to_numpy()))


def test_a_cell_with_only_failed_items_is_undefined():
    [cell] = cells(synthetic_cell("org/m", "truthfulqa", 6, failed=6))
    summary, [verdict] = summarise(cell), judge([cell])
    assert summary.counts == CellCounts(items=0, failed=6)
    assert all(
        isnan(v) for v in (summary.mc1, summary.mc2, summary.ece, summary.scalar, summary.invariant)
    )
    assert verdict.finding == "unlabelled"
    assert all(isnan(v) for v in deltas(read(cell, Theta()), AblatedRule()))
    assert summarise(Cell({**cell.info, "invariant": 0.5}, cell.parts)).invariant == 0.5


@pytest.mark.parametrize("share", [0.3, 0.0005])
def test_the_interval_of_many_values_agrees_with_drawing_each(share, monkeypatch):
    """Equal values are drawn together; most are 0, the others continuous, like gains of MC2."""
    rng = np.random.default_rng(0)
    values = np.where(rng.random(30_000) < share, rng.uniform(-0.4, 1, 30_000), 0.0)
    together = bootstrap_mean(values, 4000)
    assert bootstrap_mean(np.full(30_000, 0.25)) == Interval(0.25, 0.25)
    monkeypatch.setattr(statistics, "MOST_DRAWN", values.size)
    apart = bootstrap_mean(values, 4000)
    width = apart.high - apart.low
    assert (together.low, together.high) == pytest.approx((apart.low, apart.high), abs=width / 20)
    assert together.low < values.mean() < together.high
