"""Statistics: the paper's own grid, tests against enumeration, and verdicts that they justify."""

from itertools import product
from math import comb, isnan, nan

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from synthetic import cells, synthetic_cell

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
from lastword.records.cells import CellCounts, summarise
from lastword.records.metrics import mc1, mc3, reliability
from lastword.records.readings import read
from lastword.records.variant import Variant
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
    said = over_cells(published(metric))
    assert said.cells == 45 and said.negative == 0
    assert said.mean == pytest.approx(mean, abs=5e-5)
    # The ends of such an interval move by about 0.01 from seed to seed.
    assert said.interval.low == pytest.approx(low, abs=0.04)
    assert said.interval.high == pytest.approx(high, abs=0.04)
    assert said.sign_p == pytest.approx(2.0**-45)


def test_the_bootstrap_is_its_enumeration():
    values = np.array([0.0, 0.3, 1.0, 5.0])
    means = [np.mean(draw) for draw in product(values, repeat=4)]
    low, high = np.quantile(means, [0.025, 0.975])
    interval = bootstrap_mean(values, 100_000)
    # The ends fall on the few means that four values can have.
    assert interval.low == pytest.approx(low, abs=1e-9)
    assert interval.high == pytest.approx(high, abs=1e-9)


def test_the_bootstrap_repeats_itself_and_covers_what_it_should():
    rng, inside = np.random.default_rng(1), 0
    values = rng.normal(size=50)
    assert bootstrap_mean(values) == bootstrap_mean(values)
    for _ in range(200):
        interval = bootstrap_mean(rng.exponential(size=80) - 1, 400)
        inside += interval.low <= 0 <= interval.high
    assert 175 <= inside <= 199


def test_the_counts_of_a_cell_part_its_records():
    bare = synthetic_cell("org/m", "halueval-qa", 7, failed=2)
    bare = bare.assign(truthful=None, mc1=nan, mc1_base=nan, mc2=nan, mc2_base=nan)
    both = pd.concat([bare, synthetic_cell("org/m", "truthfulqa", 20, failed=1)])
    unlabelled, labelled = cells(both)
    assert unlabelled.counts == CellCounts(items=0, unlabelled=5, failed=2)
    assert labelled.counts == CellCounts(items=9, mc2=10, failed=1)
    assert unlabelled.counts + labelled.counts == CellCounts(9, 10, 5, 3)


@pytest.mark.parametrize("cells", [4, 5])
def test_fewer_than_five_cells_have_no_interval(cells):
    said = over_cells(np.linspace(0.0, 0.1, cells))
    assert said.cells == cells and said.mean == pytest.approx(0.05)
    assert isnan(said.interval.low) == isnan(said.interval.high) == (cells < 5)


def test_nothing_to_resample_is_undefined():
    interval = bootstrap_mean(np.array([]))
    assert isnan(interval.low) and isnan(interval.high)
    assert isnan(sign_test(np.array([0.0, 0.0])))
    assert isnan(over_cells(np.array([nan])).mean)


@given(st.integers(0, 12), st.integers(0, 12))
def test_mcnemar_is_the_binomial_tail_doubled(fixed, broken):
    n, k = fixed + broken, min(fixed, broken)
    tail = sum(comb(n, i) for i in range(k + 1)) / 2**n
    assert mcnemar(fixed, broken) == pytest.approx(min(1.0, 2 * tail))


def test_the_sign_test_leaves_out_ties_and_counts_its_tail():
    deltas = np.array([0.1, 0.2, 0.0, -0.1, 0.3, 1e-15])
    assert sign_test(deltas) == pytest.approx((1 + 4) / 16)


@given(st.lists(st.floats(0, 1) | st.just(nan), min_size=1, max_size=8))
def test_holm_rejects_what_stepping_down_rejects(p_values):
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


def labelled(gains):
    """A cell whose items gain as given."""
    records = synthetic_cell("org/m", "halueval-qa", len(gains))
    records["mc1_base"] = [0.0 if g > 0 else 1.0 for g in gains]
    records["mc1"] = records["mc1_base"] + gains
    return cells(records)[0]


