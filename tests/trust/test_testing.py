"""The unconditional test of a paired gain, on all tables of 10 to 60 answers."""

import numpy as np
import pytest
from scipy.stats import binomtest, multinomial
from tiers import by_night

from lastword.trust.testing import clopper_pearson, paired_bound, paired_p

LEVEL = 0.05
GAINS = (-0.3, -0.1, 0.05, 0.1, 0.2, 0.4)


def tables(size: int) -> tuple[np.ndarray, np.ndarray]:
    """Return all possible counts of fixed and broken answers."""
    fixed, broken = np.mgrid[: size + 1, : size + 1].reshape(2, -1)
    possible = fixed + broken <= size
    return fixed[possible], broken[possible]


@pytest.mark.parametrize("size", by_night(range(10, 61), [10, 13, 20, 31, 44, 60]))
def test_a_true_gain_is_rejected_at_most_as_often_as_the_level(size):
    """At gain 0 this is the size of the test, at others the error of the bound."""
    fixed, broken = tables(size)
    for gain in (0.0, GAINS[size % len(GAINS)]):
        rejected = paired_p(fixed, broken, size, gain) <= LEVEL
        outcomes = np.stack([fixed, broken, size - fixed - broken], axis=1)[rejected]
        for changed in np.linspace(max(abs(gain), 0.005), 1, 60):
            rates = np.clip([(changed + gain) / 2, (changed - gain) / 2, 1 - changed], 0, 1)
            assert multinomial.pmf(outcomes, size, rates).sum() <= LEVEL, (gain, changed)


def test_all_gains_below_the_bound_are_rejected():
    fixed, broken = tables(12)
    pairs = zip(fixed.tolist(), broken.tolist(), strict=True)
    bounds = [paired_bound(f, b, 12, LEVEL) for f, b in pairs]
    for gain in np.linspace(-0.99, 0.99, 67):
        left = paired_p(fixed, broken, 12, gain) > LEVEL
        assert (gain >= np.array(bounds)[left] - 1e-6).all(), gain


def test_the_unconditional_test_is_more_powerful_than_the_sign_test():
    """The worked example."""
    (p,) = paired_p(np.array([6]), np.array([1]), 20)
    assert p == pytest.approx(0.037, abs=5e-4)
    assert p < LEVEL < binomtest(6, 7, alternative="greater").pvalue == 8 / 128
    assert paired_bound(6, 1, 20, LEVEL) == pytest.approx(0.020, abs=5e-4)


@pytest.mark.parametrize(("won", "lost"), [(12, 2), (15, 1)])
def test_the_p_value_agrees_with_its_definition(won, lost):
    """In both tables it is largest at an end of the interval."""
    fixed, broken = tables(20)
    scores = (fixed - broken) / np.sqrt(np.maximum(fixed + broken, 1))
    as_high = scores >= (won - lost) / (won + lost) ** 0.5 - 1e-9
    outcomes = np.stack([fixed, broken, 20 - fixed - broken], axis=1)[as_high]
    ends = binomtest(won + lost, 20).proportion_ci(1 - 0.0005, method="exact")
    shares = np.linspace(ends.low, ends.high, 40)
    tails = [multinomial.pmf(outcomes, 20, [s / 2, s / 2, 1 - s]).sum() for s in shares]
    (p,) = paired_p(np.array([won]), np.array([lost]), 20)
    assert p == pytest.approx(max(tails) + 0.0005, abs=1e-6)


@pytest.mark.parametrize(("count", "size"), [(0, 7), (1, 20), (3, 7), (7, 7), (40, 90)])
def test_the_exact_interval_agrees_with_scipy(count, size):
    expected = binomtest(count, size).proportion_ci(0.95, method="exact")
    assert clopper_pearson(count, size, 0.025) == pytest.approx((expected.low, expected.high))
