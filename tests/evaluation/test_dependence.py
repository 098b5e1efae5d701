"""Gain that needs the question: against an independent computation, item by item."""

import numpy as np
import pytest
from synthetic import synthetic_cell

from lastword.records.cells import cells, summarise
from lastword.records.metrics import mc1
from lastword.report.dependence import dependence
from lastword.rule import geometry, router
from lastword.theta import Theta

WHOLE = {"mix": 2.0, "early": 0.5}


@pytest.fixture(scope="module", params=WHOLE)
def cell(request):
    return cells(synthetic_cell(items=80, invariant=WHOLE[request.param], blind="all"))[0]


def decided(S, t, invariant):
    verdict = router.next_step(geometry.Trajectory(S, t), invariant, Theta())
    assert isinstance(verdict, router.Verdict)
    return verdict.correction


def gains(items, names):
    """What the rule adds to each item by the operator that answers, in plain Python."""
    rows = []
    for _, item in items.iterrows():
        S, t = (np.asarray(item[name]) for name in names)
        correction = decided(S, t, item["invariant"])
        gain = mc1(correction.scores, item["truthful"]) - mc1(S[:, -1], item["truthful"])
        rows.append((correction.operator, gain))
    return rows


def both(cell):
    names = ("trajectory", "t_scores")
    return gains(cell.mc1_items, names), gains(cell.mc1_items, [f"blind_{name}" for name in names])


def test_gains_are_those_of_the_rule_run_whole_on_each_trajectory(cell):
    found = dependence(cell, Theta())
    sighted, blind = both(cell)
    assert found.items == len(cell.mc1_items)
    total, *operators = found.gains
    assert total.name == "TRACE" and {o for o, _ in sighted} - {"base"} <= {
        g.name for g in operators
    }
    for side, rows in (("sighted", sighted), ("blind", blind)):
        for gain in operators:
            own = [g if o == gain.name else 0.0 for o, g in rows]
            assert getattr(gain, side) == pytest.approx(np.mean(own))
        whole = np.mean([g for _, g in rows])
        assert getattr(total, side) == pytest.approx(whole)
        assert sum(getattr(g, side) for g in operators) == pytest.approx(whole)
    assert total.sighted == pytest.approx(summarise(cell).delta_mc1)
    assert total.needs == pytest.approx(total.sighted - total.blind)


def test_the_interval_is_paired(cell):
    """Of the items' own differences: resampling both sides apart would be wider or narrower."""
    found = dependence(cell, Theta())
    differences = np.array([a - b for (_, a), (_, b) in zip(*both(cell), strict=True)])
    rng = np.random.default_rng(1)
    means = [rng.choice(differences, len(differences)).mean() for _ in range(4000)]
    low, high = np.quantile(means, [0.025, 0.975])
    interval = found.gains[0].interval
    assert (interval.low, interval.high) == pytest.approx((low, high), abs=0.03)
    assert interval.low <= found.gains[0].needs <= interval.high


def test_mc1_by_depth_ends_in_both_bases_and_starts_equal(cell):
    found = dependence(cell, Theta())
    said = summarise(cell)
    assert found.sighted[found.depth] == pytest.approx(said.mc1_base)
    assert found.blind[found.depth] == pytest.approx(said.blind)
    assert found.sighted[0] == found.blind[0]
    for depth in (3, 7):
        known = [mc1(S[:, depth], t) for S, t in cell.mc1_items[["trajectory", "truthful"]].values]
        assert found.sighted[depth] == pytest.approx(np.mean(known))


def test_a_rule_that_reads_the_same_both_ways_needs_no_question():
    records = synthetic_cell(items=60, blind="all")
    records["blind_trajectory"], records["blind_t_scores"] = records.trajectory, records.t_scores
    for gain in dependence(cells(records)[0], Theta()).gains:
        assert (gain.needs, gain.interval.low, gain.interval.high) == (0, 0, 0)


def test_what_was_not_read_blind_is_left_out_or_said():
    base, records = synthetic_cell(items=20), synthetic_cell(items=40, blind="all")
    old = base.drop(columns=["blind_trajectory", "blind_t_scores"])
    unlabelled = records.assign(mc1_base=np.nan, mc1=np.nan)
    assert [dependence(cells(r)[0], Theta()) for r in (base, old, unlabelled)] == [None] * 3
    records.loc[:9, ["blind_trajectory", "blind_t_scores"]] = None
    part = cells(records)[0]
    known = part.mc1_items["blind_trajectory"].notna()
    found = dependence(part, Theta())
    assert found.items == known.sum() < len(part.mc1_items)
    own = part.mc1_items[known]
    assert found.gains[0].sighted == pytest.approx((own["mc1"] - own["mc1_base"]).mean())
