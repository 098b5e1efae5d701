"""Evidence: the counts of labelled items under a policy that the tests of a promise need.

Items of a group (a pair, a document, a user) depend on each other, so the tests use groups: each
group is one draw, whose value is the mean over its items. If every item is a group by itself, the
values are 0 or 1 and the tests are exact.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float

from lastword.errors import InputError
from lastword.trust.groups import Groups
from lastword.trust.testing import at_least, paired_bound, paired_p, upper_bound

Which = Bool[np.ndarray, " items"]

# Share of a bound's level for the net gain of a changed answer; the rest is for the share of
# answers that change (dev/LOG.md).
_OF_BALANCE = 0.75


@dataclass(frozen=True)
class Evidence:
    """Counts of items, and the means over groups that are tested.

    Attributes:
        base_right: Number of items that the model answers right.
        overrides: Number of answers that the policy changes.
        fixed: Number of the model's wrong answers that it corrects.
        broken: Number of the model's right answers that it breaks.
        rate: Mean over groups of the share of broken items.
        fixed_rate: Mean over groups of the share of fixed items.
        discordant: Number of groups with a fixed or broken item.
        lost: Mean over discordant groups of (share broken - share fixed).
    """

    items: int
    base_right: int
    overrides: int
    fixed: int
    broken: int
    groups: int
    rate: float
    fixed_rate: float
    discordant: int
    lost: float

    @classmethod
    def of(
        cls,
        base: Which,
        shown: Which,
        groups: Groups,
        changed: Which | None = None,
        failed: int = 0,
    ) -> "Evidence":
        """Return the evidence of labelled items.

        Args:
            base: True where the model's answer is right [items].
            shown: True where the answer under the policy is right [items].
            groups: Number of each item's group [items].
            changed: True where the answers differ; by default, where one of them alone is right.
            failed: Number of further items without an answer; each is a group that is broken.
        """
        if changed is None:
            changed = base != shown
        more, last = np.ones(failed, dtype=bool), groups.max(initial=-1)
        base, shown, changed = np.r_[base, more], np.r_[shown, ~more], np.r_[changed, more]
        groups = np.r_[groups, last + 1 + np.arange(failed)]
        fixed, broken = ~base & shown, base & ~shown
        lost = group_means(groups, broken - fixed.astype(float))
        touched = group_means(groups, (fixed | broken).astype(float)) > 0
        return cls(
            items=len(base),
            base_right=int(base.sum()),
            overrides=int(changed.sum()),
            fixed=int(fixed.sum()),
            broken=int(broken.sum()),
            groups=len(lost),
            rate=float(group_means(groups, broken.astype(float)).mean()),
            fixed_rate=float(group_means(groups, fixed.astype(float)).mean()),
            discordant=int(touched.sum()),
            lost=float(lost[touched].mean()) if touched.any() else 0.0,
        )

    def check(self) -> None:
        """Raise InputError if the counts do not fit together."""
        counts = self.base_right, self.overrides, self.fixed, self.broken, self.discordant
        if (
            self.items < 1
            or min(counts) < 0
            or self.fixed + self.broken > self.overrides
            or self.broken > self.base_right
            or self.fixed > self.items - self.base_right
            or not self.discordant <= self.groups <= self.items
            or not all(0 <= share <= 1 for share in (self.rate, self.fixed_rate, abs(self.lost)))
        ):
            raise InputError("its counts do not fit together")
        if not self.exact:
            return
        # Without this check, a file could claim better rates than its counts give.
        changed, rates = self.fixed + self.broken, (self.rate, self.fixed_rate)
        single = np.divide([self.broken, self.fixed], self.items)
        lost = (self.broken - self.fixed) / max(changed, 1)
        far = max(*np.abs(rates - single), abs(self.lost - lost))
        if far > 1e-6 or self.discordant != changed:
            raise InputError("its counts do not fit together: items that stand by themselves")

    @property
    def exact(self) -> bool:
        """True if every group is one item."""
        return self.groups == self.items

    def breaks(self, alpha: float) -> float:
        """Return the p-value of the hypothesis that more than alpha of all answers are broken."""
        return float(at_least(alpha, self.rate, self.groups, self.exact))

    def gains(self, *, unconditional: bool = False) -> float:
        """Return the p-value of the hypothesis that the policy gains nothing.

        A discordant group has the value (broken - fixed + 1) / 2 in [0, 1]. Its mean is 1/2 if
        nothing is gained. For single items this is the sign test, or McNemar's unconditional one.
        """
        if unconditional and self.exact:
            return float(paired_p(np.array([self.fixed]), np.array([self.broken]), self.items)[0])
        return float(at_least(0.5, (self.lost + 1) / 2, self.discordant, self.exact))

    def gain_bound(self, level: float, *, unconditional: bool = False) -> float:
        """Return the one-sided lower bound of the net gain by the test of `gains`.

        By the sign test, the net gain is D times the mean gain of a discordant group, where D is
        the share of such groups. Each factor is bounded at its part of the level. If the whole
        level shows a gain but the parts do not, the bound is 0: more than nothing, without a
        number.
        """
        if unconditional and self.exact:
            return paired_bound(self.fixed, self.broken, self.items, level)
        worst = upper_bound((self.lost + 1) / 2, self.discordant, _OF_BALANCE * level, self.exact)
        won, part = 1 - 2 * worst, (1 - _OF_BALANCE) * level
        changed = self.discordant / self.groups
        if won > 0:
            return won * (1 - upper_bound(1 - changed, self.groups, part, True))
        if self.gains() <= level:
            return 0.0
        # A loss is largest if the share of changed answers is, so this bounds that share above.
        return won * upper_bound(changed, self.groups, part, True)


def group_means(
    groups: Groups, values: Float[np.ndarray, " items"]
) -> Float[np.ndarray, " groups"]:
    """Return the mean of values over the items of each group."""
    _, group = np.unique(groups, return_inverse=True)
    return np.asarray(np.bincount(group, values) / np.bincount(group))


def as_good(
    values: Float[np.ndarray, " items"],
    best: Float[np.ndarray, " items"],
    groups: Groups,
    within: float = 1.0,
) -> bool:
    """Return True if the mean is at most so many standard errors of the difference below."""
    # Rows of a group are not independent, so the standard error is that of group means.
    lost = group_means(groups, best - values)
    return bool(lost.mean() <= within * lost.std() / np.sqrt(len(lost)))
