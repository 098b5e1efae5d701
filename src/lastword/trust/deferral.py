"""Answer or defer: the share of wrong answers against the share of items answered.

The policy was chosen by the same labels, and the luck that chose it flatters its errors: tested as
if it had been given, one threshold in ten is wrong at delta = 0.05 (`experiments/trust.py`). So
each policy that could have been chosen, and none at all, has its own share of delta.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool

from lastword.trust.evidence import Which
from lastword.trust.labelled import Labelled, PerItem
from lastword.trust.policy import Policy
from lastword.trust.testing import at_least, holm

THRESHOLDS = np.round(np.arange(1, 21) * 0.05, 2)


@dataclass(frozen=True, eq=False)
class Deferral:
    """From which confidence on answers are given.

    Attributes:
        error: Largest share of wrong answers among those given.
        threshold: Least probability of an answer that is given; None where none is certified.
        answered: How many labelled items reach it.
        wrong: How many of those answers are wrong.
        groups: Groups with an item that reaches it.
        rate: Mean over these of the share of such answers that is wrong.
    """

    error: float
    threshold: float | None
    answered: int = 0
    wrong: int = 0
    groups: int = 0
    rate: float = 0.0


def defer(items: Labelled, policy: Policy, error: float, delta: float, policies: int) -> Deferral:
    """Return the smallest threshold above which at most `error` of the answers are wrong.

    Args:
        items: Labelled items.
        policy: What is allowed.
        error: Largest share of wrong answers among those given.
        delta: Largest chance that the threshold does not keep it.
        policies: How many could have been chosen by the same labels; none could, too.
    """
    confidence, right = items.shown(policy)
    answered, wrong = above(confidence, right)
    groups, rate = group_errors(items, confidence, right)
    exact = items.group_count == len(items)
    places = np.flatnonzero(keeps(groups, rate, error, delta / (policies + 1), exact))
    if not places.size:
        return Deferral(error, None)
    first = places[0]
    counts = int(answered[first]), int(wrong[first]), int(groups[first])
    return Deferral(error, float(THRESHOLDS[first]), *counts, float(rate[first]))


def above(confidence: PerItem, right: Which) -> tuple[np.ndarray, np.ndarray]:
    """Return A and E: the answers at or above each threshold, and the wrong ones."""
    over = confidence[:, None] >= THRESHOLDS
    return over.sum(axis=0), (over & ~right[:, None]).sum(axis=0)


def group_errors(
    items: Labelled, confidence: PerItem, right: Which
) -> tuple[np.ndarray, np.ndarray]:
    """Return the number of groups with an answer at or above each threshold, and their error."""
    means = [items.group_means((~right).astype(float), confidence >= tau) for tau in THRESHOLDS]
    defined = [values[~np.isnan(values)] for values in means]
    rates = [values.mean() if values.size else 0.0 for values in defined]
    return np.array([values.size for values in defined]), np.array(rates)


def keeps(
    groups: np.ndarray, rate: np.ndarray, error: float, level: float, exact: bool
) -> Bool[np.ndarray, " thresholds"]:
    """Thresholds whose error among the answered is certified, by Holm.

    Args:
        groups: How many there are at every threshold.
        rate: Mean of their shares of errors.
        error: Largest share of wrong answers among those given.
        level: Largest chance that one of them does not keep it.
        exact: Whether every group is one item: P(Bin(A, error) <= E).
    """
    holds: np.ndarray = holm(at_least(error, rate, groups, exact)) <= level
    return holds
