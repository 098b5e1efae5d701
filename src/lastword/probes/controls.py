"""Controls: what a gain has to beat before it is one (method, section 15).

None of them reads the question. Flips at random gain where the base is below chance, the longest
candidate is right where truths are told at length, and a rule may do no more than like a wording.
All are on MC1, over the items that count for it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from lastword.errors import InputError
from lastword.probes.logit import best_penalty, centred, root_mean_square
from lastword.probes.trajectory import PENALTIES, Options, feature_places, features_from, padded
from lastword.records.cells import Cell, column, mean
from lastword.records.columns import Lists, Matrices, PerItem, Places
from lastword.records.metrics import fixed_and_broken, mc1_by_depth, mc1_rows
from lastword.trust.crossfit import deal_folds
from lastword.trust.evidence import GroupEvidence
from lastword.trust.grouping import Groups, groups_at
from lastword.trust.paired import mcnemar

ALPHA = 0.05
DRAWS = 4000
SEED = 0  # of draws and folds
FOLDS = 10
MOST_FITTED = 5_000  # items: a weight is known long before
_TRAJECTORIES = ("trajectory", "blind_trajectory")
_SCORES = ("t_scores", "blind_t_scores")
_FEATURES = (*_TRAJECTORIES, *_SCORES, "content_free_scores", "candidate_tokens", "candidates")


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
        p: Two-sided test of more fixed than broken, or the reverse, over groups of items
            (`Evidence.gains`). It is the exact sign test if every item is a group by itself.
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
        middle: What the steps of S from depth to depth and that from b to t add to both.
    """

    wording: float
    reading: Addition
    middle: Addition


