"""Readings: the quantities of the rule, for every item of a cell (method, section 11).

They do not depend on thresholds, so they are computed once, for many items together, and then
compared with any thresholds. Only one piece of the trajectories is in memory at a time.
"""

from dataclasses import dataclass, field, replace

import numpy as np
from jaxtyping import Bool, Float
from scipy.special import log_softmax

from lastword.errors import RecordError
from lastword.records.cells import Cell, column
from lastword.records.metrics import PerItem, Places, mc1_rows, mc2_rows
from lastword.rule import geometry
from lastword.rule.operators import OPERATORS
from lastword.rule.theta import Theta

Padded = Float[np.ndarray, "items candidates"]

NAMES = tuple(OPERATORS)
BASE, DECISIVE, MIX, EARLY = (NAMES.index(n) for n in ("base", "decisive", "mix", "early"))
OVERRIDING = (DECISIVE, MIX, EARLY)

_NUMBERS = ("d_eff", "log_ratio", "entropy", "sharper", "shift", "confidence")
_VECTORS = ("base", "decisive", "early", "t")


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
        moved: By overriding operator, S minus S without the question at the deciding depth (l*, L
            for mix, 0 for early), in nats; nan for an item that was not read without the question
            [items, candidates]. {} if none was.
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
    moved: dict[int, Padded]
    present: Bool[np.ndarray, "items candidates"]
    truthful: Bool[np.ndarray, "items candidates"]
    counts_mc1: Bool[np.ndarray, " items"]
    counts_mc2: Bool[np.ndarray, " items"]
    _gains: dict[tuple[int, float], tuple[PerItem, PerItem]] = field(
        init=False, default_factory=dict, repr=False
    )

    @property
    def read_blind(self) -> bool:
        """True if an item was read without the question."""
        return bool(self.moved)

    def by_reading(self, name: str) -> "Readings":
        """Return the readings with t, and all that depends on it, by another reading of T."""
        t, present, row = self.t_readings[name], self.present, np.arange(len(self.d_eff))
        top = np.where(present, self.base, -np.inf).argmax(axis=1)
        several = present.sum(axis=1) > 1
        sharper = np.full(len(row), np.nan)
        widths = (np.where(present, u, -np.inf)[several] for u in (t, self.base))
        sharper[several] = np.subtract(*(geometry.margins(u[:, :, None])[:, 0] for u in widths))
        shift = t[row, top] - self.base[row, top]
        return replace(self, t=t, sharper=sharper, shift=shift)

    def scores(self, operator: int, eta: float) -> Padded:
        """Return u by one operator, given by its index; the padding is not masked."""
        if operator != MIX:
            vector: Padded = getattr(self, NAMES[operator])
            return vector
        mixing = np.where(self.shift > 0, eta, -eta)[:, None]  # lambda, Eq. 17
        mixed: Padded = (1 - mixing) * self.base + mixing * self.t
        return mixed

    def gains(self, operator: int, eta: float) -> tuple[PerItem, PerItem]:
        """Return the gain in MC1 and in MC2 of each item that an operator answers.

        They are cached by operator and eta, and nan for items that do not count.
        """
        key = (operator, eta if operator == MIX else 0.0)  # only the mix depends on eta
        if key not in self._gains:
            base, corrected = self._shares(BASE, 0.0), self._shares(*key)
            self._gains[key] = (corrected[0] - base[0], corrected[1] - base[1])
        return self._gains[key]

    def _shares(self, operator: int, eta: float) -> tuple[PerItem, PerItem]:
        """Return MC1 and MC2 of each item by one operator's scores; nan if it does not count."""
        first, second = (np.full(len(self.d_eff), np.nan) for _ in range(2))
        items = self.counts_mc1 | self.counts_mc2
        u = np.where(self.present, self.scores(operator, eta), -np.inf)[items]
        first[items] = mc1_rows(u, self.truthful[items])
        second[items] = mc2_rows(u, self.truthful[items])
        return first, second


