"""Gain that depends on the question: against an item-by-item computation."""

import numpy as np
import pytest
from synthetic import cells, synthetic_cell, whole

from lastword.lab.report.dependence import dependence
from lastword.records.cells import summarise
from lastword.records.metrics import mc1
from lastword.rule import geometry, router
from lastword.rule.operators import Ruling
from lastword.rule.theta import Theta

THETA = Theta()


@pytest.fixture(scope="module", params=[2.0, 0.5], ids=["mix", "early"])
def cell(request):
    return cells(synthetic_cell(items=80, invariant=request.param, blind="all"))[0]


def gains(items, names):
    """Return the operator and the gain of each item, by the router."""
    rows = []
    for _, item in items.iterrows():
        S, t = (np.asarray(item[name]) for name in names)
        ruling = router.next_step(geometry.Trajectory(S, t), item["invariant"], THETA)
        assert isinstance(ruling, Ruling)
        gain = mc1(ruling.scores, item["truthful"]) - mc1(S[:, -1], item["truthful"])
        rows.append((ruling.operator, gain))
    return rows


def both(cell):
    names = ("trajectory", "t_scores")
    return gains(whole(cell), names), gains(whole(cell), [f"blind_{name}" for name in names])


def test_gains_agree_with_the_router_on_both_trajectories(cell):
    result = dependence(cell, THETA)
    sighted, blind = both(cell)
    total, *operators = result.gains
    assert result.items == len(cell.mc1_places) and total.name == "TRACE"
    assert {o for o, _ in sighted} - {"base"} <= {gain.name for gain in operators}
    for side, rows in (("sighted", sighted), ("blind", blind)):
        for gain in operators:
            expected = np.mean([g if o == gain.name else 0.0 for o, g in rows])
            assert getattr(gain, side) == pytest.approx(expected)
        assert getattr(total, side) == pytest.approx(np.mean([g for _, g in rows]))
        assert getattr(total, side) == pytest.approx(sum(getattr(g, side) for g in operators))
    assert total.sighted == pytest.approx(summarise(cell).delta_mc1)


def test_the_interval_is_paired(cell):
    """It is of the items' differences; resampling both sides separately would change it."""
    (total, *_) = dependence(cell, THETA).gains
    differences = np.array([a - b for (_, a), (_, b) in zip(*both(cell), strict=True)])
    rng = np.random.default_rng(1)
    means = [rng.choice(differences, len(differences)).mean() for _ in range(4000)]
    low, high = np.quantile(means, [0.025, 0.975])
    assert (total.interval.low, total.interval.high) == pytest.approx((low, high), abs=0.03)
    assert total.interval.low <= total.needs <= total.interval.high


def test_mc1_by_depth_starts_equal_and_ends_with_both_bases(cell):
    result, bases = (
        dependence(cell, THETA),
        (summarise(cell).mc1_base, cell.wordings["question-blind"]),
    )
    assert (result.sighted[-1], result.blind[-1]) == pytest.approx(bases)
    assert result.sighted[0] == result.blind[0]
    for depth in (3, 7):
        items = whole(cell)[["trajectory", "truthful"]].values
        expected = [mc1(S[:, depth], t) for S, t in items]
        assert result.sighted[depth] == pytest.approx(np.mean(expected))


def test_equal_trajectories_have_no_gain_from_the_question():
    records = synthetic_cell(items=60, blind="all")
    records["blind_trajectory"], records["blind_t_scores"] = records.trajectory, records.t_scores
    for gain in dependence(cells(records)[0], THETA).gains:
        assert (gain.needs, gain.interval.low, gain.interval.high) == (0, 0, 0)


def test_items_without_blind_trajectory_are_left_out():
    base, records = synthetic_cell(items=20), synthetic_cell(items=40, blind="all")
    old = base.drop(columns=["blind_trajectory", "blind_t_scores"])
    unlabelled = records.assign(mc1_base=np.nan, mc1=np.nan)
    assert [dependence(cells(r)[0], THETA) for r in (base, old, unlabelled)] == [None] * 3
    records.loc[:9, ["blind_trajectory", "blind_t_scores"]] = None
    part = cells(records)[0]
    items = whole(part)[whole(part)["blind_trajectory"].notna()]
    read = dependence(part, THETA)
    assert read.items == len(items) < len(part.mc1_places)
    assert read.gains[0].sighted == pytest.approx((items["mc1"] - items["mc1_base"]).mean())
