"""Drift tests: ranks, bets, saved state, and a bounded rate of false warnings."""

from fractions import Fraction
from math import exp

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lastword.trust import drift
from lastword.trust.drift import Drift, Martingale

VALUES = st.sampled_from([-1.0, 0.0, 0.5, 2.0, float("inf")])


@given(st.lists(VALUES, max_size=6), st.lists(VALUES, min_size=1, max_size=8))
def test_ranks_and_wealth_agree_with_their_definitions(reference, values):
    test, pool = Martingale(reference, seed=3), list(reference)
    wealth = dict.fromkeys((-1.5, -1.0, -0.5, 0.5, 1.0, 1.5), Fraction(1))
    for value in values:
        p = test.see(value)
        pool.append(value)
        above = sum(s > value for s in pool) / len(pool)
        assert above <= p <= above + sum(s == value for s in pool) / len(pool)
        wealth = {
            e: w * (1 + Fraction(e) * (Fraction(p) - Fraction(1, 2))) for e, w in wealth.items()
        }
    assert exp(test.log_wealth) == pytest.approx(float(sum(wealth.values()) / 6))
    assert test.seen == len(values)


def test_tests_that_follow_each_other_or_start_anew_equal_one():
    rng = np.random.default_rng(8)
    reference = {"confidence": rng.random(30), "d_eff": rng.random(30)}
    whole, *pair, late = (Drift(reference, 0.05) for _ in range(4))
    so_far: dict[str, list[float]] = {name: [] for name in reference}
    for place in range(40):
        values = {"confidence": rng.random(), **({"d_eff": rng.random()} if place % 3 else {})}
        one, other = pair[place % 2], pair[(place + 1) % 2]
        whole.see(values)
        one.see(values)
        new = {name: [value] for name, value in values.items()}
        so_far = {name: each + new.get(name, []) for name, each in so_far.items()}
        assert other.follow(new, one.state()) and late.follow(so_far, one.state(), anew=True)
        assert one.state() == other.state() == late.state() == whole.state()
    whole.see({"confidence": 0.5})
    assert not pair[0].follow({}, whole.state())  # it missed one value


def test_a_test_restarts_after_its_window(monkeypatch):
    monkeypatch.setattr(drift, "WINDOW", 50)
    test, fresh = Martingale([0.0, 1.0], seed=1), Martingale([0.0, 1.0], seed=1)
    for place, value in enumerate(np.random.default_rng(5).random(60)):
        test.see(value)
        if place >= 50:
            fresh.see(value)
    assert test.seen == 10 and np.array_equal(test.wealth, fresh.wealth)


def test_only_a_changed_statistic_warns_and_only_once():
    rng = np.random.default_rng(6)
    reference = {"moved": rng.random(200), "same": rng.random(200), "absent": rng.random(200)}
    watched, warnings = Drift(reference, 0.05), []
    for _ in range(400):
        warnings += watched.see(
            {"moved": 0.4 + 0.6 * rng.random(), "same": rng.random(), "new": 1.0}
        )
    assert warnings == ["moved"] and watched.warned == {"moved"}
    assert watched.tests["absent"].seen == 0


def test_few_streams_without_change_ever_warn():
    runs, steps, size, delta = 100, 120, 30, 0.1
    rng, warned = np.random.default_rng(7), 0
    for _ in range(runs):
        values = rng.normal(size=size + steps)
        watched = Drift({"s": values[:size]}, delta)
        for value in values[size:]:
            watched.see({"s": value})
        warned += bool(watched.warned)
    assert warned / runs <= delta + 3.7 * (delta * (1 - delta) / runs) ** 0.5
