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
from lastword.trust.labelled import Labelled
from lastword.trust.testing import at_least, holm


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
    level, alpha = terms.delta * finding.chosen.share, terms.alpha
    numbers = [part.evidence(policy) for part in parts.values()]
    if terms.promise == "gain":
        tests = [(e.gains(), e.loses()) for e in numbers]
    else:
        tests = [
            (e.breaks(alpha), float(at_least(1 - alpha, 1 - e.rate, e.groups, e.exact)))
            for e in numbers
        ]
    holds, fails = (holm(np.array(p, dtype=float)) for p in zip(*tests, strict=True))
    return [
        Slice(name, e.items, e.fixed, e.broken, p <= level, q <= terms.delta)
        for name, e, p, q in zip(parts, numbers, holds.tolist(), fails.tolist(), strict=True)
    ]
