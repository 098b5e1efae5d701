"""Which of many hypotheses fall, with one error rate over all of them."""

import numpy as np
from jaxtyping import Bool, Float

Values = Float[np.ndarray, " values"]


def fixed_sequence(
    p_values: Float[np.ndarray, "*chains steps"], level: float
) -> Bool[np.ndarray, "*chains steps"]:
    """Fixed-sequence testing along the last axis: up to the first p above the level.

    The order must not depend on the data. Then a true hypothesis falls with probability at most
    `level`, however many there are: the first of them would have to.
    """
    fallen: np.ndarray = np.logical_and.accumulate(p_values <= level, axis=-1)
    return fallen


def holm(p_values: Values) -> Values:
    """Holm's step-down correction; nan stays nan and is not counted.

    p~_(k) = max over j <= k of min(1, (m - j + 1) p_(j)), the p ascending.
    """
    adjusted = np.full_like(p_values, np.nan)
    known = np.flatnonzero(~np.isnan(p_values))
    order = known[np.argsort(p_values[known], kind="stable")]
    factors = np.arange(len(order), 0, -1)
    adjusted[order] = np.minimum(1.0, np.maximum.accumulate(factors * p_values[order]))
    return adjusted
