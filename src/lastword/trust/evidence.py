"""Evidence: what labelled items say of policies, reduced to what the tests of a promise need.

Items of one group (a pair, a document, a user) are not independent of each other, so that what is
tested are groups: every group is one draw, and its value is the mean over its items. Where every
item is a group by itself the values are 0 or 1 and the tests are exact.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lastword.trust.labelled import Labelled, Which
from lastword.trust.policy import Policy
from lastword.trust.testing import at_least, upper_bound

# A count or a share: one number, or an array of a policy's place [*samples, chains, margins].
Each = Any


@dataclass(frozen=True, eq=False)
class Evidence:
    """Counts of items, and the means over groups that are tested.

    Attributes:
        items: Labelled items.
        base_right: How many of them the model answers right by itself.
        overrides: Overrides that a policy lets through.
        fixed: Wrong answers of the model that these make right.
        broken: Right answers of the model that these make wrong.
        sideways: Wrong answers of the model that these make other wrong ones.
        groups: How many groups there are; as many as items where each stands by itself.
        rate: Mean over groups of the share of items that is broken.
        fixed_rate: Mean over groups of the share of items that is fixed.
        discordant: Groups in which something is fixed or broken.
        lost: Mean over discordant groups of (share broken - share fixed).
        right_groups: Groups with an item that the model answers right by itself.
        right_rate: Mean over those of the share of these items that is broken.
    """

    items: Each
    base_right: Each
    overrides: Each
    fixed: Each
    broken: Each
    sideways: Each
    groups: Each
    rate: Each
    fixed_rate: Each
    discordant: Each
    lost: Each
    right_groups: Each
    right_rate: Each

    @property
    def exact(self) -> bool:
        """Whether every group is one item."""
        return bool(np.all(np.asarray(self.groups) == self.items))

    def breaks(self, alpha: float) -> np.ndarray:
        """p-value of: more than alpha of all answers are broken."""
        return at_least(alpha, self.rate, self.groups, self.exact)

    def breaks_of_right(self, share: float) -> np.ndarray:
        """p-value of: more than this share of the model's right answers are broken."""
        return at_least(share, self.right_rate, self.right_groups, self.exact)

    def gains(self, costs: float) -> np.ndarray:
        """p-value of: what is broken costs at least what is fixed is worth.

        A discordant group's value (costs * broken - fixed + 1) / (1 + costs) lies in [0, 1], and is
        1 / (1 + costs) on average where nothing is won. For single items and costs = 1 this is the
        sign test.

        Args:
            costs: Of a break, in repairs; `lost` was taken with the same.
        """
        balance = (np.asarray(self.lost) + 1) / (1 + costs)
        return at_least(1 / (1 + costs), balance, self.discordant, self.exact)

    def net(self, costs: float) -> float:
        """What correction is worth an answer, in repairs: the share fixed less c times broken."""
        return float(self.fixed_rate - costs * self.rate)

    def net_bound(self, costs: float, level: float) -> float:
        """One-sided lower bound of `net`: each of the two shares has half of the level."""
        unfixed = upper_bound(1 - self.fixed_rate, self.groups, level / 2, self.exact)
        broken = upper_bound(self.rate, self.groups, level / 2, self.exact)
        return (1 - unfixed) - costs * broken

    def right_bound(self, level: float) -> float:
        """One-sided upper bound of the share of the model's right answers that is broken."""
        return upper_bound(self.right_rate, self.right_groups, level, self.exact)

    @classmethod
    def of_counts(
        cls, fixed: Each, broken: Each, items: Each, costs: float = 1.0, right: Each = 0
    ) -> "Evidence":
        """Of items that are independent of one another.

        Args:
            fixed: F of every policy.
            broken: K of every policy.
            items: n, a number or an array that goes with the counts.
            costs: Of a break, in repairs.
            right: How many the model answers right by itself.
        """
        discordant = fixed + broken
        return cls(
            items=items,
            base_right=right,
            overrides=discordant,
            fixed=fixed,
            broken=broken,
            sideways=np.zeros_like(fixed),
            groups=items,
            rate=broken / items,
            fixed_rate=fixed / items,
            discordant=discordant,
            lost=_share(costs * broken - fixed, discordant),
            right_groups=right,
            right_rate=_share(broken, right),
        )

    @classmethod
    def of(
        cls, items: Labelled, family: Sequence[Sequence[Policy]], costs: float = 1.0
    ) -> "Evidence":
        """Of labelled items, every policy of a family [chains, margins]."""
        numbers = [[_reduced(items, policy, costs) for policy in chain] for chain in family]
        names = numbers[0][0]
        values = {n: np.array([[one[n] for one in chain] for chain in numbers]) for n in names}
        right = items.mc1_base > 0
        return cls(
            items=len(items),
            base_right=int(right.sum()),
            groups=items.group_count,
            right_groups=len(np.unique(items.groups[right])),
            **values,
        )

    def at(self, place: tuple[int, ...]) -> "Evidence":
        """Of one policy, as plain numbers."""
        values = {n: np.asarray(v) for n, v in vars(self).items()}
        return Evidence(**{n: v[place].item() if v.ndim else v.item() for n, v in values.items()})

    def nothing(self) -> "Evidence":
        """Of correction switched off, on the same items."""
        names = ("items", "base_right", "groups", "right_groups")
        return Evidence(**{n: v if n in names else 0 * v for n, v in vars(self).items()})

    def grown(self, factor: np.ndarray) -> "Evidence":
        """What more items would say if the rates stay: counts are rounded down, breaks stay rates.

        Args:
            factor: How many times as many, along an axis before the others [sizes, 1, 1].
        """
        counts = ("items", "groups", "discordant", "right_groups", "fixed")
        more = {n: np.floor(np.asarray(getattr(self, n)) * factor).astype(int) for n in counts}
        return Evidence(**vars(self) | more | {"broken": np.ceil(self.broken * factor).astype(int)})


def _reduced(items: Labelled, policy: Policy, costs: float) -> Mapping[str, Any]:
    """The numbers of one policy."""
    stands, fixed, broken = items.stands(policy), items.fixed(policy), items.broken(policy)
    wrong = stands & (items.mc1_base == 0) & (items.by(policy.method).mc1 < 1)
    right = items.mc1_base > 0
    lost = items.group_means(costs * broken - fixed.astype(float))
    touched = items.group_means((fixed | broken).astype(float)) > 0
    return {
        "overrides": int(stands.sum()),
        "fixed": int(fixed.sum()),
        "broken": int(broken.sum()),
        "sideways": int(wrong.sum()),
        "rate": float(items.group_means(broken.astype(float)).mean()),
        "fixed_rate": float(items.group_means(fixed.astype(float)).mean()),
        "discordant": int(touched.sum()),
        "lost": float(lost[touched].mean()) if touched.any() else 0.0,
        "right_rate": _mean(items, broken, right),
    }


def _mean(items: Labelled, which: Which, among: Which) -> float:
    """Mean over groups of a share among some of their items; 0 where there are none."""
    means = items.group_means(which.astype(float), among)
    return float(np.nanmean(means)) if among.any() else 0.0


def _share(part: Any, whole: Any) -> np.ndarray:
    """A quotient that is 0 of nothing."""
    return np.asarray(np.asarray(part) / np.maximum(whole, 1))
