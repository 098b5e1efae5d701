"""Slices: the effect of the chosen policy on parts of the items, such as classes or benchmarks.

A guarantee about all answers does not hold for each part. Two hypotheses are tested for each slice,
with Holm's correction over the slices. If the first is rejected, the guarantee holds for the slice
alone. If the second is rejected, the slice has too many broken answers (or, if a gain is
guaranteed, more broken than fixed ones). The same items chose the policy, which favours a rejection
of the first, so its level is the policy's part of delta. The second is a warning, at delta.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lastword.trust.claims import Finding
from lastword.trust.evidence import Groups, Which, group_means
from lastword.trust.labelled import Labelled
from lastword.trust.testing import at_least, holm, upper_bound

LEAST_OF_CLASS = 60  # minimum number of test labels of a class; with fewer the bound is too low


@dataclass(frozen=True)
class Slice:
    """One part of the items under the chosen policy.

    Attributes:
        holds: True if the guarantee holds for these items alone.
        exceeds: True if more than alpha is broken, or more than is fixed.
    """

    name: str
    items: int
    fixed: int
    broken: int
    holds: bool
    exceeds: bool


def slices(items: Labelled, names: Sequence[str], finding: Finding) -> list[Slice]:
    """Return the slices of the items by name, in the order of the names."""
    if finding.chosen is None:
        return []
    terms, policy = finding.terms, finding.policy
    slice_of = np.asarray(names, dtype=str)
    parts = {
        str(name): items.take(np.flatnonzero(slice_of == name)) for name in np.unique(slice_of)
    }
    level, costs = terms.level * finding.chosen.share, terms.break_costs
    numbers = [part.evidence(policy, costs) for part in parts.values()]
    if terms.promise == "gain":
        tests = [(e.gains(costs), e.loses(costs)) for e in numbers]
    else:
        tests = [
            (e.breaks(terms.alpha), at_least(1 - terms.alpha, 1 - e.rate, e.groups, e.exact))
            for e in numbers
        ]
    holds, fails = (holm(np.array(p, dtype=float)) for p in zip(*tests, strict=True))
    return [
        Slice(name, e.items, e.fixed, e.broken, p <= level, q <= terms.level)
        for name, e, p, q in zip(parts, numbers, holds.tolist(), fails.tolist(), strict=True)
    ]


def recall_bounds(
    truths: np.ndarray, shown: Which, groups: Groups, level: float
) -> dict[str, float]:
    """Return lower bounds of the recall of each class that has enough labels.

    All bounds hold together: the level is divided among the classes (Bonferroni). They are
    Clopper-Pearson's if items are single, else those of `testing.upper_bound` over group means.
    """
    names, counts = np.unique(truths, return_counts=True)
    large = names[counts >= LEAST_OF_CLASS].tolist()
    bounds = {}
    for name in large:
        among = truths == name
        missed = group_means(groups[among], (~shown[among]).astype(float))
        exact = len(missed) == int(among.sum())
        bounds[str(name)] = 1 - upper_bound(missed.mean(), len(missed), level / len(large), exact)
    return bounds