def test_a_gain_without_controls_is_no_help():
    won, lost = (labelled([sign] * 20 + [0.0] * 80) for sign in (1.0, -1.0))
    [bare] = judge([won])
    assert bare.finding == "gains" and bare.objection
    beaten, hurt = judge([won, lost], ["and so does longest"] * 2)
    assert (beaten.finding, beaten.objection) == ("gains", "and so does longest")
    assert beaten.objection in beaten.sentence
    assert (hurt.finding, hurt.objection) == ("hurts", "")


def copied(times, **columns):
    """A cell in which six items gain and two lose, and each stands so many times in it."""
    records = synthetic_cell("org/m", "halueval-qa", 40)
    gains = np.array([1.0] * 6 + [-1.0] * 2 + [0.0] * 32)
    records["mc1_base"] = np.where(gains > 0, 0.0, 1.0)
    records["mc1"] = records["mc1_base"] + gains
    many = records.loc[records.index.repeat(times)].reset_index(drop=True)
    many["id"] = [f"{name}/{place}" for place, name in enumerate(many["id"])]
    return cells(many.assign(**{name: own(many) for name, own in columns.items()}))[0]


def shouted(records):
    return [f" {text.upper()}\n" if n % 2 else text for n, text in enumerate(records["prompt"])]


def test_copies_are_one_group_of_mcnemars_test():
    [once], [often] = (judge([copied(times, prompt=shouted)]) for times in (1, 10))
    assert (once.fixed, once.broken, often.fixed, often.broken) == (6, 2, 60, 20)
    assert (often.won, often.lost) == (once.won, once.lost) == (6, 2)
    assert often.p == once.p == mcnemar(6, 2) > 0.05 > mcnemar(60, 20)
    assert often.delta_mc1 == pytest.approx(once.delta_mc1)
    width = often.interval_mc1.high - often.interval_mc1.low
    assert width >= 0.9 * (once.interval_mc1.high - once.interval_mc1.low)
    assert "McNemar over groups, 6 against 2, p = 0.289" in often.sentence
    assert "groups" not in once.sentence
    [kept] = judge([copied(1, prompt=lambda records: [""] * len(records))])  # without its texts
    assert (kept.won, kept.lost) == (6, 2)


@given(st.lists(st.tuples(st.sampled_from([-1.0, -1 / 3, 0.0, 1 / 3, 1.0]), st.integers(0, 4))))
def test_gains_of_groups_have_the_mean_of_their_items(pairs):
    gains = np.array([gain for gain, _ in pairs])
    groups = np.unique([group for _, group in pairs], return_inverse=True)[1]
    own = folded(gains, groups.astype(np.int64))
    assert own.sum() / max(own.size, 1) == pytest.approx(gains.mean() if gains.size else 0)
    for number, value in enumerate(own):
        assert np.sign(value) == np.sign(round(gains[groups == number].sum(), 9))
    assert folded(gains, np.arange(len(gains))).tolist() == gains.tolist()


def test_a_verdict_is_corrected_for_the_cells_beside_it():
    cell = labelled([1.0] * 9 + [-1.0] * 1 + [0.0] * 20)
    [alone] = judge([cell], [""])
    among = judge([cell] * 3, [""] * 3)
    assert alone.p < 0.05 and alone.finding == "helps"
    assert [v.finding for v in among] == ["unclear"] * 3


@pytest.mark.parametrize(
    ("fixed", "broken", "same", "finding"),
    [(20, 0, 80, "helps"), (0, 20, 80, "hurts"), (20, 20, 60, "unclear"), (0, 0, 30, "unclear")]
    + [(3, 0, 0, "unclear")],  # the interval is [1, 1], but of three items
)
def test_a_verdict_needs_the_exact_test(fixed, broken, same, finding):
    [verdict] = judge([labelled([1.0] * fixed + [-1.0] * broken + [0.0] * same)], [""])
    assert (verdict.finding, verdict.fixed, verdict.broken) == (finding, fixed, broken)
    assert verdict.items == fixed + broken + same


def test_an_unlabelled_cell_says_so_and_does_not_weigh_on_the_others():
    records = synthetic_cell("org/m", "mine", 10)
    records[["mc1_base", "mc1", "mc2_base", "mc2"]] = nan
    judged = judge([labelled([1.0] * 8 + [0.0] * 10), cells(records)[0]])
    assert judged[1].finding == "unlabelled" and "nothing to judge" in judged[1].sentence
    assert judged[0].p_holm == judged[0].p
    assert judged[0].interval_mc1 != Interval(nan, nan)


