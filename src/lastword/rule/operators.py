"""The correction operators, and what they are given and return.

An operator returns the step that it still has to read, and then its ruling: its scores if all its
gates hold, and the base's scores if one of them fails.

- `base`: b = S[:, L], the model's answer. It always applies.
- `decisive`: the candidates' distribution at the depth with the sharpest ranking. It applies in
  the candidate-space regime, d_eff > tau_dim: several directions compete across depth. It overrides
  the base only if this changes the answer, an interior layer is sharper than the last, and the last
  is uncertain (Eqs. 6-9; method, section 4).
- `mix`: signed mixing of the base with t, the scores by T. It applies in the scalar regime of a
  model with I(M) > tau_I, if T's margin is larger than the base's. The sign is positive if T scores
  the base's choice higher than the base does, and negative otherwise, so that the mix moves away
  from T (Eqs. 17-18; method, section 6).
- `early`: S[:, 0], the scores at the input of block 0. It applies in the scalar regime of a model
  with I(M) <= tau_I, if the base is not confident. With rotary positions, S[:, 0] depends on only
  the last token of the prompt: it scores the wording of the candidate and is not evidence about the
  question (Eq. 19; method, section 6).
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from scipy.special import log_softmax

from lastword.files.strict_json import strict
from lastword.rule.geometry import (
    Scores,
    Trajectory,
    decisive_layer,
    log_margin_ratio,
    margin,
    normalised_entropy,
)
from lastword.rule.theta import Theta

Regime = Literal["scalar", "candidate-space"]


@dataclass(frozen=True)
class Gate:
    """One comparison of the rule; `None` if the decision did not need it (method, section 9)."""

    value: float | bool | None
    threshold: float | bool
    holds: bool | None

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form; a value that is not finite becomes a string."""
        return {"value": strict(self.value), "threshold": self.threshold, "holds": self.holds}


@dataclass(frozen=True)
class Ruling:
    """The decision of an operator, or of another method, for one trajectory.

    Attributes:
        operator: The operator that made the scores; `base` if a gate failed.
        scores: u, in nats [candidates].
        gates: The operator's comparisons, in the order of the rule.
        decisive_layer: l*; None if it was not computed.
        mixing: lambda; None unless the operator mixes.
        regime: `candidate-space` if d_eff > tau_dim, else `scalar`.
        d_eff: Effective trajectory dimension, Eq. 5; nan if it was not computed.
    """

    operator: str
    scores: Scores
    gates: dict[str, Gate] = field(default_factory=dict)
    decisive_layer: int | None = None
    mixing: float | None = None
    regime: Regime = "scalar"
    d_eff: float = np.nan


@dataclass(frozen=True)
class Step:
    """A request for further readings of an item.

    Attributes:
        depths: Depths of S.
        t: True for t, the scores by T.
        peers: True for the token scores of other methods on the same rows.
        readings: True for t by every variant of the scorer.
        blind: Depths of S after the blind prompt.
        blind_t: True for t after the blind prompt.
        content_free: True for depth L after the content-free prompts.
    """

    depths: frozenset[int]
    t: bool = False
    peers: bool = False
    readings: bool = False
    blind: frozenset[int] = frozenset()
    blind_t: bool = False
    content_free: bool = False


def unread(trajectory: Trajectory, depths: Iterable[int]) -> Step | None:
    """Return the step that reads the missing ones of `depths`, or None if none is missing."""
    gaps = frozenset(d for d in depths if not trajectory.has([d]))
    return Step(gaps) if gaps else None


def _base(trajectory: Trajectory, theta: Theta) -> Step | Ruling:
    return unread(trajectory, [trajectory.depth]) or Ruling("base", trajectory.base)


def _decisive(trajectory: Trajectory, theta: Theta) -> Step | Ruling:
    """Read depth L and the window, then depths 1 to L if both numeric gates hold.

    Return q = log pi_l* if all three gates hold, else b.
    """
    depth, base = trajectory.depth, trajectory.base
    if step := unread(trajectory, [*theta.window(depth), depth]):
        return step
    window = trajectory.scores[:, theta.window(depth)]
    ratio = float(log_margin_ratio(window, base, theta.delta_r))  # g_logr: Eq. 8
    entropy = float(normalised_entropy(base))  # g_H: Eq. 8
    numeric = {
        "log_margin_ratio": Gate(ratio, theta.tau_logr, ratio > theta.tau_logr),
        "entropy": Gate(entropy, theta.tau_H, entropy > theta.tau_H),
    }
    if step := unread(trajectory, range(1, depth + 1)):
        if all(gate.holds for gate in numeric.values()):
            return step
        return Ruling("base", base, {"changes": Gate(None, True, None), **numeric})  # no l*
    layer = int(decisive_layer(trajectory.scores, theta.eps_H))
    q = log_softmax(trajectory.scores[:, layer])
    changes = bool(q.argmax() != base.argmax())
    gates = {"changes": Gate(changes, True, changes), **numeric}
    if all(gate.holds for gate in gates.values()):
        return Ruling("decisive", q, gates, layer)
    return Ruling("base", base, gates, layer)


def _mix(trajectory: Trajectory, theta: Theta) -> Step | Ruling:
    """Read the depths of T, among them depth L, and T itself.

    Return u = (1 - lambda) b + lambda t; the base if lambda = 0.
    """
    base, t = trajectory.base, trajectory.t
    if t is None:
        return Step(frozenset(theta.scorer_depths(trajectory.depth)), t=True)
    top, sharper = base.argmax(), margin(t) - margin(base)
    shift = float(t[top] - base[top])
    gates = {"sharper": Gate(sharper, 0.0, sharper > 0), "shift": Gate(shift, 0.0, shift > 0)}
    sign = 1 if shift > 0 else -1
    mixing = sign * theta.eta if sharper > 0 else 0.0  # lambda: Eq. 17
    if mixing == 0:
        return Ruling("base", base, gates, mixing=0.0)
    return Ruling("mix", (1 - mixing) * base + mixing * t, gates, mixing=mixing)


def _early(trajectory: Trajectory, theta: Theta) -> Step | Ruling:
    """Read depth L, then depth 0 if the gate holds; return S[:, 0] if max b < gamma, else b."""
    if step := unread(trajectory, [trajectory.depth]):
        return step
    top = float(trajectory.base.max())
    gate = Gate(top, theta.gamma, top < theta.gamma)
    if not gate.holds:
        return Ruling("base", trajectory.base, {"confidence": gate})
    step = unread(trajectory, [0])
    return step or Ruling("early", trajectory.scores[:, 0], {"confidence": gate})


OPERATORS: dict[str, Callable[[Trajectory, Theta], Step | Ruling]] = {
    "base": _base,
    "decisive": _decisive,
    "mix": _mix,
    "early": _early,
}
