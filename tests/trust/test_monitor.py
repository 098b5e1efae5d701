"""The monitor: its definition, its state, and a bounded rate of false alarms."""

from fractions import Fraction
from functools import reduce
from math import inf, log
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom

from lastword.trust.monitor import (
    BETS,
    PATIENCE,
    Monitor,
    log_restarted,
    log_savings,
    log_slip,
)


@given(st.lists(st.booleans(), max_size=40), st.sampled_from(["0.02", "0.1", "0.5"]))
def test_wealth_and_slip_agree_with_their_definitions(broken, alpha):
    a = Fraction(alpha)
    slips: list[Any] = [Fraction(0)] * 10
    started: list[list[Any]] = [[] for _ in range(10)]
    stakes = [Fraction(9, 10) / 2**j / a for j in range(10)]
    monitor = Monitor(float(a), 0.05)
    rest = [1.0, *(1 / (2 * (1 + log(t))) for t in range(1, len(broken) + 1))]
    for t, x in enumerate(broken):
        monitor = monitor.seen(x)
        won = [1 + stake * (int(x) - a) for stake in stakes]
        for wealths, z in zip(started, won, strict=True):  # one wealth per label to start at
            wealths.append(rest[t] - rest[t + 1])
            wealths[:] = [wealth * float(z) for wealth in wealths]
        slips = [(1 + r) * z for r, z in zip(slips, won, strict=True)]
    staked = sum(map(sum, started)) / 10
    assert monitor.log_wealth == pytest.approx(log(staked + rest[len(broken)]), abs=1e-9)
    slip = sum(slips) / 10
    assert monitor.log_slip == (pytest.approx(log(slip), abs=1e-9) if broken else -inf)
    assert (monitor.labelled, monitor.broken) == (len(broken), sum(broken))


def test_an_alarm_stays():
    monitor = reduce(Monitor.seen, [True] * 4, Monitor(0.02, 0.05))
    assert monitor.alarm and monitor.log_wealth >= log(20)
    monitor = reduce(Monitor.seen, [False] * 500, monitor)
    assert monitor.alarm and monitor.log_wealth < log(20)


def slipping(rates: np.ndarray, alpha: float, streams: int, patience: float) -> np.ndarray:
    """Return each stream's number of labels until the warning, or all without one."""
    rng, state = np.random.default_rng(3), np.full((streams, len(BETS)), -inf)
    first = np.full(streams, len(rates))
    for t, rate in enumerate(rates, start=1):
        state = log_slip(state, rng.random(streams)[:, None] < rate, alpha)
        over = np.logaddexp.reduce(state, axis=1) - log(len(BETS)) >= log(patience)
        first[over & (first == len(rates))] = t
    return first


def test_a_change_after_two_thousand_good_labels_is_reported_soon():
    rates = np.repeat([0.0, 0.04], [2000, 4000])  # no break, then twice alpha
    delay = slipping(rates, 0.02, 60, PATIENCE) - 2000
    assert delay.min() > 0 and delay.max() < 4000 and np.median(delay) < 1600


def alarm_of_restarts(broken: np.ndarray, alpha: float) -> np.ndarray:
    """Return each stream's number of labels until the alarm, or inf without one."""
    wealth = np.full((len(broken), len(BETS)), -inf)
    first = np.full(len(broken), inf)
    for t in range(broken.shape[1]):
        wealth = log_restarted(wealth, t, broken[:, t, None], alpha)
        staked = np.logaddexp.reduce(wealth, axis=1) - log(len(BETS))
        over = np.logaddexp(staked, log_savings(t + 1)) >= log(20)
        first[over & np.isinf(first)] = t + 1
    return first


def test_a_change_after_ten_thousand_good_labels_alarms():
    rates = np.repeat([0.025, 0.1], [10_000, 3000])
    broken = np.random.default_rng(6).random((60, len(rates))) < rates
    delay = alarm_of_restarts(broken, 0.05) - 10_000
    assert (delay > 0).all() and np.isfinite(delay).mean() > 0.95


def test_few_streams_without_change_ever_alarm():
    alpha, delta, runs = 0.05, 0.05, 400
    calm = np.random.default_rng(0).random((runs, 2000)) < alpha
    most = delta + 3.7 * (delta * (1 - delta) / runs) ** 0.5
    assert np.isfinite(alarm_of_restarts(calm, alpha)).mean() <= most
    # A test for a single look fails if it is repeated after every label.
    broken, labelled = calm.cumsum(axis=1), np.arange(1, 2001)
    peeking = (binom.sf(broken - 1, labelled, alpha) <= delta).any(axis=1)
    assert peeking.mean() > most + 0.1


def test_false_slip_warnings_are_at_least_the_patience_apart():
    patience, runs = 100, 400
    until = slipping(np.full(10 * patience, 0.1), 0.1, runs, patience)  # truncated: a lower bound
    assert until.mean() - 3 * until.std() / runs**0.5 >= patience