def test_a_summary_is_what_the_records_say():
    records = synthetic_cell("org/m", "truthfulqa", 200, failed=6, invariant=0.5)
    [cell] = cells(records)
    said, answered = summarise(cell), records[records["error"].isna()]
    own = answered[answered["mc1_base"].notna()]
    assert len(own) == 97 and said.counts == CellCounts(items=97, mc2=97, failed=6)
    assert said.mc1 == pytest.approx(own["mc1"].mean())
    assert said.delta_mc2 == pytest.approx((answered["mc2"] - answered["mc2_base"]).mean())
    assert sum(said.gain_mc1.values()) == pytest.approx(said.delta_mc1)
    assert sum(said.gain_mc2.values()) == pytest.approx(said.delta_mc2)
    assert said.scalar == pytest.approx(np.mean([len(c) == 2 for c in own["candidates"]]))
    confident = [max(b) < -1 and len(b) == 2 for b in own["base_scores"]]
    assert said.fired["early"] == pytest.approx(np.mean(confident)) and said.fired["mix"] == 0
    assert said.fixed == ((own["mc1"] - own["mc1_base"]) > 0).sum()


def test_pairs_are_counted_from_the_items_own_metric():
    records = synthetic_cell("org/m", "halueval-qa", 40)
    assert np.isnan(summarise(*cells(records)).pairs)
    records["id"] = [f"pair/{i // 2}/{'ab'[i % 2]}" for i in range(len(records))]
    [cell] = cells(records)
    said, right = summarise(cell), cell.mc1_items.set_index("id")
    for share, name in ((said.pairs_base, "mc1_base"), (said.pairs, "mc1")):
        known = [right.loc[[f"pair/{i}/a", f"pair/{i}/b"], name].min() == 1 for i in range(20)]
        assert share == pytest.approx(np.mean(known))


def test_baselines_and_calibration_are_recomputed_from_the_items():
    [cell] = cells(synthetic_cell("org/m", "halueval-qa", 50))
    said, own = summarise(cell), cell.mc1_items
    short = [[-len(text) for text in texts] for texts in own["candidates"]]
    for value, metric, scores in (
        (said.blind, mc1, own["blind_scores"]),
        (said.shortest, mc1, short),  # ties share their credit
        (said.mc3, mc3, own["scores"]),
    ):
        each = [metric(u, t) for u, t in zip(scores, own["truthful"], strict=True)]
        assert value == pytest.approx(np.mean(each))
    tops = np.array([max(p) for p in own["probabilities"]])
    assert said.ece == pytest.approx(reliability(tops, own["mc1"].to_numpy()).ece)


def test_a_cell_in_which_everything_failed_is_undefined_not_an_error():
    [cell] = cells(synthetic_cell("org/m", "truthfulqa", 6, failed=6))
    said, [verdict] = summarise(cell), judge([cell])
    assert said.counts == CellCounts(items=0, failed=6)
    assert all(isnan(v) for v in (said.mc1, said.mc2, said.ece, said.scalar, said.invariant))
    assert verdict.finding == "unlabelled"
    assert all(isnan(v) for v in deltas(read(cell, Theta()), Variant()))


@pytest.mark.parametrize("share", [0.3, 0.0005])
def test_the_interval_of_very_many_values_is_that_of_drawing_each(share, monkeypatch):
    """Like values are drawn together; most are 0, and some lie anywhere, as gains of MC2 do."""
    rng = np.random.default_rng(0)
    values = np.where(rng.random(30_000) < share, rng.uniform(-0.4, 1, 30_000), 0.0)
    together = bootstrap_mean(values, 4000)
    assert bootstrap_mean(np.full(30_000, 0.25)) == Interval(0.25, 0.25)
    monkeypatch.setattr(statistics, "MOST_DRAWN", values.size)
    apart = bootstrap_mean(values, 4000)
    width = apart.high - apart.low
    assert (together.low, together.high) == pytest.approx((apart.low, apart.high), abs=width / 20)
    assert together.low < values.mean() < together.high
