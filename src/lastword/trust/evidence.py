"""Evidence: the counts of labelled items under a policy that the tests of a promise need.

Items of a group (a pair, a document, a user) depend on each other, so the tests use groups: each
group is one draw, whose value is the mean over its items. If every item is a group by itself, the
values are 0 or 1 and the tests are exact.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from lastword.trust.objective import Gains
from lastword.trust.terms import Terms
from lastword.trust.testing import at_least, paired_bound, paired_p, upper_bound

# A count or a share: one number, or an array over samples, policies or sizes.
Each = Any
Which = Bool[np.ndarray, " items"]
Groups = Int[np.ndarray, " items"]

# Share of a bound's level for the net gain of a changed answer; the rest is for the share of
# answers that change (dev/LOG.md).
_OF_BALANCE = 0.75


@dataclass(frozen=True, eq=False)
class GroupEvidence:
    """Counts of items, and the means over groups that are tested.

    Attributes:
        base_right: Number of items that the model answers right.
        overrides: Number of overrides that the policy allows.
        fixed: Number of the model's wrong answers that they correct.
        broken: Number of the model's right answers that they break.
        sideways: Number of the model's wrong answers that they replace by other wrong ones.
        rate: Mean over groups of the share of broken items.
        fixed_rate: Mean over groups of the share of fixed items.
        discordant: Number of groups with a fixed or broken item.
        lost: Mean over discordant groups of (costs * share broken - share fixed).
        right_groups: Number of groups with an item that the model answers right.
        right_rate: Mean over these groups of the share of such items that is broken.
        objective_gains: Mean gain of each group on the objective; None for accuracy.
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
    objective_gains: Gains | None = None

    @property
    def exact(self) -> bool:
        """True if every group is one item."""
        return bool(np.all(np.asarray(self.groups) == self.items))

    def breaks(self, alpha: float) -> np.ndarray:
        """Return the p-value of the hypothesis that more than alpha of all answers are broken."""
        return at_least(alpha, self.rate, self.groups, self.exact)

    def unconditional(self, terms: Terms) -> bool:
        """Return True if the unconditional test applies: to single items, if a break costs 1."""
        return terms.test is not None and terms.break_costs == 1 and self.exact

    def gains(self, costs: float) -> np.ndarray:
        """Return the p-value of the hypothesis that the policy gains nothing.

        A discordant group has the value (costs * broken - fixed + 1) / (1 + costs) in [0, 1]. Its
        mean is 1 / (1 + costs) if nothing is gained. For single items and costs = 1 this is the
        sign test.

        Args:
            costs: Cost of a broken answer in corrected ones, as in `lost`.
        """
        balance = (np.asarray(self.lost) + 1) / (1 + costs)
        return at_least(1 / (1 + costs), balance, self.discordant, self.exact)

    def loses(self, costs: float) -> np.ndarray:
        """Return the p-value of the hypothesis that the policy loses nothing."""
        balance = (np.asarray(self.lost) + 1) / (1 + costs)
        return at_least(costs / (1 + costs), 1 - balance, self.discordant, self.exact)

    def net(self, costs: float) -> float:
        """Return the net gain per answer: the share fixed minus c times the share broken."""
        return float(self.fixed_rate - costs * self.rate)

    def gain_bound(self, terms: Terms, level: float) -> float:
        """Return the lower bound of `net` by the terms' test of a gain."""
        if terms.objective is not None:
            assert self.objective_gains is not None
            return terms.objective.bound(self.objective_gains, level)
        if self.unconditional(terms):
            return paired_bound(self.fixed, self.broken, self.items, level)
        return self.net_bound(terms.break_costs, level)

    def net_bound(self, costs: float, level: float) -> float:
        """Return the one-sided lower bound of `net` by the test of `gains`.

        The net gain is D times the mean gain of a discordant group, where D is the share of such
        groups. Each factor is bounded at its part of the level. If the whole level shows a gain but
        the parts do not, the bound is 0: more than nothing, without a number.
        """
        balance = (float(self.lost) + 1) / (1 + costs)
        worst = upper_bound(balance, self.discordant, _OF_BALANCE * level, self.exact)
        won, part = 1 - (1 + costs) * worst, (1 - _OF_BALANCE) * level
        changed = self.discordant / self.groups
        if won > 0:
            return won * (1 - upper_bound(1 - changed, self.groups, part, True))
        if self.gains(costs) <= level:
            return 0.0
        # A loss is largest if the share of changed answers is, so this bounds that share above.
        return won * upper_bound(changed, self.groups, part, True)

    def right_bound(self, level: float) -> float:
        """Return the upper bound of the share of the model's right answers that are broken."""
        return upper_bound(self.right_rate, self.right_groups, level, self.exact)

    @classmethod
    def of(
        cls,
        base: Which,
        shown: Which,
        groups: Groups,
        costs: float = 1.0,
        changed: Which | None = None,
        gains: Float[np.ndarray, " items"] | None = None,
    ) -> "GroupEvidence":
        """Return the evidence of labelled items; arguments are the fields of `claims.Claim`."""
        fixed, broken = ~base & shown, base & ~shown
        changed = fixed | broken if changed is None else changed
        lost = group_means(groups, costs * broken - fixed.astype(float))
        touched = group_means(groups, (fixed | broken).astype(float)) > 0
        missed = group_means(groups, broken.astype(float), base)
        return cls(
            items=len(base),
            base_right=int(base.sum()),
            overrides=int(changed.sum()),
            fixed=int(fixed.sum()),
            broken=int(broken.sum()),
            sideways=int((changed & ~base & ~shown).sum()),
            groups=len(lost),
            rate=float(group_means(groups, broken.astype(float)).mean()),
            fixed_rate=float(group_means(groups, fixed.astype(float)).mean()),
            discordant=int(touched.sum()),
            lost=float(lost[touched].mean()) if touched.any() else 0.0,
            right_groups=len(np.unique(groups[base])),
            right_rate=float(np.nanmean(missed)) if base.any() else 0.0,
            objective_gains=None if gains is None else Gains.of(group_means(groups, gains)),
        )

    def p(self, terms: Terms) -> np.ndarray:
        """Return the largest p-value of all parts of the promise (intersection-union)."""
        p = np.zeros(())
        if terms.objective is not None:
            assert self.objective_gains is not None
            p = terms.objective.p(self.objective_gains)
        elif terms.gain and self.unconditional(terms):
            (p,) = paired_p(np.array([self.fixed]), np.array([self.broken]), self.items)
        elif terms.gain:
            p = self.gains(terms.break_costs)
        if terms.promise == "breaks":
            p = np.maximum(p, self.breaks(terms.alpha))
        if terms.right is not None:
            right = at_least(terms.right, self.right_rate, self.right_groups, self.exact)
            p = np.maximum(p, right)
        return np.asarray(p)

    def nothing(self) -> "GroupEvidence":
        """Return the evidence of no correction, on the same items."""
        names = ("items", "base_right", "groups", "right_groups")
        counts = {n: v for n, v in vars(self).items() if n != "objective_gains"}
        return GroupEvidence(**{n: v if n in names else 0 * v for n, v in counts.items()})

    def grown(self, factor: np.ndarray) -> "GroupEvidence":
        """Return the evidence of more items at the same rates, rounded against a gain."""
        counts = ("items", "groups", "discordant", "right_groups", "fixed")
        more = {n: np.floor(np.asarray(getattr(self, n)) * factor).astype(int) for n in counts}
        return GroupEvidence(
            **vars(self) | more | {"broken": np.ceil(self.broken * factor).astype(int)}
        )


def group_means(
    groups: Groups, values: Float[np.ndarray, " items"], among: Which | None = None
) -> Float[np.ndarray, " groups"]:
    """Return the mean of values over the items of each group; nan without an item `among` them."""
    weights = np.ones(len(values)) if among is None else among.astype(float)
    _, group = np.unique(groups, return_inverse=True)
    total, size = np.bincount(group, values * weights), np.bincount(group, weights)
    means: np.ndarray = np.divide(total, size, out=np.full(len(size), np.nan), where=size > 0)
    return means


def as_good(
    values: Float[np.ndarray, " items"], best: Float[np.ndarray, " items"], groups: Groups
) -> bool:
    """Return True if the mean is at most one standard error of the difference below the best."""
    # Rows of a group are not independent, so the standard error is that of group means.
    lost = group_means(groups, best - values)
    return bool(lost.mean() <= lost.std() / np.sqrt(len(lost)))
