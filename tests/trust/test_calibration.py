"""One temperature by maximum likelihood: what was put in comes out, and it is told honestly."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import approx_fprime
from scipy.special import log_softmax, softmax

from lastword.errors import InputError
from lastword.trust.calibration import calibrate


def population(temperature: float, items: int = 1000, n: int = 4):
    """Scores, and truths drawn from softmax(scores / temperature)."""
    rng = np.random.default_rng(7)
    scores = [2 * rng.normal(size=n) for _ in range(items)]
    return scores, [int(rng.choice(n, p=softmax(u / temperature))) for u in scores]


@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
def test_the_temperature_of_the_population_comes_out(temperature):
    found = calibrate(*population(temperature))
    assert found.temperature == pytest.approx(temperature, rel=0.15)
    assert found.items == 1000 and found.ece_after < 0.06
    if temperature == 3.0:  # too sure by far
        assert found.ece > 0.2 and found.brier > found.brier_after + 0.05
    with pytest.raises(InputError, match="a temperature is between"):
        replace(found, temperature=0.0)


def test_it_is_where_the_likelihood_is_flat():
    scores, truths = population(2.0, 200)

    def loss(t):
        return -sum(log_softmax(u / t[0])[truth] for u, truth in zip(scores, truths, strict=True))

    slope = approx_fprime(np.array([calibrate(scores, truths).temperature]), loss, 1e-6)
    assert abs(slope[0]) < 0.01


def test_brier_is_its_definition():
    scores, truths = population(1.0, 50, n=3)
    expected = np.square(softmax(scores, axis=1) - np.eye(3)[truths]).sum(axis=1).mean()
    assert calibrate(scores, truths).brier == pytest.approx(expected)


def test_what_is_told_after_is_of_items_that_were_not_fitted():
    """On pure noise a fit on the same items would promise a gain; cross-fitting does not."""
    rng = np.random.default_rng(1)
    scores = [rng.normal(size=2) for _ in range(24)]
    truths = [int(rng.integers(2)) for _ in scores]
    found = calibrate(scores, truths)
    p = softmax(np.array(scores) / found.temperature, axis=1)
    own = np.square(p - np.eye(2)[truths]).sum(axis=1).mean()
    assert found.brier_after >= own - 1e-12


@pytest.mark.parametrize(
    ("scores", "truths", "said"),
    [
        ([np.zeros(2)] * 19, [0] * 19, "needs 20 labelled items, and there are 19"),
        ([np.zeros(2)] * 20, [0] * 19, "20 items and 19 truths"),
        ([np.zeros(2)] * 20, [2] * 20, "the index of a candidate"),
    ],
)
def test_too_little_is_refused(scores, truths, said):
    with pytest.raises(InputError, match=said):
        calibrate(scores, truths)
