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


def test_gains_are_those_of_the_rule_run_whole_on_each_trajectory(cell):
    found = dependence(cell, Theta())
    items = cell.mc1_items
    sighted = gains(items, ("trajectory", "t_scores"))
    blind = gains(items, ("blind_trajectory", "blind_t_scores"))
    assert found.items == len(items)
    total, *operators = found.gains
    assert total.name == "TRACE" and {o for o, _ in sighted} - {"base"} <= {
        g.name for g in operators
    }
    for gain in operators:
        own = [g if o == gain.name else 0.0 for o, g in sighted]
        other = [g if o == gain.name else 0.0 for o, g in blind]
        assert gain.sighted == pytest.approx(np.mean(own))
        assert gain.blind == pytest.approx(np.mean(other))
    for side, rows in (("sighted", sighted), ("blind", blind)):
        whole = np.mean([g for _, g in rows])
        assert getattr(total, side) == pytest.approx(whole)
        assert sum(getattr(g, side) for g in operators) == pytest.approx(whole)
    assert total.sighted == pytest.approx(summarise(cell).delta_mc1)
    assert total.needs == pytest.approx(total.sighted - total.blind)


def test_the_interval_is_paired(cell):
    """Of the items' own differences: resampling both sides apart would be wider or narrower."""
    found = dependence(cell, Theta())
    items = cell.mc1_items
    pairs = zip(
        gains(items, ("trajectory", "t_scores")),
        gains(items, ("blind_trajectory", "blind_t_scores")),
        strict=True,
    )
    differences = np.array([a - b for (_, a), (_, b) in pairs])
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
    base = cells(synthetic_cell(items=20))[0]
    assert dependence(base, Theta()) is None
    old = cells(synthetic_cell(items=20).drop(columns=["blind_trajectory", "blind_t_scores"]))[0]
    assert dependence(old, Theta()) is None
    records = synthetic_cell(items=40, blind="all")
    records.loc[:9, ["blind_trajectory", "blind_t_scores"]] = None
    part = cells(records)[0]
    known = part.mc1_items["blind_trajectory"].notna()
    found = dependence(part, Theta())
    assert found.items == known.sum() < len(part.mc1_items)
    own = part.mc1_items[known]
    assert found.gains[0].sighted == pytest.approx((own["mc1"] - own["mc1_base"]).mean())


def test_unlabelled_items_are_none():
    records = synthetic_cell(items=8, blind="all")
    records[["mc1_base", "mc1"]] = np.nan
    assert dependence(cells(records)[0], Theta()) is None
