"""Slices: what the chosen policy does to parts of the items, such as each class or each benchmark.

A promise about all answers is none about a part of them. Of every slice two hypotheses are tested,
each corrected by Holm over the slices: that the promise does not hold of it (where it falls, the
promise holds of the slice by itself), and that it does (where it falls, the slice breaks too much;
where a gain is promised, it loses). The policy was chosen by these same items, which flatters the
first: it works at the policy's own part of delta. The second is a warning, at delta.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lastword.trust.claims import Finding
from lastword.trust.evidence import Groups, Which, group_means
from lastword.trust.labelled import Labelled
from lastword.trust.testing import at_least, holm, upper_bound

LEAST_OF_CLASS = 60  # labels that test a class: with fewer there is nothing worth to promise


@dataclass(frozen=True)
class Slice:
    """One part of the items under the chosen policy.

    Attributes:
        holds: Whether the promise holds, by these items alone.
        exceeds: Whether it does not: more than alpha is broken, or more than is fixed.
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


def found_at_least(
    truths: np.ndarray, shown: Which, groups: Groups, level: float
) -> dict[str, float]:
    """Return lower bounds of the share of each class that is found, which hold all at once.

    Clopper-Pearson's where items are single, by the groups' means else (`testing.at_least`); the
    level is divided among the classes that have labels enough (Bonferroni).
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
