"""The answer of one earlier depth, read by the model's own norm and head (the logit lens).

Applies to every model; costs less than the base, since later blocks do not run. Fails wherever the
late layers add knowledge, which is the rule: a baseline, not a correction.
"""

from dataclasses import dataclass

from lastword.errors import InputError
from lastword.methods.contract import Aggregation, Evidence, Facts, Needs
from lastword.rule.geometry import Scores
from lastword.theta import depth_of


@dataclass(frozen=True)
class EarlyExit:
    """S at depth min(L, ceil(fraction L)).

    Attributes:
        facts: Of the model.
        fraction: Of the model's depth, in [0, 1]; 0 is the input of block 0.
        aggregation: Sum, mean or sum over bytes.

    Raises:
        InputError: The fraction lies outside [0, 1].
    """

    facts: Facts
    fraction: float
    aggregation: Aggregation = "mean"

    def __post_init__(self) -> None:
        """Refuse a fraction that names no depth."""
        if not 0 <= self.fraction <= 1:
            raise InputError(f"early-exit takes a fraction of depth in [0, 1], not {self.fraction}")

    @property
    def depth(self) -> int:
        """The depth that answers."""
        return depth_of(self.fraction, self.facts.depth)

    @property
    def needs(self) -> Needs:
        """That depth alone."""
        return Needs(frozenset([self.depth]))

    def scores(self, evidence: Evidence) -> Scores:
        """Log-probability at that depth, in nats."""
        return evidence.aggregate(evidence.trajectory.scores[:, self.depth], self.aggregation)
