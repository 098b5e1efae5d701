"""Every variant of the rule, decided again from records alone (method, section 11).

An item's geometry is derived once (`read`): its gates do not depend on their thresholds. A variant
is then a `Variant`, and deciding a cell under it is a few array operations over all of its items.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy.special import log_softmax

from tracelm.errors import InputError, RecordError
from tracelm.evaluation.cells import Cell, column, mean
from tracelm.evaluation.metrics import mc1_rows, mc2_rows
from tracelm.evaluation.statistics import ROUNDING
from tracelm.rule import geometry
from tracelm.rule.operators import OPERATORS
from tracelm.theta import Theta

PerItem = Float[np.ndarray, " items"]
PerCandidate = Float[np.ndarray, " candidates"]
Padded = Float[np.ndarray, "items candidates"]

QUESTION_GATE = "Question gate (ours)"
# Less than this between two candidates is rounding, in nats (method, section 9): where both prompts
# end alike depth 0 reads the same twice.
_MOVED = 1e-4

_NAMES = tuple(OPERATORS)
_BASE, _DECISIVE, _MIX, _EARLY = (_NAMES.index(n) for n in ("base", "decisive", "mix", "early"))
_OVERRIDING = (_DECISIVE, _MIX, _EARLY)

GRIDS: Mapping[str, tuple[float, ...]] = MappingProxyType(
    {
        "tau_dim": (1.0, 1.0005, 1.001, 1.0015, 1.005, 1.01, 1.05, 1.1, 1.25),
        "eta": tuple(k / 4 for k in range(9)),
        "tau_logr": tuple(k / 4 for k in range(9)),
        "tau_H": tuple(round(0.05 * k, 2) for k in range(20)),
        "gamma": tuple(k / 4 - 3 for k in range(13)),
    }
)


@dataclass(frozen=True)
class Variant:
    """Algorithm 1 with at most one component replaced.

    Attributes:
        theta: Thresholds and eta.
        candidate_space: Which items take method, section 4: those that d_eff sends there, all
            (n = 2 too, with the three gates), or none.
        dropped: Operators whose items fall to the base.
        invariant: Read instead of every model's I(M); None reads I(M).
        question_gate: Whether an override stands only where the question moved its answer up
            against the base's, at the depth that decides (method, section 14; ours).
    """

    theta: Theta = field(default_factory=Theta)
    candidate_space: Literal["routed", "always", "never"] = "routed"
    dropped: frozenset[str] = frozenset()
    invariant: float | None = None
    question_gate: bool = False


@dataclass(frozen=True, eq=False)
class Readings:
    """Everything that the rule compares or answers with, for all items of a cell.

    Candidates beyond an item's own are filled with 0 and masked by `present`.

    Attributes:
        invariant: I(M) as recorded [items].
        d_eff: Eq. 5 [items].
        changes: Whether the decisive layer prefers another candidate [items].
        log_ratio: g_logr, Eq. 8 [items].
        entropy: g_H, Eq. 8; nan for one candidate [items].
        sharper: margin(t) - margin(b) [items].
        shift: t - b at the base's choice [items].
        confidence: max b [items].
        base: b [items, candidates].
        decisive: q, log pi at the decisive layer [items, candidates].
        early: S at depth 0 [items, candidates].
        t: The trajectory scorer's scores [items, candidates].
        moved: For each operator that overrides, S less its blind reading at the depth that decides:
            l*, L for mix, 0 for early; nan where nothing was read blind [items, candidates].
        present: Which entries are candidates [items, candidates].
        truthful: Which entries are truthful candidates [items, candidates].
        counts_mc1: Which items count for MC1 [items].
        counts_mc2: Which items count for MC2 [items].
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
    moved: Mapping[int, Padded]
    present: Bool[np.ndarray, "items candidates"]
    truthful: Bool[np.ndarray, "items candidates"]
    counts_mc1: Bool[np.ndarray, " items"]
    counts_mc2: Bool[np.ndarray, " items"]

    @property
    def read_blind(self) -> bool:
        """Whether some item was read with the question left out."""
        return not np.isnan(self.moved[_MIX]).any(axis=1).all()


