"""One temperature by maximum likelihood: recovered from a population, measured by cross-fitting."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import approx_fprime
from scipy.special import log_softmax, softmax

from lastword.errors import InputError
from lastword.trust.calibration import calibrate


def population(temperature: float, items: int = 1000, n: int = 4):
    """Return scores, and truths drawn from softmax(scores / temperature)."""
    rng = np.random.default_rng(7)
    scores = [2 * rng.normal(size=n) for _ in range(items)]
    return scores, [int(rng.choice(n, p=softmax(u / temperature))) for u in scores]


@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
def test_the_temperature_of_the_population_is_recovered(temperature):
    calibration = calibrate(*population(temperature))
    assert calibration.temperature == pytest.approx(temperature, rel=0.15)
    assert calibration.items == 1000 and calibration.ece_after < 0.06
    if temperature == 3.0:  # overconfident
        assert calibration.ece > 0.2 and calibration.brier > calibration.brier_after + 0.05
    with pytest.raises(InputError, match="a temperature is between"):
        replace(calibration, temperature=0.0)


def test_the_gradient_of_the_likelihood_is_zero():
    scores, truths = population(2.0, 200)

    def loss(t):
        return -sum(log_softmax(u / t[0])[truth] for u, truth in zip(scores, truths, strict=True))

    slope = approx_fprime(np.array([calibrate(scores, truths).temperature]), loss, 1e-6)
    assert abs(slope[0]) < 0.01


def test_the_brier_score_after_calibration_is_cross_fitted():
    """On noise, a fit on the same items would show a gain; cross-fitting does not."""
    rng = np.random.default_rng(1)
    scores = [rng.normal(size=2) for _ in range(24)]
    truths = [int(rng.integers(2)) for _ in scores]
    calibration = calibrate(scores, truths)
    p = softmax(np.array(scores) / calibration.temperature, axis=1)
    plain, in_sample = (
        np.square(q - np.eye(2)[truths]).sum(axis=1).mean() for q in (softmax(scores, axis=1), p)
    )
    assert calibration.brier_after >= in_sample - 1e-12 and calibration.brier == plain


def test_too_few_items_are_refused():
    with pytest.raises(InputError, match="needs 20 labelled items, and there are 19"):
        calibrate([np.zeros(2)] * 19, [0] * 19)
