"""Answer or defer: the smallest confidence above which few of the given answers are wrong.

The same labels chose the policy, so its errors on them are too low by chance: a test that ignores
this is wrong for one threshold in ten at delta = 0.05 (`experiments/trust.py`). So each policy that
could have been chosen has its share of delta, and so has the choice of none.
"""

from dataclasses import dataclass

import numpy as np

from lastword.records.ragged import PerItem
from lastword.trust.evidence import Which, group_means
from lastword.trust.labelled import Labelled
from lastword.trust.policy import Policy
from lastword.trust.testing import at_least, holm

THRESHOLDS = np.round(np.arange(1, 21) * 0.05, 2)


@dataclass(frozen=True, eq=False)
class Deferral:
    """The confidence that an answer needs to be given.

    Attributes:
        error: Maximum share of wrong answers among those given.
        threshold: Minimum probability of an answer that is given; None if none is certified.
        answered: Number of labelled items that reach it.
        wrong: Number of these whose answer is wrong.
        groups: Number of groups with an item that reaches it.
        rate: Mean over these of the share of wrong answers.
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
        policy: The allowed policy.
        error: Maximum share of wrong answers among those given.
        delta: Maximum probability that the threshold does not keep it.
        policies: Number of policies that the same labels chose from.
    """
    confidence, right = items.shown(policy)
    answered, wrong = above(confidence, right)
    means = [
        group_means(items.groups, (~right).astype(float), confidence >= tau) for tau in THRESHOLDS
    ]
    defined = [values[~np.isnan(values)] for values in means]
    groups = np.array([values.size for values in defined])
    rates = np.array([values.mean() if values.size else 0.0 for values in defined])
    # The error rate need not fall as the threshold rises, so a test of all thresholds in a fixed
    # sequence could end at the first one; Holm's correction allows any of them.
    p = holm(at_least(error, rates, groups, items.group_count == len(items)))
    places = np.flatnonzero(p <= delta / (policies + 1))
    if not places.size:
        return Deferral(error, None)
    first = places[0]
    counts = int(answered[first]), int(wrong[first]), int(groups[first])
    return Deferral(error, float(THRESHOLDS[first]), *counts, float(rates[first]))


def above(confidence: PerItem, right: Which) -> tuple[np.ndarray, np.ndarray]:
    """Return the numbers of answers and of wrong answers at or above each threshold."""
    over = confidence[:, None] >= THRESHOLDS
    return over.sum(axis=0), (over & ~right[:, None]).sum(axis=0)
