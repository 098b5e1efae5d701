"""Pointwise mutual information: the support that the question adds to a candidate.

It applies if the candidates are fixed labels (topics, tools, options) and the model prefers some of
them whatever the question. It needs a blind prompt. LAMBDA between 0 and 1 keeps a part of that
preference. No LAMBDA is best for every task: choose it with labels of your task.

Source: Holtzman et al., 'Surface form competition' (EMNLP 2021), with sums at LAMBDA = 1 (`dcpmi`).
Context-aware decoding with alpha is LAMBDA = alpha / (1 + alpha), except for its normaliser.
"""

import math
from dataclasses import dataclass

from lastword.errors import InputError
from lastword.methods.contract import Aggregation, Evidence, Facts, Needs
from lastword.rule.geometry import Scores


@dataclass(frozen=True)
class Pmi:
    """b - LAMBDA q, with q the base scores after the blind prompt.

    Attributes:
        weight: LAMBDA, 0 or more.
        aggregation: Sum, mean or sum over bytes, of b and q alike.

    Raises:
        InputError: LAMBDA is negative or not a number.
    """

    facts: Facts
    weight: float = 1.0
    aggregation: Aggregation = "mean"

    def __post_init__(self) -> None:
        """Refuse a negative LAMBDA, which would add q instead of subtracting it."""
        if not 0 <= self.weight < math.inf:
            raise InputError(f"pmi takes a LAMBDA of 0 or more, not {self.weight}")

    @property
    def needs(self) -> Needs:
        """Depth L, with and without the question."""
        last = frozenset([self.facts.depth])
        return Needs(last, blind=last)

    def scores(self, evidence: Evidence) -> Scores | None:
        """Return b - LAMBDA q in nats; None for an item without a blind prompt."""
        if evidence.blind is None:
            return None
        if self.aggregation != "mean" and evidence.blind_tokens is None:
            return None  # an old record without these counts
        b = evidence.aggregate(evidence.trajectory.base, self.aggregation)
        q = evidence.aggregate(evidence.blind.base, self.aggregation, blind=True)
        return b - self.weight * q
