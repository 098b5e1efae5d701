"""The correction operators: one file each, one table.

An operator says what it still needs to read, and then corrects: it gives its scores where its gates
hold and the base's where one of them fails.
"""

from typing import Protocol

from lastword.rule.geometry import Trajectory
from lastword.rule.operators import base, decisive, early, mix
from lastword.rule.operators.correction import OperatorScores, Step
from lastword.rule.theta import Theta

__all__ = ["OPERATORS", "OperatorScores", "Operator", "Step"]


class Operator(Protocol):
    """The contract of a module in this folder."""

    def needs(self, trajectory: Trajectory, theta: Theta) -> Step | None:
        """Return the reading that `correct` still needs, or None."""

    def correct(self, trajectory: Trajectory, theta: Theta) -> OperatorScores:
        """Return gates and scores; the base's scores where a gate fails."""


OPERATORS: dict[str, Operator] = {
    "base": base,
    "decisive": decisive,
    "mix": mix,
    "early": early,
}
