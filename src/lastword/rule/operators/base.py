"""The model's answer: b = S[:, L]. It always applies and is the fallback if any gate fails."""

from lastword.rule.geometry import Trajectory
from lastword.rule.operators.step import OperatorScores, Step, unread
from lastword.rule.theta import Theta


def needs(trajectory: Trajectory, theta: Theta) -> Step | None:
    """Return depth L."""
    return unread(trajectory, [trajectory.depth])


def correct(trajectory: Trajectory, theta: Theta) -> OperatorScores:
    """Return b, without a gate."""
    return OperatorScores("base", trajectory.base)
