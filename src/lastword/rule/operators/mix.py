"""Signed mixing of the base with t, the scores by T.

It applies in the scalar regime of a model with I(M) > tau_I, if T's margin is larger than the
base's. The sign is positive if T scores the base's choice higher than the base does, and negative
otherwise, so that the mix moves away from T (Eqs. 17-18; method, section 6).
"""

from lastword.rule.answer import Gate
from lastword.rule.geometry import Trajectory, margin
from lastword.rule.operators.step import OperatorScores, Step
from lastword.rule.theta import Theta


def needs(trajectory: Trajectory, theta: Theta) -> Step | None:
    """Return the depths that T reads, among them depth L, and T itself."""
    if trajectory.t is not None:
        return None
    return Step(frozenset(theta.scorer_depths(trajectory.depth)), t=True)


def correct(trajectory: Trajectory, theta: Theta) -> OperatorScores:
    """Return u = (1 - lambda) b + lambda t; the base if lambda = 0."""
    base, t = trajectory.base, trajectory.t
    assert t is not None
    sharper = margin(t) - margin(base)
    top = base.argmax()
    shift = float(t[top] - base[top])
    gates = {
        "sharper": Gate(sharper, 0.0, sharper > 0),
        "shift": Gate(shift, 0.0, shift > 0),
    }
    if not sharper > 0:
        return OperatorScores("base", base, gates, mixing=0.0)
    mixing = theta.eta if shift > 0 else -theta.eta  # lambda: Eq. 17
    if mixing == 0:
        return OperatorScores("base", base, gates, mixing=0.0)
    return OperatorScores("mix", (1 - mixing) * base + mixing * t, gates, mixing=mixing)
