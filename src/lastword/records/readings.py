"""Readings: the quantities of the rule, for every item of a cell (docs/paper.md).

They do not depend on thresholds, so they are computed once, for many items together, and then
compared with any thresholds. Only one piece of the trajectories is in memory at a time.
"""

from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy.special import log_softmax

from lastword.errors import RecordError
from lastword.records.cells import Cell, column
from lastword.records.metrics import PerItem, Places
from lastword.rule import geometry
from lastword.rule.operators import OPERATORS
from lastword.rule.theta import Theta

Padded = Float[np.ndarray, "items candidates"]
Operators = Int[np.ndarray, " items"]  # indices in the table of operators

NAMES = tuple(OPERATORS)
BASE, DECISIVE, MIX, EARLY = (NAMES.index(n) for n in ("base", "decisive", "mix", "early"))
OVERRIDING = (DECISIVE, MIX, EARLY)

_NUMBERS = ("d_eff", "log_ratio", "entropy", "sharper", "shift", "confidence")
_VECTORS = ("base", "decisive", "early", "t")


@dataclass(frozen=True)
class AblatedRule:
    """Algorithm 1 with at most one component replaced.

    Attributes:
        candidate_space: Items in the candidate-space regime: those with d_eff > tau_dim, all
            (including n = 2, with the three gates), or none.
        dropped: Operators that are replaced by the base.
        invariant: Value used instead of every model's I(M); None for I(M).
    """

    theta: Theta = field(default_factory=Theta)
    candidate_space: Literal["routed", "always", "never"] = "routed"
    dropped: frozenset[str] = frozenset()
    invariant: float | None = None


@dataclass(frozen=True, eq=False)
class Readings:
    """The quantities that the rule compares, and its candidate scores, for all items of a cell.

    Items with fewer candidates than the widest are padded with 0 and masked by `present`.

    Attributes:
        log_ratio: g_logr, Eq. 8 [items].
        entropy: g_H, Eq. 8; nan for one candidate [items].
        sharper: margin(t) - margin(b) [items].
        shift: t - b at the base's choice, in nats [items].
        confidence: max b, in nats [items].
        decisive: q, log pi at the decisive layer [items, candidates].
        t_readings: t by reading of the scorer, if every item has it [items, candidates].
        invariant_readings: I(M) by its readings, as in the run; {} without them.
    """

    invariant: PerItem
    d_eff: PerItem
    changes: Bool[np.ndarray, " items"]
    log_ratio: PerItem
    entropy: PerItem
    sharper: PerItem
    shift: PerItem
    confidence: PerItem
    base: Padded
    decisive: Padded
    early: Padded
    t: Padded
    t_readings: dict[str, Padded]
    invariant_readings: dict[str, float]
    present: Bool[np.ndarray, "items candidates"]
    truthful: Bool[np.ndarray, "items candidates"]
    counts_mc1: Bool[np.ndarray, " items"]
    counts_mc2: Bool[np.ndarray, " items"]

    def by_scorer(self, t: Padded) -> "Readings":
        """Return the readings with these scores by T, and all that depends on them."""
        several, row = self.present.sum(axis=1) > 1, np.arange(len(t))
        base, masked = (np.where(self.present, u, -np.inf) for u in (self.base, t))
        sharper = np.full(len(t), np.nan)
        margins = (geometry.margins(u[several, :, None])[:, 0] for u in (masked, base))
        sharper[several] = np.subtract(*margins)
        top = base.argmax(axis=1)
        t = np.where(self.present, t, 0.0)
        return replace(self, t=t, sharper=sharper, shift=t[row, top] - self.base[row, top])

    def decide(self, rule: AblatedRule) -> tuple[Operators, Padded]:
        """Return the operator of each item, and u in nats with -inf in the padding."""
        operators = self._operators(rule)
        eta = rule.theta.eta
        mixing = np.where(self.shift > 0, eta, -eta)[:, None]  # lambda, Eq. 17
        mixed = (1 - mixing) * self.base + mixing * self.t
        choices = [(operators == place)[:, None] for place in OVERRIDING]
        u = np.select(choices, [self.decisive, mixed, self.early], self.base)
        return operators, np.where(self.present, u, -np.inf)

    def _operators(self, rule: AblatedRule) -> Operators:
        theta = rule.theta
        forced = rule.invariant is not None
        invariant = np.full_like(self.d_eff, rule.invariant) if forced else self.invariant
        by_d_eff = {"routed": theta.tau_dim, "always": -np.inf, "never": np.inf}
        spatial = self.d_eff > by_d_eff[rule.candidate_space]
        gates = self.changes & (self.log_ratio > theta.tau_logr) & (self.entropy > theta.tau_H)
        mixes = invariant > theta.tau_I
        # A mix with eta = 0 is the base: lambda = 0 (method, section 6).
        sharper = (self.sharper > 0) & (theta.eta > 0)
        fires: list[np.ndarray] = [spatial & gates, ~spatial & mixes & sharper]
        fires += [~spatial & ~mixes & (self.confidence < theta.gamma)]
        names = [NAMES[place] for place in OVERRIDING]
        allowed = [fire & (n not in rule.dropped) for fire, n in zip(fires, names, strict=True)]
        return np.select(allowed, OVERRIDING, BASE)


