"""The monitor: its definition, its memory, and false alarms that are few however long one looks."""

from fractions import Fraction
from math import log

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom

from lastword.errors import InputError
from lastword.trust.monitor import Monitor, log_wealth

STEPS = 2000


@given(st.lists(st.booleans(), max_size=40), st.sampled_from(["0.02", "0.1", "0.5"]))
def test_the_wealth_is_the_mean_of_the_products(broken, alpha):
    a = Fraction(alpha)
    products = [Fraction(1)] * 9
    monitor = Monitor(float(a), 0.05)
    for x in broken:
        monitor = monitor.seen(x)
        products = [
            w * (1 + Fraction(k, 10) / a * (int(x) - a)) for k, w in enumerate(products, start=1)
        ]
    assert monitor.log_wealth == pytest.approx(log(sum(products) / 9), abs=1e-9)
    assert (monitor.labelled, monitor.broken) == (len(broken), sum(broken))


def test_the_alarm_stays_and_counts_that_are_none_are_refused():
    monitor = Monitor(0.02, 0.05)
    for _ in range(3):
        monitor = monitor.seen(True)
    assert monitor.alarm and monitor.log_wealth >= log(20)
    for _ in range(500):
        monitor = monitor.seen(False)
    assert monitor.alarm and monitor.log_wealth < log(20)
    assert Monitor(**vars(monitor)) == monitor  # its state is its fields
    for wrong in ({"alpha": 0.0}, {"delta": 1.0}, {"labelled": 2, "broken": 3}):
        with pytest.raises(InputError):
            Monitor(**{"alpha": 0.1, "delta": 0.1} | wrong)


def test_wealth_survives_what_would_overflow():
    assert np.isfinite(log_wealth(10**6, 10**6, 0.02))
    assert np.isfinite(log_wealth(0, 10**6, 0.02))


def test_false_alarms_are_few_however_long_one_looks():
    alpha, delta, runs = 0.05, 0.05, 400
    drawn = np.random.default_rng(0).random((runs, STEPS)) < alpha
    broken, labelled = drawn.cumsum(axis=1), np.arange(1, STEPS + 1)
    ever = (log_wealth(broken, labelled, alpha) >= log(1 / delta)).any(axis=1)
    most = delta + 3.7 * (delta * (1 - delta) / runs) ** 0.5
    assert ever.mean() <= most
    # A test that is made for one look fails where one looks all the time.
    peeking = (binom.sf(broken - 1, labelled, alpha) <= delta).any(axis=1)
    assert peeking.mean() > most + 0.1


def test_what_breaks_three_times_too_often_is_noticed_soon():
    drawn = np.random.default_rng(1).random((50, STEPS)) < 0.15
    wealth = log_wealth(drawn.cumsum(axis=1), np.arange(1, STEPS + 1), 0.05)
    over = wealth >= log(20)
    assert over.any(axis=1).all() and np.median(over.argmax(axis=1)) < 150
