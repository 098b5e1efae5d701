"""Decisive layer: the candidates' distribution at the depth with the sharpest ranking.

It applies in the candidate-space regime, d_eff > tau_dim: several directions compete across depth.
It overrides the base only if this changes the answer, an interior layer is sharper than the last,
and the last is uncertain (Eqs. 6-9; method, section 4).
"""

from scipy.special import log_softmax

from lastword.rule.answer import Gate
from lastword.rule.geometry import (
    Trajectory,
    decisive_layer,
    log_margin_ratio,
    normalised_entropy,
)
from lastword.rule.operators.step import OperatorScores, Step, unread
from lastword.rule.theta import Theta


def needs(trajectory: Trajectory, theta: Theta) -> Step | None:
    """Return depth L and the window, then depths 1 to L if both numeric gates hold."""
    depth = trajectory.depth
    step = unread(trajectory, [*theta.window(depth), depth])
    if step is None and all(gate.holds for gate in _numeric_gates(trajectory, theta).values()):
        step = unread(trajectory, range(1, depth + 1))
    return step


def correct(trajectory: Trajectory, theta: Theta) -> OperatorScores:
    """Return q = log pi_l* if all three gates hold, else b."""
    depth, base = trajectory.depth, trajectory.base
    numeric = _numeric_gates(trajectory, theta)
    if not trajectory.has(range(1, depth + 1)):  # a numeric gate failed: l* was never needed
        return OperatorScores("base", base, {"changes": Gate(None, True, None), **numeric})
    layer = decisive_layer(trajectory.scores, theta.eps_H)
    q = log_softmax(trajectory.scores[:, layer])
    changes = bool(q.argmax() != base.argmax())
    gates = {"changes": Gate(changes, True, changes), **numeric}
    if all(gate.holds for gate in gates.values()):
        return OperatorScores("decisive", q, gates, layer)
    return OperatorScores("base", base, gates, layer)


def _numeric_gates(trajectory: Trajectory, theta: Theta) -> dict[str, Gate]:
    window = trajectory.scores[:, theta.window(trajectory.depth)]
    ratio = log_margin_ratio(window, trajectory.base, theta.delta_r)  # g_logr: Eq. 8
    entropy = normalised_entropy(trajectory.base)  # g_H: Eq. 8
    return {
        "log_margin_ratio": Gate(ratio, theta.tau_logr, ratio > theta.tau_logr),
        "entropy": Gate(entropy, theta.tau_H, entropy > theta.tau_H),
    }
