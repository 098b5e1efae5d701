"""Controls against naive definitions, and on constructed cells."""

import numpy as np
import pandas as pd
import pytest
from synthetic import cell_of, cells, every_record, synthetic_cell, whole

from lastword.lab.evaluation.controls import Controls, Placebo, controls, placebo
from lastword.lab.evaluation.statistics import verdict
from lastword.probes.controls import ALPHA
from lastword.records.cells import Cell


def cell_with(**columns) -> Cell:
    """Return a cell with only the columns that controls use."""
    count = len(columns["truthful"])
    blank = {"id": [str(i) for i in range(count)], "error": None, "invariant": 2.0}
    blank["base_scores"] = [[0.0] * len(truth) for truth in columns["truthful"]]
    records = pd.DataFrame(blank | columns)
    for name, place in (("mc1_base", "base_index"), ("mc1", "index")):
        truths = zip(records["truthful"], records[place], strict=True)
        records[name] = [float(t[i]) for t, i in truths]
    records["mc2_base"] = records["mc2"] = np.nan
    return cell_of(records)


@pytest.fixture(scope="module")
def read_whole() -> Cell:
    return cells(synthetic_cell(items=120, blind="all"))[0]


@pytest.fixture(scope="module")
def four() -> Cell:
    return cell_with(
        truthful=[[True, False], [False, True, False], [True, False], [False, False, True, True]],
        candidates=[["a", "bb"], ["ccc", "d", "e"], ["ff", "gg"], ["h", "i", "j", "kkkk"]],
        blind_scores=[[-1.0, -2.0], [-1.0, -2.0, -3.0], [-2.0, -1.0], [-4.0, -3.0, -2.0, -1.0]],
        base_index=[0, 0, 1, 0],
        index=[0, 1, 0, 2],
    )


def test_chance_and_wordings_agree_with_their_definitions(four):
    result = controls(four)
    assert result.chance == pytest.approx((1 / 2 + 1 / 3 + 1 / 2 + 2 / 4) / 4)
    shortest = (1 + 1 / 2 + 1 / 2 + 1 / 3) / 4  # ties are shared
    longest = (0 + 0 + 1 / 2 + 1) / 4
    assert result.wordings == {
        "shortest": pytest.approx(shortest),
        "longest": pytest.approx(longest),
        "question-blind": pytest.approx((1 + 0 + 0 + 1) / 4),
        "anti-blind": pytest.approx((0 + 0 + 1 + 0) / 4),
    }
    assert result.fit is None and np.isnan(result.blind_oracle)
    none = placebo(cell_of(every_record(four).assign(index=every_record(four)["base_index"])))
    assert none.overrides == 0 and np.isnan(none.gain) and np.isnan(none.p)


def naive_placebo(cell: Cell, overrides: int, draws: int) -> np.ndarray:
    """Return the gains of as many random overrides, drawn one by one."""
    rng, items = np.random.default_rng(1), whole(cell)
    rows = [(np.array(t), b) for t, b in zip(items["truthful"], items["base_index"], strict=True)]
    gains = []
    for _ in range(draws):
        gain = 0.0
        for i in rng.choice(len(rows), overrides, replace=False):
            truthful, base = rows[i]
            other = rng.choice([j for j in range(len(truthful)) if j != base])
            gain += float(truthful[other]) - float(truthful[base])
        gains.append(gain / len(rows))
    return np.array(gains)


def test_the_placebo_agrees_with_flips_drawn_one_by_one(read_whole):
    result = placebo(read_whole)
    items = whole(read_whole)
    changed = (items["index"] != items["base_index"]).sum()
    assert result.overrides == changed > 5
    naive = naive_placebo(read_whole, result.overrides, 1500)
    assert result.gain == pytest.approx(naive.mean(), abs=4 * naive.std() / np.sqrt(1500))
    share = (naive >= read_whole.gains("mc1").mean() - 1e-12).mean()
    assert result.p == pytest.approx(share, abs=0.05)


def test_random_flips_raise_a_base_below_chance():
    wrong = {"truthful": [[True, False]] * 40, "base_index": [1] * 36 + [0] * 4}
    cell = cell_with(**wrong, index=[0] * 20 + [1] * 16 + [0] * 4, candidates=[["a", "b"]] * 40)
    result = placebo(cell)
    assert result.overrides == 20
    assert result.gain == pytest.approx((20 * 0.9 - 20 * 0.1) / 40, abs=0.01)
    assert result.p > ALPHA  # 20 fixed, none broken; but random flips gain as much


def test_copies_in_one_group_do_not_lower_p_values(read_whole):
    """With ten copies of each item, ten times the penalty gives the same fit."""
    one = controls(read_whole).fit
    records = every_record(read_whole)
    copied = records.loc[np.repeat(records.index, 10)].copy()
    copies = [str(copy) for copy in range(10)] * len(records)
    copied["shared"] = copied["id"].astype(str)
    copied["id"] += ["/" + copy for copy in copies]
    copied["prompt"] += copies  # different texts: only the group connects them
    ten = controls(cell_of(copied.reset_index(drop=True))).fit
    for after, before in ((ten.reading, one.reading), (ten.middle, one.middle)):
        assert (after.fixed, after.broken) == (10 * before.fixed, 10 * before.broken)
        assert 0.001 < before.p <= after.p <= 1


@pytest.mark.parametrize(
    ("gain", "p", "rival", "flips", "finding", "objection"),
    [
        (0.1, 0.2, 0.1, 0.01, "unclear", ""),
        (-0.1, 0.01, 0.9, 0.9, "hurts", "and so does longest, which never reads the question"),
        (0.1, 0.01, 0.3, 0.01, "helps", ""),
        (0.1, 0.01, 0.4, 0.01, "gains", "and so does longest, which never reads the question"),
        (0.1, 0.01, 0.3, 0.2, "gains", "and so do as many random flips"),
    ],
)
def test_a_verdict_considers_controls_that_never_read_the_question(
    gain, p, rival, flips, finding, objection
):
    flipped = Placebo(9, 0.0, flips)
    beside = Controls(0.3, 0.4, 0.25, flipped, {"longest": rival}, None, 0.9, 0.9)
    assert beside.objection == objection
    assert verdict(gain, p, beside.objection) == finding