def read(cell: Cell, theta: Theta, *, blind: bool = False) -> Readings:
    """Compute the readings of every answered item of a cell.

    With `blind`, the trajectories without the question are used instead of those with it; items
    that lack them get nan.

    Raises:
        RecordError: A trajectory, t or I(M) is missing: the run did not read everything.
    """
    names = ("blind_trajectory",) if blind else ("trajectory", "blind_trajectory", "t_readings")
    t = cell.scores["blind_t_scores" if blind else "t_scores"]
    r = _blank(cell, t)
    for items, table in cell.pieces(*names):
        S = cell.stack(items, table[names[0]])
        without = None if blind else cell.stack(items, table["blind_trajectory"])
        some = ~np.isnan(S[:, 0]).all(axis=1) if blind else np.ones(len(S), dtype=bool)
        if np.isnan(S[some]).any():
            raise _unread(cell, "depths of a trajectory")
        if np.isnan(t[items[some]]).any():
            raise _unread(cell, "trajectory or t_scores")
        # The formulas are for items with equally many candidates.
        counts = cell.present[items].sum(axis=1) * some
        for count in np.unique(counts[some]).tolist():
            alike = np.flatnonzero(counts == count)
            _fill(r, items[alike], S[alike, :count], t[items[alike], :count], theta)
            if without is not None:
                _fill_moved(r, items[alike], S[alike, :count], without[alike, :count], theta)
        if not blind and not table["t_readings"].null_count:
            _keep_readings(r, items, cell.stack_by_name(items, table["t_readings"]))
    for name, t_scores in list(r.t_readings.items()):
        if np.isnan(t_scores).any():
            del r.t_readings[name]
    return r


def _keep_readings(r: Readings, items: Places, readings: dict[str, Padded]) -> None:
    """Store t by reading for some items that all have it."""
    for name, t in readings.items():
        stored = r.t_readings.setdefault(name, np.where(r.present, np.nan, 0.0))
        stored[items] = np.where(r.present[items], t, 0.0)


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
        moved={},
        present=cell.present,
        truthful=cell.truthful,
        counts_mc1=items["mc1_base"].notna().to_numpy(dtype=bool) & read,
        counts_mc2=items["mc2_base"].notna().to_numpy(dtype=bool) & read,
        **{name: np.full(len(items), np.nan) for name in _NUMBERS},
        **{name: np.zeros(shape) for name in _VECTORS},
    )


def _fill(r: Readings, items: Places, S: np.ndarray, t: np.ndarray, theta: Theta) -> None:
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
    r.shift[items] = t[row, top] - b[row, top]
    if count > 1:
        r.log_ratio[items] = geometry.log_margin_ratio(window, b, theta.delta_r)
        r.entropy[items] = geometry.normalised_entropy(b)
        r.sharper[items] = np.subtract(*(geometry.margins(u[:, :, None])[:, 0] for u in (t, b)))
        r.confidence[items] = b[row, top]
    for kind, values in ((r.base, b), (r.decisive, q), (r.early, S[:, :, 0]), (r.t, t)):
        kind[items, :count] = values


def _fill_moved(
    r: Readings, items: Places, S: np.ndarray, without: np.ndarray, theta: Theta
) -> None:
    """Compute what the question moved at the depths that may decide items of one shape."""
    if np.isnan(without).all():
        return
    shift, layer = S - without, geometry.decisive_layer(S, theta.eps_H)
    moved = shift[np.arange(len(S)), :, layer], shift[:, :, -1], shift[:, :, 0]
    for place, values in zip(OVERRIDING, moved, strict=True):
        stored = r.moved.setdefault(place, np.where(r.present, np.nan, 0.0))
        stored[items, : S.shape[1]] = values


def _unread(cell: Cell, what: str) -> RecordError:
    return RecordError(
        f"{cell.model} on {cell.benchmark} lacks {what}; reports and ablations need records of "
        "`lastword eval --record all`, which reads every depth"
    )
