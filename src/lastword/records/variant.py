"""Variant: decisions of the rule with one component replaced, computed from records alone."""

from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from jaxtyping import Int

from lastword.records.readings import BASE, NAMES, OVERRIDING, Padded, Readings
from lastword.rule.theta import Theta

# Smaller differences between two candidates, in nats, are rounding (method, section 9). If both
# prompts end alike, depth 0 has the same scores with and without the question.
_MOVED = 1e-4


@dataclass(frozen=True)
class Variant:
    """Algorithm 1 with at most one component replaced.

    Attributes:
        candidate_space: Items in the candidate-space regime (method, section 4): those with
            d_eff > tau_dim, all (including n = 2, with the three gates), or none.
        dropped: Operators that are replaced by the base.
        invariant: Value used instead of every model's I(M); None for I(M).
        question_gate: True to apply an override only if the question raised its score relative to
            the base's, at the deciding depth (method, section 14; ours).
    """

    theta: Theta = field(default_factory=Theta)
    candidate_space: Literal["routed", "always", "never"] = "routed"
    dropped: frozenset[str] = frozenset()
    invariant: float | None = None
    question_gate: bool = False


@dataclass(frozen=True, eq=False)
class VariantAnswers:
    """The answers of a variant on one cell.

    Attributes:
        operators: The operator of each item, as an index in the table of operators [items].
        scores: u in nats; -inf in the padding [items, candidates].
    """

    operators: Int[np.ndarray, " items"]
    scores: Padded

    @property
    def index(self) -> Int[np.ndarray, " items"]:
        """The corrected choice of every item; the lowest index on ties."""
        choice: Int[np.ndarray, " items"] = self.scores.argmax(axis=1)
        return choice


def decide(readings: Readings, variant: Variant) -> VariantAnswers:
    """Return the answers of Algorithm 1 under `variant`, for all items of a cell."""
    r, operators = readings, operators_of(readings, variant)
    u = np.select(
        [(operators == place)[:, None] for place in OVERRIDING],
        [r.scores(place, variant.theta.eta) for place in OVERRIDING],
        r.base,
    )
    answers = VariantAnswers(operators, np.where(r.present, u, -np.inf))
    return _gated(r, answers) if variant.question_gate else answers


def operators_of(r: Readings, variant: Variant) -> Int[np.ndarray, " items"]:
    """Return the operator of each item, as an index in the table of operators."""
    theta = variant.theta
    invariant = (
        r.invariant if variant.invariant is None else np.full_like(r.d_eff, variant.invariant)
    )
    by_d_eff = {"routed": theta.tau_dim, "always": -np.inf, "never": np.inf}
    spatial = r.d_eff > by_d_eff[variant.candidate_space]
    gates = r.changes & (r.log_ratio > theta.tau_logr) & (r.entropy > theta.tau_H)
    mixes = invariant > theta.tau_I
    # A mix with eta = 0 is the base: lambda = 0 (method, section 6).
    sharper = (r.sharper > 0) & (theta.eta > 0)
    fires = [spatial & gates, ~spatial & mixes & sharper]
    fires += [~spatial & ~mixes & (r.confidence < theta.gamma)]
    allowed = [
        fire & (NAMES[place] not in variant.dropped)
        for fire, place in zip(fires, OVERRIDING, strict=True)
    ]
    return np.select(allowed, OVERRIDING, BASE)


def _gated(r: Readings, answers: VariantAnswers) -> VariantAnswers:
    """Return the answers without the overrides that the question does not favour over the base."""
    base = np.where(r.present, r.base, -np.inf)
    new, old, item = answers.index, base.argmax(axis=1), np.arange(len(base))
    unread = np.full(base.shape, np.nan)
    rises = np.select(
        [(answers.operators == place)[:, None] for place in OVERRIDING],
        [r.moved.get(place, unread) for place in OVERRIDING],
    )
    stands = (new == old) | (rises[item, new] - rises[item, old] > _MOVED)  # False for nan
    operators = np.where(stands, answers.operators, BASE)
    return VariantAnswers(operators, np.where(stands[:, None], answers.scores, base))