@dataclass(frozen=True, eq=False)
class Answers:
    """What a variant answers on one cell.

    Attributes:
        operators: Places in the table of operators [items].
        scores: u, -inf beyond an item's candidates [items, candidates].
    """

    operators: Int[np.ndarray, " items"]
    scores: Padded

    @property
    def index(self) -> Int[np.ndarray, " items"]:
        """The corrected choice of every item; the lowest place on ties."""
        choice: Int[np.ndarray, " items"] = self.scores.argmax(axis=1)
        return choice


@dataclass(frozen=True, eq=False)
class Effect:
    """One variant over all cells, as differences from the base in [-1, 1].

    Attributes:
        label: What was replaced.
        deltas_mc1: Mean delta MC1 of each cell, nan where none counts [cells].
        deltas_mc2: Mean delta MC2 of each cell, nan where none counts [cells].
        value: The swept constant's value; None outside a sweep.
    """

    label: str
    deltas_mc1: Float[np.ndarray, " cells"]
    deltas_mc2: Float[np.ndarray, " cells"]
    value: float | None = None

    @property
    def delta_mc1(self) -> float:
        """Unweighted mean over the cells that have one."""
        return mean(self.deltas_mc1[~np.isnan(self.deltas_mc1)])

    @property
    def delta_mc2(self) -> float:
        """Unweighted mean over the cells that have one."""
        return mean(self.deltas_mc2[~np.isnan(self.deltas_mc2)])

    @property
    def negative_mc1(self) -> int:
        """Cells whose unrounded delta MC1 is below 0."""
        return int((self.deltas_mc1 < -ROUNDING).sum())

    @property
    def negative_mc2(self) -> int:
        """Cells whose unrounded delta MC2 is below 0."""
        return int((self.deltas_mc2 < -ROUNDING).sum())


@dataclass(frozen=True)
class Sweep:
    """One constant of the outer rule moved over a grid.

    Attributes:
        parameter: Its name in Theta.
        published: Its value in the Theta of the runs.
        effects: One a value of the grid, ascending.
    """

    parameter: str
    published: float
    effects: tuple[Effect, ...]


def read(cell: Cell, theta: Theta) -> Readings:
    """Derive the geometry of every answered item of a cell.

    Raises:
        RecordError: A trajectory, t or I(M) is missing: the run did not read everything.
    """
    items = cell.items
    if "trajectory" not in items or "t_scores" not in items:
        raise _unread(cell, "trajectory or t_scores")
    derived = [
        _derive(S, t, theta, cell)
        for S, t in zip(items["trajectory"], items["t_scores"], strict=True)
    ]
    width = max((len(d["base"]) for d in derived), default=1)
    vectors = {n: _pad([d[n] for d in derived], width) for n in ("base", "decisive", "early", "t")}
    moved = [_moved(*row) for row in zip(derived, items["trajectory"], _blind(cell), strict=True)]
    truth = [() if labels is None else labels for labels in items["truthful"]]
    numbers = {
        name: np.array([d[name] for d in derived], dtype=float)
        for name in ("d_eff", "log_ratio", "entropy", "sharper", "shift", "confidence")
    }
    return Readings(
        invariant=_invariant(cell),
        changes=np.array([d["changes"] for d in derived], dtype=bool),
        moved={place: _pad([m[place] for m in moved], width) for place in _OVERRIDING},
        present=_pad([np.ones(len(d["base"])) for d in derived], width).astype(bool),
        truthful=_pad(truth, width).astype(bool),
        counts_mc1=items["mc1_base"].notna().to_numpy(dtype=bool),
        counts_mc2=items["mc2_base"].notna().to_numpy(dtype=bool),
        **numbers,
        **vectors,
    )