def read(cell: Cell, theta: Theta, *, blind: bool = False) -> Readings:
    """Compute the readings of every answered item of a cell.

    With `blind`, the trajectories without the question are used; items that lack them get nan.

    Raises:
        RecordError: A trajectory, t or I(M) is missing: the run did not read everything.
    """
    trajectory, *others = ("blind_trajectory",) if blind else ("trajectory", "t_readings")
    t = cell.scores["blind_t_scores" if blind else "t_scores"]
    r = _blank(cell, t)
    for items, table in cell.pieces(trajectory, *others):
        S = cell.stack(items, table[trajectory])
        some = ~np.isnan(S[:, 0]).all(axis=1) if blind else np.ones(len(S), dtype=bool)
        if np.isnan(S[some]).any():
            raise _unread(cell, "depths of a trajectory")
        if np.isnan(t[items[some]]).any():
            raise _unread(cell, "trajectory or t_scores")
        # The formulas are for items with equally many candidates.
        counts = cell.present[items].sum(axis=1) * some
        for count in np.unique(counts[some]).tolist():
            alike = np.flatnonzero(counts == count)
            _fill(r, items[alike], S[alike, :count], theta)
        if others and not table["t_readings"].null_count:
            for name, scores in cell.stack_by_name(items, table["t_readings"]).items():
                r.t_readings.setdefault(name, np.full(t.shape, np.nan))[items] = scores
    for name in [name for name, scores in r.t_readings.items() if np.isnan(scores).any()]:
        del r.t_readings[name]
    return r.by_scorer(t)


def _blank(cell: Cell, t: Padded) -> Readings:
    """Return readings with all computed values nan, and 0 in the padding."""
    items, shape = cell.items, cell.present.shape
    invariant = column(items, "invariant")
    if np.isnan(invariant).any():
        raise _unread(cell, "the invariant")
    invariants = cell.info.get("invariant_readings") or {}
    read = ~np.isnan(t).any(axis=1)
    return Readings(
        t_readings={},
        invariant_readings={name: v for name, v in invariants.items() if v is not None},
        invariant=invariant,
        changes=np.zeros(len(items), dtype=bool),
        present=cell.present,
        truthful=cell.truthful,
        counts_mc1=items["mc1_base"].notna().to_numpy(dtype=bool) & read,
        counts_mc2=items["mc2_base"].notna().to_numpy(dtype=bool) & read,
        **{name: np.full(len(items), np.nan) for name in _NUMBERS},
        **{name: np.zeros(shape) for name in _VECTORS},
    )


def _fill(r: Readings, items: Places, S: np.ndarray, theta: Theta) -> None:
    """Compute the readings of items of one shape, by the formulas of `lastword.rule.geometry`."""
    # S[item, candidate, depth]: b is its last slice. q is the slice at l*, which differs from item
    # to item and is therefore gathered by (row, layer).
    count, depth = S.shape[1], S.shape[2] - 1
    row = np.arange(len(S))
    b, window = S[:, :, depth], S[:, :, theta.window(depth)]
    layer, top = geometry.decisive_layer(S, theta.eps_H), b.argmax(axis=1)
    q = log_softmax(S[row, :, layer], axis=1)
    r.d_eff[items] = geometry.effective_dimension(window)
    r.changes[items] = q.argmax(axis=1) != top
    if count > 1:
        r.log_ratio[items] = geometry.log_margin_ratio(window, b, theta.delta_r)
        r.entropy[items] = geometry.normalised_entropy(b)
        r.confidence[items] = b[row, top]
    for kind, values in ((r.base, b), (r.decisive, q), (r.early, S[:, :, 0])):
        kind[items, :count] = values


def _unread(cell: Cell, what: str) -> RecordError:
    return RecordError(
        f"{cell.model} on {cell.benchmark} lacks {what}; reports and ablations need every depth: "
        "run `lastword eval` again"
    )
