"""Labelled items: how the model and each method answer them, and which answers are right."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from scipy.special import softmax

from lastword.records.metrics import PerItem, Rows, Truths, mc1_rows
from lastword.trust.evidence import Evidence, Which
from lastword.trust.groups import Groups
from lastword.trust.policy import Policy


@dataclass(frozen=True, eq=False)
class MethodAnswers:
    """The answers of a method: MC1 in [0, 1], probability, and operator that decides [items].

    `overrides` are True where the answer differs from the model's; `margins` are the distances of
    the two best scores, in nats.
    """

    mc1: PerItem
    confidence: PerItem
    overrides: Which
    operators: np.ndarray
    margins: PerItem

    @classmethod
    def of(cls, u: Rows, base: Rows, truth: Truths, operators: np.ndarray) -> "MethodAnswers":
        """Return the answers of scores u, beside those of the model's scores."""
        best = np.partition(u, -2, axis=1)[:, -2:]
        return cls(
            mc1=mc1_rows(u, truth),
            confidence=softmax(u, axis=1).max(axis=1),
            overrides=u.argmax(axis=1) != base.argmax(axis=1),
            operators=operators,
            margins=best[:, 1] - best[:, 0],
        )


@dataclass(frozen=True, eq=False)
class Labelled:
    """Items that count for MC1, in groups that are independent draws.

    A tie for first is right for the model if any tied option is true, and right for a correction
    only if all are, so that doubt counts against correction.

    Attributes:
        mc1_base: MC1 of the model's scores, in [0, 1] [items].
        base_confidence: Probability of the model's answer [items].
        methods: The answers of each method or control, by name; always those of `trace`.
        failed: Number of further items without an answer, which count as broken.
    """

    mc1_base: PerItem
    base_confidence: PerItem
    methods: Mapping[str, MethodAnswers]
    groups: Groups
    failed: int = 0

    def __len__(self) -> int:
        """Count the items."""
        return len(self.groups)

    @property
    def group_count(self) -> int:
        """Count the groups."""
        return len(np.unique(self.groups))

    def stands(self, policy: Policy) -> Which:
        """Return True where a policy allows an override [items]."""
        answers = self.methods[policy.method]
        allowed = np.isin(answers.operators, policy.operators) & (answers.margins >= policy.margin)
        return np.asarray(answers.overrides & allowed)

    def right(self, policy: Policy) -> Which:
        """Return True where the answer under a policy is right [items]."""
        corrected = self.methods[policy.method].mc1 == 1
        return np.where(self.stands(policy), corrected, self.mc1_base > 0)

    def evidence(self, policy: Policy) -> Evidence:
        """Return the evidence on a policy."""
        pair = self.mc1_base > 0, self.right(policy)
        return Evidence.of(*pair, self.groups, self.stands(policy), self.failed)

    def shown(self, policy: Policy) -> tuple[PerItem, Which]:
        """Return the confidence of the answers under a policy, and True where they are right."""
        answers = self.methods[policy.method]
        withheld = answers.overrides & ~self.stands(policy)
        confidence = np.where(withheld, self.base_confidence, answers.confidence)
        return confidence, np.where(withheld, self.mc1_base, answers.mc1) == 1
