"""Labelled items: what the model and TRACE answered, and whether it was right."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields

import numpy as np
from jaxtyping import Bool, Float, Int

from lastword.trust.evidence import GroupEvidence, Which, group_means
from lastword.trust.policy import Policy

PerItem = Float[np.ndarray, " items"]
PerGroup = Float[np.ndarray, " groups"]


@dataclass(frozen=True, eq=False)
class Labelled:
    """Items that count for MC1; their groups are independent draws of what the model will meet.

    A tie for first is right for the base where any of the tied is truthful, and for what is shown
    only where all are: doubt counts against correction.

    Attributes:
        mc1_base: MC1 of the model's scores, in [0, 1] [items].
        mc1: MC1 of TRACE's scores, in [0, 1] [items].
        overrides: Whether TRACE's answer is not the model's own [items].
        operators: Whose scores decide [items].
        margins: Distance of TRACE's two best scores, in nats [items].
        base_confidence: Probability of the model's answer [items].
        confidence: Probability of TRACE's answer [items].
        groups: Number of each item's group, from 0 on [items].
        others: The same items as other methods answer them, by name; TRACE's are these.
    """

    mc1_base: PerItem
    mc1: PerItem
    overrides: Which
    operators: np.ndarray
    margins: PerItem
    base_confidence: PerItem
    confidence: PerItem
    groups: Int[np.ndarray, " items"]
    others: Mapping[str, "Labelled"] = field(default_factory=dict)

    def __len__(self) -> int:
        """Count the items."""
        return len(self.mc1)

    def by(self, method: str) -> "Labelled":
        """Return the items as a method answers them; as TRACE if it is none of the others."""
        return self.others.get(method, self)

    def take(self, places: Int[np.ndarray, " some"]) -> "Labelled":
        """Return some of the items, by their places."""
        plain = [field.name for field in fields(self) if field.name not in ("groups", "others")]
        return Labelled(
            **{name: getattr(self, name)[places] for name in plain},
            groups=np.unique(self.groups[places], return_inverse=True)[1],
            others={name: other.take(places) for name, other in self.others.items()},
        )

    @property
    def group_count(self) -> int:
        """Count the groups."""
        return len(np.unique(self.groups))

    def group_means(self, values: PerItem, among: Which | None = None) -> PerGroup:
        """Return the mean of values over the items of every group, as `evidence.group_means`."""
        return group_means(self.groups, values, among)

    def stands(self, policy: Policy) -> Which:
        """Return the overrides that a policy allows."""
        answers = self.by(policy.method)
        stands: Which = answers.overrides & lets(policy, answers.operators, answers.margins)
        return stands

    def evidence(self, policy: Policy, costs: float = 1.0) -> GroupEvidence:
        """Return what the items say of a policy, a break costing so many repairs."""
        return GroupEvidence.of(
            self.mc1_base > 0, self.right(policy), self.groups, costs, self.stands(policy)
        )

    def right(self, policy: Policy) -> Which:
        """Return where what is shown is right, a tie of the model's answer counting for it."""
        corrected = self.by(policy.method).mc1 == 1
        right: Which = np.where(self.stands(policy), corrected, self.mc1_base > 0)
        return right

    def shown(self, policy: Policy) -> tuple[PerItem, Which]:
        """Confidence in what is shown, and whether it is right."""
        answers = self.by(policy.method)
        withheld = answers.overrides & ~self.stands(policy)
        confidence = np.where(withheld, self.base_confidence, answers.confidence)
        return confidence, np.where(withheld, self.mc1_base, answers.mc1) == 1


def lets(
    policy: Policy, operators: np.ndarray, margins: Float[np.ndarray, " items"]
) -> Bool[np.ndarray, " items"]:
    """`policy.withholds(...) is None` of many overrides at once."""
    return np.isin(operators, policy.operators) & (margins >= policy.margin)
