"""Slices: what the chosen policy does to parts of the items, such as each class or each benchmark.

A promise about all answers is none about a part of them. Of every slice two hypotheses are tested,
each corrected by Holm over the slices: more than alpha of its answers are broken (where it falls,
the promise holds of the slice by itself), and at most alpha are (where it falls, the slice breaks
too much). The policy was chosen by these same items, which flatters the first: it works at the
policy's own part of delta. The second is a warning, at delta.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lastword.trust.certify import Finding
from lastword.trust.evidence import Evidence
from lastword.trust.labelled import Labelled
from lastword.trust.testing import at_least, holm


@dataclass(frozen=True)
class Slice:
    """One part of the items under the chosen policy.

    Attributes:
        name: What its items share.
        items: How many there are.
        fixed: Wrong answers of the model that are made right.
        broken: Right answers of the model that are made wrong.
        holds: Whether at most alpha is broken, by these items alone.
        exceeds: Whether more than alpha is broken.
    """

    name: str
    items: int
    fixed: int
    broken: int
    holds: bool
    exceeds: bool


def slices(items: Labelled, names: Sequence[str], finding: Finding) -> list[Slice]:
    """The slices of the items by name, in the order of the names.

    Args:
        items: The labelled items that were certified.
        names: Of each item's slice.
        finding: What they certify; without a chosen policy nothing is broken and nothing said.
    """
    if finding.chosen is None:
        return []
    terms, policy = finding.terms, finding.policy
    own = np.asarray(names, dtype=str)
    parts = {str(name): items.take(np.flatnonzero(own == name)) for name in np.unique(own)}
    numbers = [
        Evidence.of(part, [[policy]], terms.break_costs).at((0, 0)) for part in parts.values()
    ]
    above = holm(np.array([float(e.breaks(terms.alpha)) for e in numbers]))
    below = holm(
        np.array([float(at_least(1 - terms.alpha, 1 - e.rate, e.groups, e.exact)) for e in numbers])
    )
    return [
        Slice(name, e.items, e.fixed, e.broken, p <= terms.level / terms.policies, q <= terms.level)
        for name, e, p, q in zip(parts, numbers, above.tolist(), below.tolist(), strict=True)
    ]
