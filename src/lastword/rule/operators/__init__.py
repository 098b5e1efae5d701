"""The correction operators: one file each, one table.

An operator first returns the readings that it still needs, and then corrects: it returns its
scores if all its gates hold, and the base's scores if one of them fails.
"""

from typing import Protocol

from lastword.rule.geometry import Trajectory
from lastword.rule.operators import base, decisive, early, mix
from lastword.rule.operators.step import OperatorScores, Step
from lastword.rule.theta import Theta

__all__ = ["OPERATORS", "OperatorScores", "Operator", "Step"]


class Operator(Protocol):
    """The interface of each module in this folder."""

    def needs(self, trajectory: Trajectory, theta: Theta) -> Step | None:
        """Return the reading that `correct` still needs, or None."""

    def correct(self, trajectory: Trajectory, theta: Theta) -> OperatorScores:
        """Return gates and scores; the base's scores if a gate fails."""


OPERATORS: dict[str, Operator] = {
    "base": base,
    "decisive": decisive,
    "mix": mix,
    "early": early,
}