@dataclass(frozen=True)
class Controls:
    """Controls of the rule in one cell. Shares lie in [0, 1]; nan where it was not read.

    Attributes:
        base: Mean MC1 of the model's answers.
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
    places = _fitted(cell, rng)
    features, oracles = _survey(cell, places)
    return Controls(
        base=mean(column(cell.items, "mc1_base")[cell.mc1_places]),
        corrected=mean(column(cell.items, "mc1")[cell.mc1_places]),
        chance=cell.chance,
        placebo=placebo(cell),
        wordings=cell.wordings,
        fit=None if features is None else _fit(cell, places, features, rng),
        oracle=oracles["trajectory"],
        blind_oracle=oracles["blind_trajectory"],
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
        chosen = truthful[np.arange(len(places)), index[places].astype(int)]
        shares[places] = (truthful.sum(axis=1) - chosen) / (truthful.shape[1] - 1)
    elsewhere: PerItem = shares[counts]
    return elsewhere


def _fitted(cell: Cell, rng: np.random.Generator) -> Places:
    places = cell.mc1_places
    if len(places) <= MOST_FITTED:
        return places
    sample: Places = np.sort(rng.choice(places, MOST_FITTED, replace=False))
    return sample


def _fit(cell: Cell, places: Places, features: Sequence[Options], rng: np.random.Generator) -> Fit:
    """Fitted wording, and what reading the question adds.

    A ridge conditional logit on the features of a trajectory probe (method, section 19): candidate
    j is answered with probability softmax_j(w . x_j). Fitted wording has those that never read the
    question; *reading* adds the base's scores b, *the middle* the steps of S from depth to depth
    and that from b to t. Each item is answered by a fit on the other folds, at the penalty of the
    least log loss over them. Of more than `MOST_FITTED` items as many are drawn.
    """
    together = _groups(cell, places)
    # Groups are numbered as their first ids are sorted, so the order of rows changes no fold.
    order = np.argsort(rng.permutation(together.max() + 1))
    folds = deal_folds(together.tolist(), order.tolist(), FOLDS)
    x, present = padded(features)
    unread, (start, *_, base), t = feature_places(x.shape[2])
    # As steps from depth to depth: depths that say what b says would else, as copies of it, lessen
    # the penalty on b, and seem to add.
    x[:, :, start:base] -= x[:, :, start + 1 : base + 1]
    x[:, :, t] -= x[:, :, base]
    x = centred(x, present)
    x = x / root_mean_square(x, present)
    truths = [np.array(truth, float)[:, None] for truth in cell.items["truthful"].iloc[places]]
    truthful = padded(truths)[0][:, :, 0].astype(bool)
    target = truthful / truthful.sum(axis=1, keepdims=True)

    def answers(places: Sequence[int]) -> PerItem:
        scores = best_penalty(x[:, :, places], present, target, PENALTIES, folds)[1]
        return mc1_rows(scores, truthful)

    without, read, whole = (
        answers(columns) for columns in (unread, [*unread, base], range(x.shape[2]))
    )
    return Fit(mean(without), _addition(without, read, together), _addition(read, whole, together))


def _addition(before: PerItem, after: PerItem, together: Groups) -> Addition:
    fixed, broken = fixed_and_broken(after - before)
    evidence = GroupEvidence.of(before > after, after > before, together)
    if evidence.exact:
        return Addition(mean(after), fixed, broken, mcnemar(fixed, broken))
    p = 2 * min(float(evidence.gains(1.0)), float(evidence.loses(1.0)))
    return Addition(mean(after), fixed, broken, min(1.0, p))


def features_of_cell(cell: Cell) -> list[Options]:
    """Return what a trajectory probe sees of each item that counts, by its records.

    Raises:
        InputError: One was not read at every depth and by T, with the question and without.
    """
    features, _ = _survey(cell, cell.mc1_places)
    if features is None:
        raise InputError("an item was not read at every depth and by T, both ways")
    return features


def _features(row: Mapping[Any, Any]) -> Options | None:
    read: list[Any] = [row.get(name) for name in (*_TRAJECTORIES, *_SCORES)]
    if any(value is None for value in read):
        return None
    S, blind, t, blind_t = (np.stack([*values]).astype(float) for values in read)
    free = row.get("content_free_scores")
    mean_free = None if free is None else np.stack([*free]).mean(axis=0)
    tokens, candidates = [*map(int, row["candidate_tokens"])], [*row["candidates"]]
    return features_from(S, blind, t, blind_t, mean_free, tokens, candidates)


def _survey(cell: Cell, places: Places) -> tuple[list[Options] | None, dict[str, float]]:
    """Read the trajectories of a cell once, for the fits and both oracles.

    Returns:
        Features of the items at `places`, None where one of them was not read whole, both ways;
        and the share of items that some depth answers rightly, by trajectory; nan where unread.
    """
    # Trajectories are most of what records hold, so they pass through memory a slice of items at a
    # time, once, and leave small things behind: in `best` the MC1 of each item's best depth, with
    # the question and without, and the features of the items that are fitted.
    found: dict[int, Options] = {}
    truthful = Lists.of(cell.items["truthful"])
    best = {name: np.full(len(cell.items), np.nan) for name in _TRAJECTORIES}
    for items, frame in cell.slices(*_FEATURES):
        for name in _TRAJECTORIES:
            if name in frame:
                S = Matrices.of(frame[name])
                best[name][items] = _best_of_depths(S, truthful, items, cell.mc1_places)
        fitted = np.isin(items, places)
        rows = frame[fitted].to_dict("records")
        for place, row in zip(items[fitted].tolist(), rows, strict=True):
            if (features := _features(row)) is not None:
                found[place] = features
    whole = len(found) == len(places) > 0
    oracles = {name: mean(values[cell.mc1_places]) for name, values in best.items()}
    return [found[place] for place in places.tolist()] if whole else None, oracles


def _best_of_depths(
    S: Matrices, truthful: Lists, items: Places, counting: Int[np.ndarray, " counting"]
) -> Float[np.ndarray, " places"]:
    """Return the best MC1 of any depth for items that count; nan for the others.

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


def _groups(cell: Cell, places: Places) -> Groups:
    """Return the group of each item, numbered in the order of their first ids."""
    together = groups_at(cell, places)
    first = cell.items["id"].iloc[places].astype(str).groupby(together).transform("min")
    numbered: Groups = np.unique(first, return_inverse=True)[1]
    return numbered
