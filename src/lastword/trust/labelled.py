"""Labelled items: the answers of the model and of TRACE, and which of them are right."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields

import numpy as np
from jaxtyping import Int

from lastword.records.metrics import PerItem
from lastword.trust.evidence import Evidence, Which
from lastword.trust.policy import Policy


@dataclass(frozen=True, eq=False)
class Labelled:
    """Items that count for MC1, in groups that are independent draws.

    A tie for first is right for the model if any tied option is true, and right for a correction
    only if all are, so that doubt counts against correction.

    Attributes:
        mc1_base: MC1 of the model's scores, in [0, 1] [items].
        mc1: MC1 of TRACE's scores, in [0, 1] [items].
        overrides: True where TRACE's answer differs from the model's [items].
        operators: Operator whose scores decide [items].
        margins: Distance of TRACE's two best scores, in nats [items].
        base_confidence: Probability of the model's answer [items].
        confidence: Probability of TRACE's answer [items].
        groups: Number of each item's group, from 0 [items].
        others: The same items answered by other methods, by name.
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
        """Return the items as a method answers them; by default as TRACE does."""
        return self.others.get(method, self)

    def take(self, places: Int[np.ndarray, " some"]) -> "Labelled":
        """Return some of the items, by their indices."""
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

    def stands(self, policy: Policy) -> Which:
        """Return True where a policy allows an override [items]."""
        answers = self.by(policy.method)
        allowed = np.isin(answers.operators, policy.operators) & (answers.margins >= policy.margin)
        return np.asarray(answers.overrides & allowed)

    def evidence(self, policy: Policy) -> Evidence:
        """Return the evidence on a policy."""
        base, right = self.mc1_base > 0, self.right(policy)
        return Evidence.of(base, right, self.groups, self.stands(policy))

    def right(self, policy: Policy) -> Which:
        """Return True where the answer under a policy is right [items]."""
        corrected = self.by(policy.method).mc1 == 1
        return np.where(self.stands(policy), corrected, self.mc1_base > 0)

    def shown(self, policy: Policy) -> tuple[PerItem, Which]:
        """Return the confidence of the answers under a policy, and True where they are right."""
        answers = self.by(policy.method)
        withheld = answers.overrides & ~self.stands(policy)
        confidence = np.where(withheld, self.base_confidence, answers.confidence)
        return confidence, np.where(withheld, self.mc1_base, answers.mc1) == 1