def decide(readings: Readings, variant: Variant) -> Answers:
    """Algorithm 1 under `variant` for all items of a cell."""
    r, operators = readings, _operators(readings, variant)
    eta = variant.theta.eta
    mixing = np.where(r.shift > 0, eta, -eta)[:, None]  # lambda, Eq. 17
    u = np.select(
        [(operators == place)[:, None] for place in _OVERRIDING],
        [r.decisive, (1 - mixing) * r.base + mixing * r.t, r.early],
        r.base,
    )
    answers = Answers(operators, np.where(r.present, u, -np.inf))
    return _gated(r, answers) if variant.question_gate else answers


def deltas(readings: Readings, variant: Variant) -> tuple[float, float]:
    """Mean delta MC1 and delta MC2 of a cell under `variant`; nan where no item counts.

    The question gate has none where nothing was read blind.
    """
    r = readings
    if variant.question_gate and not r.read_blind:
        return np.nan, np.nan
    u, b = decide(r, variant).scores, np.where(r.present, r.base, -np.inf)
    first, second = r.counts_mc1, r.counts_mc2
    gain_1 = mc1_rows(u[first], r.truthful[first]) - mc1_rows(b[first], r.truthful[first])
    gain_2 = mc2_rows(u[second], r.truthful[second]) - mc2_rows(b[second], r.truthful[second])
    return mean(gain_1), mean(gain_2)


def necessity(cells: Sequence[Readings], theta: Theta) -> list[Effect]:
    """The rule and the eight rows of the necessity table, in the paper's order.

    Where cells were read blind a row of our own follows, the question gate, over those.
    """
    rule = Variant(theta)
    variants = {
        "TRACE" if theta == Theta() else "TRACE (as run)": rule,
        "Force every item into multi-directional arm": replace(rule, candidate_space="always"),
        "Force every item into scalar arm": replace(rule, candidate_space="never"),
        "Drop signed mixing": replace(rule, dropped=frozenset({"mix"})),
        "Drop earliest-state recovery": replace(rule, dropped=frozenset({"early"})),
        "Drop both scalar operators": replace(rule, dropped=frozenset({"mix", "early"})),
        "Drop multi-directional arm": replace(rule, dropped=frozenset({"decisive"})),
        "Force signed mixing on every model": replace(rule, invariant=np.inf),
        "Force fallback on every model": replace(rule, invariant=0.0),
    }
    if any(cell.read_blind for cell in cells):
        variants[QUESTION_GATE] = replace(rule, question_gate=True)
    return [_effect(label, cells, variant) for label, variant in variants.items()]


def sweep(
    cells: Sequence[Readings], theta: Theta, parameter: str, values: Sequence[float] | None = None
) -> Sweep:
    """One constant moved over `values`, the rest as in `theta` (method, section 11).

    At tau_dim = 1 binary items are decided as at 1.0005: their d_eff is 1 exactly. The paper's
    regressions at that point are rounding noise and are not reproduced (method, section 12).

    Raises:
        InputError: `parameter` is not one of the five.
    """
    if parameter not in GRIDS:
        raise InputError(f"cannot sweep {parameter}; one of {', '.join(GRIDS)}")
    grid = sorted(GRIDS[parameter] if values is None else values)
    effects = [
        _effect(f"{parameter} = {value:g}", cells, Variant(_with(theta, parameter, value)), value)
        for value in grid
    ]
    return Sweep(parameter, float(getattr(theta, parameter)), tuple(effects))


def _with(theta: Theta, parameter: str, value: float) -> Theta:
    changed: dict[str, Any] = {parameter: value}
    return replace(theta, **changed)


def _effect(
    label: str, cells: Sequence[Readings], variant: Variant, value: float | None = None
) -> Effect:
    pairs = np.array([deltas(cell, variant) for cell in cells], dtype=float).reshape(-1, 2)
    return Effect(label, pairs[:, 0], pairs[:, 1], value)


