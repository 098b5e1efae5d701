"""Automation: estimates, the ladder, and how rarely its promise is false."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import betabinom, binom

from lastword.errors import InputError
from lastword.trust.automation import (
    Automation,
    Errors,
    Rung,
    climb,
    curve,
    estimate,
    labels_to_prove,
    plan,
    quantiles,
    rungs,
    until_failure,
)
from lastword.trust.second_round import deal

DELTA, DRAWS = 0.1, 400


def draw(count, rng, slope=0.5):
    """Return confidences, and wrong answers with probability slope (1 - confidence)."""
    confidence = rng.random(count)
    return confidence, rng.random(count) < slope * (1 - confidence)


def true_error(threshold, slope=0.5):
    """Return the share of wrong answers at or above a threshold."""
    return slope * (1 - threshold) / 2


@pytest.mark.parametrize(("error", "drawn"), [(0.08, True), (0.12, True), (0.15, False)])
def test_few_promises_are_false_and_many_are_made(error, drawn):
    """Labels are drawn by confidence, the ladder is planned on other labels, five per group."""
    rng, false, made = np.random.default_rng(0), 0, 0
    for _ in range(DRAWS):
        fit, fit_wrong = draw(100, rng)
        pool, wrong = draw(800, rng)
        steps = curve(fit, fit_wrong, np.arange(100))
        ladder = plan(steps, pool, rows=120, error=error, level=DELTA, drawn=drawn)
        region = np.flatnonzero(pool >= ladder.thresholds[-1])
        some = region[deal(region, 1)][:120] if drawn else np.arange(120)
        tested = rungs(pool[some], wrong[some], some, ladder.thresholds, pool)
        rung = Automation(error, until_failure(tested, error, DELTA)).rung(DELTA)
        if rung is not None:
            made += 1
            false += true_error(rung.threshold) > error
    assert made > DRAWS / 10
    assert binom.sf(false - 1, DRAWS, DELTA) > 0.001


@pytest.mark.parametrize("seed", range(3))
def test_the_labels_that_would_prove_a_promise_are_just_enough(seed: int) -> None:
    fit, wrong = draw(200, np.random.default_rng(seed))
    steps = curve(fit, wrong, np.arange(200))
    rows, share = labels_to_prove(steps, 0.1, DELTA), estimate(steps, 0.1).share
    assert rows is not None
    pool = np.random.default_rng(seed).random(20 * rows)
    proven = [plan(steps, pool, rows=n, error=0.1, level=DELTA).expected for n in (rows // 2, rows)]
    assert proven[0] < share / 2 <= proven[1]
    assert labels_to_prove(curve(fit, np.ones(200, bool), np.arange(200)), 0.1, DELTA) is None


def test_testing_every_rung_by_itself_would_be_false_too_often():
    """Every rung is at the limit, so that the best of all tests is luck more often than delta."""
    rng, by_ladder, by_any = np.random.default_rng(1), 0, 0
    for _ in range(DRAWS):
        confidence, wrong = rng.random(300), rng.random(300) < 0.2
        steps = rungs(confidence, wrong, np.arange(300), quantiles(confidence))
        by_ladder += Automation(0.2, climb(steps, 0.2, DELTA)).rung(DELTA) is not None
        by_any += any(step.errors.p(0.2) <= DELTA for step in steps)
    assert binom.sf(by_ladder - 1, DRAWS, DELTA) > 0.001
    assert binom.sf(by_any - 1, DRAWS, DELTA) < 1e-6


@pytest.mark.parametrize("size", [2, 5])
def test_copies_prove_nothing_more(size):
    confidence, wrong = draw(150, np.random.default_rng(2))
    shares = []
    for copies in (size, 1):
        groups = np.repeat(np.arange(150), copies)
        steps = rungs(confidence[groups], wrong[groups], groups, quantiles(confidence))
        rung = Automation(0.2, climb(steps, 0.2, 0.05)).rung(0.05)
        shares.append(0.0 if rung is None else rung.share)
    assert shares[0] <= shares[1] > 0


@settings(max_examples=25)
@given(st.integers(0, 10**6), st.sampled_from([0.05, 0.1, 0.2]))
def test_an_estimate_agrees_with_counts(seed, error):
    confidence, wrong = draw(200, np.random.default_rng(seed))
    steps = curve(confidence, wrong, np.arange(200))
    best = estimate(steps, error)
    assert 0 <= best.low <= best.share <= best.high <= 1
    for share, tail in ((best.low, binom.cdf), (best.high, lambda w, n, p: binom.sf(w - 1, n, p))):
        if share:
            size = round(share * 200)
            count = wrong[np.argsort(-confidence)[:size]].sum()
            assert (tail(count, size, error) <= 0.025) == (share == best.low)
    if best.threshold is not None:
        over = confidence >= best.threshold
        assert wrong[over].mean() <= error and over.mean() == pytest.approx(best.share)


def test_the_ladder_has_the_largest_expected_share():
    """The best of all ladders, by the formula written out."""
    rng = np.random.default_rng(3)
    fit, fit_wrong = draw(80, rng)
    pool, error, level, rows = rng.random(500), 0.1, 0.05, 60
    ordered = fit_wrong[np.argsort(-fit)]
    ladder = plan(curve(fit, fit_wrong, np.arange(80)), pool, rows=rows, error=error, level=level)
    passes, values = {}, {}
    for last in range(1, 21):
        for rung in range(1, last + 1):
            labels, top = int(rows * rung / last + 1e-9), 4 * rung
            allowed = [w for w in range(labels) if binom.cdf(w, labels, error) <= level]
            count = int(ordered[:top].sum())
            chance = betabinom(labels, count + 0.5, top - count + 0.5)
            passes[rung] = float(chance.cdf(allowed[-1])) if allowed else 0.0
        for first in range(1, last + 1):
            least = [min(passes[s] for s in range(first, t + 1)) for t in range(first, last + 1)]
            values[first, last] = (first * least[0] + sum(least[1:])) / 20
    first, last = max(values, key=values.__getitem__)
    assert ladder.expected == pytest.approx(values[first, last])
    assert len(ladder.thresholds) == last - first + 1
    assert (pool >= ladder.thresholds[-1]).mean() == pytest.approx(last / 20, abs=0.01)


def test_a_ladder_without_texts_is_refused():
    confidence, wrong = draw(50, np.random.default_rng(0))
    steps = curve(confidence, wrong, np.arange(50))
    for pool, rows in ((np.empty(0), 10), (np.ones(5), 0)):
        with pytest.raises(InputError, match="texts without a label"):
            plan(steps, pool, rows=rows, error=0.1, level=0.05)
    one = plan(steps, np.ones(30), rows=10, error=0.1, level=0.05)  # all equally sure
    assert one.thresholds == (1.0,)


def test_looks_share_delta_and_answerers_do():
    automation = Automation(0.1, (), answerers=2, look=3)
    assert automation.level(0.08) == pytest.approx(0.005)
    assert sum(Automation(0.1, (), look=n).level(0.05) for n in range(1, 40)) <= 0.05
    few, more = (Rung(0.5, 1.0, Errors(n, n, 1 / n)) for n in (45, 46))
    assert binom.cdf(1, 46, 0.1) <= 0.05 < binom.cdf(1, 45, 0.1)
    assert climb([few, more], 0.1, 0.05) == (more,)
