"""The model's own answer: b = S[:, L]. Applies everywhere; what every failed gate falls back to."""

from tracelm.rule.geometry import Trajectory
from tracelm.rule.operators.correction import Correction, Step, unread
from tracelm.theta import Theta


def needs(trajectory: Trajectory, theta: Theta) -> Step | None:
    """Depth L."""
    return unread(trajectory, [trajectory.depth])


def correct(trajectory: Trajectory, theta: Theta) -> Correction:
    """b, without a gate."""
    return Correction("base", trajectory.base)