def _operators(r: Readings, variant: Variant) -> Int[np.ndarray, " items"]:
    """Which operator answers each item, as places in the table of operators."""
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
    kept = [
        fire & (_NAMES[place] not in variant.dropped)
        for fire, place in zip(fires, _OVERRIDING, strict=True)
    ]
    return np.select(kept, [_DECISIVE, _MIX, _EARLY], _BASE)


def _gated(r: Readings, answers: Answers) -> Answers:
    """The answers whose overrides the question itself moved up; the base's for the others."""
    base = np.where(r.present, r.base, -np.inf)
    new, old, item = answers.index, base.argmax(axis=1), np.arange(len(base))
    moved = np.select(
        [(answers.operators == place)[:, None] for place in _OVERRIDING],
        [r.moved[place] for place in _OVERRIDING],
    )
    stands = (new == old) | (moved[item, new] - moved[item, old] > _MOVED)  # nan does not stand
    operators = np.where(stands, answers.operators, _BASE)
    return Answers(operators, np.where(stands[:, None], answers.scores, base))


def _blind(cell: Cell) -> Sequence[Any]:
    """The blind trajectory of every item; None where there is none."""
    read = cell.items.get("blind_trajectory")
    return [None] * len(cell.items) if read is None else list(read)


def _moved(derived: Mapping[str, Any], trajectory: Any, blind: Any) -> dict[int, PerCandidate]:
    """S less its blind reading where each operator decides, by the operator's place."""
    S = np.asarray(trajectory, dtype=float)
    difference = S - (np.nan if blind is None else np.asarray(blind, dtype=float))
    at = {_DECISIVE: derived["layer"], _MIX: S.shape[1] - 1, _EARLY: 0}
    return {place: difference[:, depth] for place, depth in at.items()}


def _derive(trajectory: Any, t_scores: Any, theta: Theta, cell: Cell) -> dict[str, Any]:
    """Gates and readings of one item, by the formulas of `tracelm.rule.geometry`."""
    if trajectory is None or t_scores is None:
        raise _unread(cell, "trajectory or t_scores")
    S = np.stack([np.asarray(row, dtype=float) for row in trajectory])
    t = np.asarray(t_scores, dtype=float)
    if np.isnan(S).any():
        raise _unread(cell, "depths of a trajectory")
    b, window = S[:, -1], S[:, theta.window(S.shape[1] - 1)]
    top = int(np.argmax(b))
    layer = geometry.decisive_layer(S, theta.eps_H)
    q = log_softmax(S[:, layer])
    single = len(b) == 1
    return {
        "d_eff": geometry.effective_dimension(window),
        "layer": layer,
        "changes": int(np.argmax(q)) != top,
        "log_ratio": np.nan if single else geometry.log_margin_ratio(window, b, theta.delta_r),
        "entropy": np.nan if single else geometry.normalised_entropy(b),
        "sharper": np.nan if single else geometry.margin(t) - geometry.margin(b),
        "shift": t[top] - b[top],
        "confidence": np.nan if single else b[top],
        "base": b,
        "decisive": q,
        "early": S[:, 0],
        "t": t,
    }


def _invariant(cell: Cell) -> PerItem:
    values = column(cell.items, "invariant")
    if np.isnan(values).any():
        raise _unread(cell, "the invariant")
    return values


def _unread(cell: Cell, what: str) -> RecordError:
    return RecordError(
        f"{cell.model} on {cell.benchmark} lacks {what}; ablations need records of `tracelm eval`, "
        "which reads every depth"
    )


def _pad(vectors: Sequence[Any], width: int) -> Padded:
    padded = np.zeros((len(vectors), width))
    for row, vector in zip(padded, vectors, strict=True):
        row[: len(vector)] = vector
    return padded
