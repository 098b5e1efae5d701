"""Controls: what a gain has to beat before it is one (method, section 15).

None of them reads the question. Flips at random gain where the base is below chance, the longest
candidate is right where truths are told at length, and a rule may do no more than like a wording.
All are on MC1, over the items that count for it.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from lastword.evaluation.statistics import paired
from lastword.probes.logit import conditional_logit
from lastword.records.cells import Cell, column, mean
from lastword.records.columns import Lists, Matrices, PerItem, Places
from lastword.records.metrics import mc1_by_depth, mc1_rows, pair_name
from lastword.theta import depth_of
from lastword.trust.grouping import Groups

ALPHA = 0.05
DRAWS = 4000
SEED = 0  # of draws and folds
FOLDS = 10
PENALTY = 30.0
MOST_FITTED = 20_000  # items: a weight is known long before
_BLIND_DEPTHS = (1 / 2, 2 / 3)  # fractions of L
_MIDDLE_DEPTHS = (1 / 2, 2 / 3, 5 / 6)
_TRAJECTORIES = ("trajectory", "blind_trajectory")

Features = Float[np.ndarray, "items candidates features"]
Block = Float[np.ndarray, "items candidates _"]
Entries = Bool[np.ndarray, "items candidates"]


@dataclass(frozen=True)
class Placebo:
    """As many overrides as the rule made, on items and to candidates drawn at random.

    Attributes:
        overrides: How many.
        gain: Their mean gain in MC1, in [-1, 1]; nan without an override.
        p: Share of draws that gain at least what the rule gained; nan without an override.
    """

    overrides: int
    gain: float
    p: float


@dataclass(frozen=True)
class Addition:
    """Gain of a fit's answers over those of the fit with fewer features.

    Attributes:
        mc1: Mean MC1 of its answers.
        fixed: Answers that it makes right.
        broken: Answers that it makes wrong.
        p: Exact sign test, two-sided, in which the two of a pair count once.
    """

    mc1: float
    fixed: int
    broken: int
    p: float

    @property
    def sentence(self) -> str:
        """`73 and loses 31 (p = 4e-05)`."""
        return f"{self.fixed} and loses {self.broken} (p = {self.p:.2g})"

    @property
    def positive(self) -> bool:
        """True if it fixes more answers than it breaks, beyond chance."""
        return self.fixed > self.broken and self.p < ALPHA


@dataclass(frozen=True)
class Fit:
    """Conditional logits over candidates, each answering items that it was not fitted on.

    Attributes:
        wording: Mean MC1 of the fit that never reads the question.
        reading: What the base's scores add to it.
        middle: What S at middle depths and t add to both.
    """

    wording: float
    reading: Addition
    middle: Addition


@dataclass(frozen=True)
class Controls:
    """Controls of the rule in one cell. Shares lie in [0, 1]; nan where it was not read.

    Attributes:
        base: Mean MC1 of the model's own answers.
        corrected: Mean MC1 of the corrected answers.
        chance: Mean share of truths among the candidates.
        placebo: The rule's overrides at random.
        wordings: Mean MC1 of `shortest`, `longest`, `question-blind` and `anti-blind`.
        fit: Fitted wording, and what reading adds; None where not every depth was read blind.
        oracle: Share of items that some depth of S answers rightly.
        blind_oracle: The same without the question.
    """

    base: float
    corrected: float
    chance: float
    placebo: Placebo
    wordings: Mapping[str, float]
    fit: Fit | None
    oracle: float
    blind_oracle: float

    @property
    def rivals(self) -> dict[str, float]:
        """Mean MC1 of everything that never reads the question, by name."""
        fitted = {} if self.fit is None else {"fitted wording": self.fit.wording}
        return {"chance": self.chance, **self.wordings, **fitted}

    @property
    def objection(self) -> str:
        """Say what speaks against calling a gain help; empty where nothing does."""
        rivals = {name: share for name, share in self.rivals.items() if share >= self.corrected}
        if rivals:
            best = max(rivals, key=lambda name: rivals[name])
            return f"and so does {best}, which never reads the question"
        return "" if self.placebo.p < ALPHA else "and so do as many flips at random"

    def to_dict(self) -> dict[str, Any]:
        """As JSON has it; `fit` is null where it is not known."""
        wordings = dict(self.wordings)
        return asdict(replace(self, wordings={})) | {"wordings": wordings}

    @property
    def sentence(self) -> str:
        """Say what the controls reach beside the rule; shares in percent."""
        read = {name: share for name, share in self.rivals.items() if share == share}
        if not read:
            return ""
        parts = [", ".join(f"{name} {100 * share:.2f}" for name, share in read.items())]
        if self.placebo.overrides:
            flips = f"as many flips at random {100 * self.placebo.gain:+.2f}"
            parts.append(f"{flips} points (P {self.placebo.p:.2g})")
        if self.fit is not None:
            parts.append(f"reading adds {self.fit.reading.sentence}")
            parts.append(f"the middle adds {self.fit.middle.sentence}")
        return f"Beside it, the question unread: {'; '.join(parts)}."


def controls(cell: Cell) -> Controls:
    """Return the controls of one cell."""
    rng = np.random.default_rng(SEED)
    survey = _survey(cell, _fitted(cell, rng))
    return Controls(
        base=mean(column(cell.items, "mc1_base")[cell.mc1_places]),
        corrected=mean(column(cell.items, "mc1")[cell.mc1_places]),
        chance=cell.chance,
        placebo=placebo(cell),
        wordings=cell.wordings,
        fit=_fit(cell, survey, rng),
        oracle=survey.oracles["trajectory"],
        blind_oracle=survey.oracles["blind_trajectory"],
    )


def placebo(cell: Cell) -> Placebo:
    """As many overrides as the rule made, drawn at random `DRAWS` times.

    An override of an item gains 1 - m with probability r and -m otherwise, where m is the base's
    MC1 and r the share of truths among the other candidates. Items with equal m and r are alike, so
    that a draw is one of how many of each kind are overridden, and how many of those come out true.
    """
    items, counts = cell.items, cell.mc1_places
    overrides = int((column(items, "index") != column(items, "base_index"))[counts].sum())
    if not overrides:
        return Placebo(0, float("nan"), float("nan"))
    base = column(items, "mc1_base")[counts]
    kinds, sizes = np.unique(
        np.stack([base, _truth_elsewhere(cell)], axis=1), axis=0, return_counts=True
    )
    rng = np.random.default_rng(SEED)
    draws = rng.multivariate_hypergeometric(sizes, overrides, DRAWS)
    right = rng.binomial(draws, kinds[:, 1]).sum(axis=1)
    gains = (right - draws @ kinds[:, 0]) / len(counts)
    hits = int((gains >= mean(cell.gains_mc1) - 1e-12).sum())
    return Placebo(overrides, mean(gains), (1 + hits) / (1 + DRAWS))


def _truth_elsewhere(cell: Cell) -> PerItem:
    """Share of truths among the candidates that the base did not choose, of items that count."""
    counts = cell.mc1_places
    truths = Lists.of(cell.items["truthful"])
    index = column(cell.items, "base_index")
    shares = np.full(len(cell.items), np.nan)
    for places in truths.alike(counts):
        truthful = truths.stack(places).astype(float)
        own = truthful[np.arange(len(places)), index[places].astype(int)]
        shares[places] = (truthful.sum(axis=1) - own) / (truthful.shape[1] - 1)
    elsewhere: PerItem = shares[counts]
    return elsewhere


def fit(cell: Cell) -> Fit | None:
    """Fitted wording, and what reading the question adds; None where it cannot be fitted.

    A ridge conditional logit: candidate j is answered with probability softmax_j(w . x_j), and w
    maximises the log-probability of an item's truths, a mean over them and a sum over items, less
    `PENALTY` |w|^2 / 2. Features are centred within an item and scaled to unit root mean square
    over the cell. Of more than `MOST_FITTED` items as many are drawn.

    Args:
        cell: The cell; every depth has to have been read with the question and without.
    """
    rng = np.random.default_rng(SEED)
    return _fit(cell, _survey(cell, _fitted(cell, rng)), rng)


def _fitted(cell: Cell, rng: np.random.Generator) -> Places:
    places = cell.mc1_places
    if len(places) <= MOST_FITTED:
        return places
    sample: Places = np.sort(rng.choice(places, MOST_FITTED, replace=False))
    return sample


def _fit(cell: Cell, survey: "_Survey", rng: np.random.Generator) -> Fit | None:
    if (design := survey.design) is None:
        return None
    groups = _groups(cell, survey.places)
    folds = _folds(groups, rng)
    blocks = [design.scaled(block) for block in design.blocks]
    without, read, whole = (
        design.answers(np.concatenate(blocks[:count], axis=2), folds) for count in (1, 2, 3)
    )
    return Fit(mean(without), _addition(without, read, groups), _addition(read, whole, groups))


def _addition(before: PerItem, after: PerItem, groups: Groups) -> Addition:
    return Addition(mean(after), *paired(after - before, groups))


@dataclass(frozen=True, eq=False)
class _Design:
    """Features of the fits; 0 beyond an item's candidates.

    Attributes:
        blocks: What never reads the question: blind b, blind S at `_BLIND_DEPTHS`, the logarithms
            of tokens and characters. Then b. Then S at `_MIDDLE_DEPTHS` and t.
        present: Which entries are candidates.
        truthful: Which of them are truthful.
    """

    blocks: tuple[Block, Block, Block]
    present: Entries
    truthful: Entries

    @classmethod
    def blank(cls, truthful: Lists, items: Places) -> "_Design":
        width = int(truthful.lengths.max(initial=0))
        sizes = (3 + len(_BLIND_DEPTHS), 1, 1 + len(_MIDDLE_DEPTHS))
        wording, reading, middle = (np.zeros((len(items), width, size)) for size in sizes)
        present = np.arange(width) < truthful.lengths[items][:, None]
        truths = truthful.padded(width)[items].astype(bool)
        return cls((wording, reading, middle), present, truths)

    def scaled(self, block: Features) -> Features:
        """Features centred within each item, of unit root mean square over all candidates."""
        there = self.present[:, :, None]
        means = (block * there).sum(axis=1, keepdims=True) / there.sum(axis=1, keepdims=True)
        centred = np.where(there, block - means, 0.0)
        size = np.sqrt((centred**2).sum(axis=(0, 1)) / self.present.sum())
        scaled: Features = centred / np.where(size > 0, size, 1.0)
        return scaled

    def answers(self, x: Features, folds: Int[np.ndarray, " items"]) -> PerItem:
        """MC1 of every item, answered by the weights of the other folds."""
        target = self.truthful / self.truthful.sum(axis=1, keepdims=True)
        scores = np.full(self.present.shape, -np.inf)
        for fold in np.unique(folds):
            rest, own = folds != fold, folds == fold
            weights = conditional_logit(x[rest], self.present[rest], target[rest], PENALTY)
            scores[own] = np.where(self.present[own], x[own] @ weights, -np.inf)
        return mc1_rows(scores, self.truthful)


@dataclass(frozen=True, eq=False)
class _Survey:
    """Result of one pass over the trajectories of a cell.

    Attributes:
        places: Of the items that are fitted.
        design: Their features; None where one of them was not read whole, both ways.
        oracles: Share of items that some depth answers rightly, by trajectory; nan where unread.
    """

    places: Places
    design: _Design | None
    oracles: Mapping[str, float]


def _survey(cell: Cell, places: Places) -> _Survey:
    """Read the trajectories of a cell once, for the fits and both oracles."""
    # Trajectories are most of what records hold, so they pass through memory a slice of items at a
    # time, once, and leave small things behind: in `best` the MC1 of each item's best depth, with
    # the question and without, and in `design` the features of the items that are fitted. `row`
    # says which row of the design an item has, -1 for none. A slice may lack one reading; the
    # fits then compare nothing, so they take place only if every row was filled.
    row = np.full(len(cell.items), -1)
    row[places] = np.arange(len(places))
    truthful = Lists.of(cell.items["truthful"])
    t = Lists.of(cell.items["t_scores"]) if "t_scores" in cell.items else None
    design = _Design.blank(truthful, places)
    best = {name: np.full(len(cell.items), np.nan) for name in _TRAJECTORIES}
    read = 0
    for items, frame in cell.slices("candidate_tokens", *_TRAJECTORIES):
        stacks = {name: Matrices.of(frame[name]) for name in _TRAJECTORIES if name in frame}
        for name, S in stacks.items():
            best[name][items] = _best_of_depths(S, truthful, items, cell.mc1_places)
        if len(stacks) == len(_TRAJECTORIES) and "candidate_tokens" in frame and t is not None:
            vectors = (Lists.of(frame["candidate_tokens"]), cell.characters.at(items), t.at(items))
            read += _fill(design, row[items], vectors, *stacks.values())
    whole = read == len(places) > 0
    oracles = {name: mean(own[cell.mc1_places]) for name, own in best.items()}
    return _Survey(places, design if whole else None, oracles)


def _best_of_depths(
    S: Matrices, truthful: Lists, items: Places, counting: Int[np.ndarray, " counting"]
) -> Float[np.ndarray, " places"]:
    """The best MC1 of any depth, of those that count among some items; nan for the others.

    Args:
        S: Of these items.
        truthful: Of all items of the cell.
        items: The places of these.
        counting: Places of the items that count for MC1.
    """
    best = np.full(len(items), np.nan)
    for some in S.alike(np.flatnonzero(np.isin(items, counting))):
        stacked = S.stack(some)
        truths = truthful.stack(items[some]).astype(bool)
        whole = ~np.isnan(stacked).any(axis=(1, 2))  # the others were read as far as they decide
        best[some[whole]] = mc1_by_depth(stacked[whole], truths[whole]).max(axis=1, initial=0.0)
    return best


def _fill(
    design: _Design,
    rows: Int[np.ndarray, " items"],
    vectors: tuple[Lists, Lists, Lists],
    S: Matrices,
    blind: Matrices,
) -> int:
    """Write the features of some items to their rows; how many were read both ways.

    Args:
        design: Where they go.
        rows: Of these items; -1 for one that is not fitted.
        vectors: Tokens and characters of each candidate, and t.
        S: Their trajectories.
        blind: Those without the question.
    """
    (wording, reading, middle), read = design.blocks, 0
    for some in blind.alike(np.flatnonzero(rows >= 0)):
        at, count = rows[some], int(blind.rows[some[0]])
        with_question, without = S.stack(some), blind.stack(some)
        L = with_question.shape[2] - 1
        tokens, characters, t = (own.stack(some)[:, :, None] for own in vectors)
        at_blind = without[:, :, [L, *(depth_of(f, L) for f in _BLIND_DEPTHS)]]
        at_middle = with_question[:, :, [depth_of(f, L) for f in _MIDDLE_DEPTHS]]
        wording[at, :count] = np.concatenate([at_blind, np.log(tokens), np.log(characters)], axis=2)
        reading[at, :count, 0] = with_question[:, :, L]
        middle[at, :count] = np.concatenate([at_middle, t], axis=2)
        read += int((~np.isnan(without).any(axis=(1, 2))).sum())
    return read


def _groups(cell: Cell, places: Places) -> Groups:
    """The group of each item: the two of a pair are one."""
    ids = cell.items["id"].iloc[places].astype(str)
    _, groups = np.unique([pair_name(own) or own for own in ids], return_inverse=True)
    return groups.astype(np.int64)


def _folds(groups: Groups, rng: np.random.Generator) -> Int[np.ndarray, " items"]:
    fold = np.arange(groups.max() + 1) % FOLDS
    rng.shuffle(fold)
    own: Int[np.ndarray, " items"] = fold[groups]
    return own
