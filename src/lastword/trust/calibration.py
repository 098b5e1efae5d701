"""Calibration: one temperature for all probabilities.

T minimises the mean of -log softmax(u / T)[truth] over labelled items (Guo 2017). Its effect is
measured by cross-fitting: each tenth of the items is tested at the temperature of the others.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax, softmax

from lastword.errors import InputError
from lastword.records.metrics import calibration_error
from lastword.rule.geometry import Scores
from lastword.trust.crossfit import Which, cross_fit

LEAST = 20  # minimum number of labelled items
_FOLDS = 10
TEMPERATURES = (1e-3, 1e3)  # range of a fit

Table = Float[np.ndarray, "items candidates"]


@dataclass(frozen=True)
class Calibration:
    """A temperature, and its effect on the probabilities of items that it was not fitted to.

    `ece` is the expected calibration error and `brier` the mean over items of
    sum_i (p_i - y_i)^2, both of softmax(u); `after`: at T, by cross-fitting.

    Raises:
        InputError: The temperature is outside the range of a fit.
    """

    temperature: float
    items: int
    ece: float
    ece_after: float
    brier: float
    brier_after: float

    def __post_init__(self) -> None:
        """Refuse a temperature outside the range of a fit."""
        low, high = TEMPERATURES
        if not low <= self.temperature <= high:
            raise InputError(
                f"a temperature is between {low:g} and {high:g}, not {self.temperature:g}"
            )


def calibrate(scores: Sequence[Scores], truths: Sequence[int]) -> Calibration:
    """Fit the temperature to labelled items, and measure its effect; `truths` are indices.

    Raises:
        InputError: There are fewer than 20 items.
    """
    if len(scores) < LEAST:
        raise InputError(f"a calibration needs {LEAST} labelled items, and there are {len(scores)}")
    table, right = _padded(scores), np.array(truths)

    def answer(rest: Which, tested: Which) -> dict[str, np.ndarray]:
        return {"p": softmax(table[tested] / fit_temperature(table[rest], right[rest]), axis=1)}

    after = cross_fit(answer, np.random.default_rng(0).permutation(len(table)) % _FOLDS)["p"]
    (ece, brier), (ece_after, brier_after) = (
        _errors(p, right) for p in (softmax(table, axis=1), after)
    )
    fitted = fit_temperature(table, right)
    return Calibration(fitted, len(table), ece, ece_after, brier, brier_after)


def fit_temperature(
    scores: Sequence[Scores] | np.ndarray, truths: Sequence[int] | np.ndarray
) -> float:
    """Fit the temperature that minimises the mean of -log softmax(u / T)[truth]."""
    table = _padded(scores)
    rows = np.arange(len(table))

    def loss(log_t: float) -> float:
        return -float(log_softmax(table / math.exp(log_t), axis=1)[rows, truths].sum())

    bounds = [math.log(end) for end in TEMPERATURES]
    best = minimize_scalar(loss, bounds=bounds, method="bounded", options={"xatol": 1e-6})
    return math.exp(float(best.x))


def _padded(scores: Sequence[Scores] | np.ndarray) -> Table:
    # Padding of -inf has probability 0.
    table = np.full((len(scores), max(map(len, scores))), -np.inf)
    for row, values in zip(table, scores, strict=True):
        row[: len(values)] = values
    return table


def _errors(p: Table, truths: np.ndarray) -> tuple[float, float]:
    sure = np.minimum(p.max(axis=1), 1.0)  # may exceed 1 by rounding
    ece = calibration_error(sure, (p.argmax(axis=1) == truths) * 1.0)
    return ece, float(np.square(p - np.eye(p.shape[1])[truths]).sum(axis=1).mean())


def in_words(fit: Calibration) -> str:
    """Return a calibration in words."""
    return (
        f"Probabilities: temperature {fit.temperature:.3g}, fitted to {fit.items} items. "
        f"Cross-validated calibration error {fit.ece:.3f} before and {fit.ece_after:.3f} after, "
        f"Brier score {fit.brier:.3f} and {fit.brier_after:.3f}."
    )
