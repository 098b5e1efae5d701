"""The second round: bounds, levels and the forecast, against simulation and scipy."""

import numpy as np
import pytest
from scipy.stats import binomtest

from lastword.errors import InputError
from lastword.trust.claims import Trial, judge
from lastword.trust.evidence import Evidence
from lastword.trust.policy import Policy
from lastword.trust.second_round import DrawnRows, deal
from lastword.trust.terms import Terms
from lastword.trust.testing import paired_bound


def test_the_worked_example_and_the_levels_of_looks():
    drawn = DrawnRows(pool=240, differ=90, rows=40, fixed=22, broken=6)
    assert drawn.p == pytest.approx(0.0016, abs=5e-5) and drawn.proves("gain", 0.05, 0.05)
    assert drawn.gain_bound(drawn.level(0.05)) == pytest.approx(0.040, abs=5e-4)
    low = binomtest(90, 240, alternative="greater").proportion_ci(1 - 0.2 * 0.025).low
    assert drawn.gain_bound(0.025) == pytest.approx(low * paired_bound(22, 6, 40, 0.02))
    share = binomtest(90, 240, alternative="less").proportion_ci(1 - 0.2 * 0.025).high
    of_rows = binomtest(6, 40, alternative="less").proportion_ci(1 - 0.8 * 0.025).high
    assert drawn.broken_bound(0.025) == pytest.approx(share * of_rows)
    assert drawn.proves("breaks", 0.15, 0.05) and not drawn.proves("breaks", 0.1, 0.05)
    assert sum(DrawnRows(9, 9, 9, 1, 1, look=n).level(0.05) for n in range(1, 40)) <= 0.05
    with pytest.raises(InputError, match="do not fit together"):
        DrawnRows(pool=240, differ=30, rows=40, fixed=22, broken=6)


@pytest.mark.parametrize("rates", [(0.3, 0.3), (0.5, 0.5), (0.1, 0.1)])
def test_a_missing_gain_is_proven_at_most_as_often_as_the_level(rates):
    """A third of the pool differs, without any gain there."""
    random = np.random.default_rng(0)
    counts = random.multinomial(40, [*rates, 1 - sum(rates)], size=600)
    proven = [DrawnRows(240, 80, 40, int(f), int(k)).proves("gain", 0.5, 0.2) for f, k, _ in counts]
    assert binomtest(sum(proven), len(proven), 0.1, alternative="greater").pvalue > 0.01


def test_deal_draws_one_text_per_group_in_an_order_set_by_the_seed():
    groups = [0, 0, 1, 2, 2, 2, 3]
    assert sorted(groups[i] for i in deal(groups, 5)) == [0, 1, 2, 3]
    assert {int(deal(groups, seed)[0]) for seed in range(60)} == set(range(7))


def test_a_probe_has_the_unconditional_test():
    """6 fixed and 1 broken of 20: p is 0.037, but 0.0625 by the sign test."""
    base, shown = np.arange(20) == 6, np.arange(20) < 6
    for method, bound in (("probe", paired_bound(6, 1, 20, 0.05)), ("pmi@1", None)):
        terms = Terms(methods=(method,), promise="gain")
        evidence = Evidence.of(base, shown, np.arange(20))
        trial = Trial(Policy((method,), 0.0, method), 1.0, evidence)
        assert judge([trial], terms).worth.get("net_at_least") == bound
