"""Earliest state: S[:, 0], the candidates' scores at the input of block 0.

It applies in the scalar regime of a model with I(M) <= tau_I, if the base is not confident. With
rotary positions, S[:, 0] depends on only the last token of the prompt: it scores the wording of the
candidate and is not evidence about the question (Eq. 19; method, section 6).
"""

from lastword.rule.answer import Gate
from lastword.rule.geometry import Trajectory
from lastword.rule.operators.step import OperatorScores, Step, unread
from lastword.rule.theta import Theta


def needs(trajectory: Trajectory, theta: Theta) -> Step | None:
    """Return depth L, then depth 0 if the confidence gate holds."""
    step = unread(trajectory, [trajectory.depth])
    if step is None and _confidence(trajectory, theta).holds:
        step = unread(trajectory, [0])
    return step


def correct(trajectory: Trajectory, theta: Theta) -> OperatorScores:
    """Return S[:, 0] if max b < gamma, else b."""
    gates = {"confidence": _confidence(trajectory, theta)}
    if gates["confidence"].holds:
        return OperatorScores("early", trajectory.scores[:, 0], gates)
    return OperatorScores("base", trajectory.base, gates)


def _confidence(trajectory: Trajectory, theta: Theta) -> Gate:
    top = float(trajectory.base.max())
    return Gate(top, theta.gamma, top < theta.gamma)
