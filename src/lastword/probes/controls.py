"""Controls: baselines that a gain has to beat to count as one (method, section 15).

None of them reads the question. Random flips gain if the base is below chance, the longest
candidate is often right if truths are longer, and a rule may only prefer a wording. All use MC1,
over the items that count for it.
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
from lastword.records.metrics import fixed_and_broken, mc1_by_depth, mc1_rows
from lastword.records.ragged import Lists, Matrices, PerItem, Places
from lastword.trust.crossfit import deal_folds
from lastword.trust.evidence import Evidence
from lastword.trust.paired import mcnemar
from lastword.trust.record_groups import Groups, groups_at

ALPHA = 0.05
DRAWS = 4000
SEED = 0  # for draws and folds
FOLDS = 10
MOST_FITTED = 5_000  # maximum number of items per fit; more would not change the weights
_TRAJECTORIES = ("trajectory", "blind_trajectory")
_SCORES = ("t_scores", "blind_t_scores")
_FEATURES = (*_TRAJECTORIES, *_SCORES, "content_free_scores", "candidate_tokens", "candidates")


@dataclass(frozen=True)
class Placebo:
    """Random overrides, as many as the rule made, on random items and to random candidates.

    Attributes:
        overrides: Number of overrides.
        gain: Their mean gain in MC1, in [-1, 1]; nan without an override.
        p: Share of draws that gain at least what the rule gained; nan without an override.
    """

    overrides: int
    gain: float
    p: float


@dataclass(frozen=True)
class Addition:
    """Gain of a fit over the fit with fewer features.

    Attributes:
        mc1: Mean MC1 of its answers.
        fixed: Number of answers that it makes right.
        broken: Number of answers that it makes wrong.
        p: Two-sided test of more fixed than broken, or the reverse, over groups of items
            (`Evidence.gains`). It is the exact sign test if every item is a group by itself.
    """

    mc1: float
    fixed: int
    broken: int
    p: float

    @property
    def sentence(self) -> str:
        """The end of a sentence, such as `73 and loses 31 (p = 4e-05)`."""
        return f"{self.fixed} and loses {self.broken} (p = {self.p:.2g})"

    @property
    def positive(self) -> bool:
        """True if it fixes significantly more answers than it breaks."""
        return self.fixed > self.broken and self.p < ALPHA


@dataclass(frozen=True)
class Fit:
    """Results of cross-fitted conditional logits over candidates.

    Attributes:
        wording: Mean MC1 of the fit that never reads the question.
        reading: Gain from adding the base's scores.
        middle: Gain from adding the steps of S from depth to depth, and that from b to t.
    """

    wording: float
    reading: Addition
    middle: Addition


@dataclass(frozen=True)
class Controls:
    """Controls of the rule in one cell. Shares lie in [0, 1]; nan if the scores were not read.

    Attributes:
        base: Mean MC1 of the model's answers.
        corrected: Mean MC1 of the corrected answers.
        chance: Mean share of truths among the candidates.
        placebo: Random overrides, as many as the rule's.
        wordings: Mean MC1 of `shortest`, `longest`, `question-blind` and `anti-blind`.
        fit: Conditional logits; None unless every depth was read with and without the question.
        oracle: Share of items that at least one depth of S answers right.
        blind_oracle: Share of items that at least one depth answers right without the question.
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
        """Mean MC1 of all baselines that never read the question, by name."""
        fitted = {} if self.fit is None else {"fitted wording": self.fit.wording}
        return {"chance": self.chance, **self.wordings, **fitted}

    @property
    def objection(self) -> str:
        """The reason not to count a gain as help, in words; empty if there is none."""
        rivals = {name: share for name, share in self.rivals.items() if share >= self.corrected}
        if rivals:
            best = max(rivals, key=lambda name: rivals[name])
            return f"and so does {best}, which never reads the question"
        return "" if self.placebo.p < ALPHA else "and so do as many random flips"

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form; `fit` is null if it was not computed."""
        return asdict(replace(self, wordings=dict(self.wordings)))

    @property
    def sentence(self) -> str:
        """The results of the controls and of the rule in words; shares in percent."""
        read = {name: share for name, share in self.rivals.items() if share == share}
        if not read:
            return ""
        parts = [", ".join(f"{name} {100 * share:.2f}" for name, share in read.items())]
        if self.placebo.overrides:
            flips = f"as many random flips {100 * self.placebo.gain:+.2f}"
            parts.append(f"{flips} points (P {self.placebo.p:.2g})")
        if self.fit is not None:
            parts.append(f"reading adds {self.fit.reading.sentence}")
            parts.append(f"the middle adds {self.fit.middle.sentence}")
        return f"For comparison, without the question: {'; '.join(parts)}."


def controls(cell: Cell) -> Controls:
    """Return the controls of one cell."""
    rng = np.random.default_rng(SEED)
    places = cell.mc1_places
    if len(places) > MOST_FITTED:
        places = np.sort(rng.choice(places, MOST_FITTED, replace=False))
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
    """Draw as many random overrides as the rule made, `DRAWS` times, and compare the gains.

    An override of an item gains 1 - m with probability r and -m otherwise; m is the base's MC1 and
    r the share of truths among the other candidates.
    """
    items, counts = cell.items, cell.mc1_places
    overrides = int((column(items, "index") != column(items, "base_index"))[counts].sum())
    if not overrides:
        return Placebo(0, float("nan"), float("nan"))
    base = column(items, "mc1_base")[counts]
    kinds, sizes = np.unique(
        np.stack([base, _truth_elsewhere(cell)], axis=1), axis=0, return_counts=True
    )
    # Items with equal m and r are exchangeable. It is enough to draw how many items of each kind
    # are overridden (hypergeometric), and how many of these overrides are right (binomial).
    rng = np.random.default_rng(SEED)
    draws = rng.multivariate_hypergeometric(sizes, overrides, DRAWS)
    right = rng.binomial(draws, kinds[:, 1]).sum(axis=1)
    gains = (right - draws @ kinds[:, 0]) / len(counts)
    hits = int((gains >= mean(cell.gains_mc1) - 1e-12).sum())
    return Placebo(overrides, mean(gains), (1 + hits) / (1 + DRAWS))


def _truth_elsewhere(cell: Cell) -> PerItem:
    """Return the share of truths among candidates that the base did not choose, per item."""
    counts = cell.mc1_places
    truths = Lists.of(cell.items["truthful"])
    index = column(cell.items, "base_index")
    shares = np.full(len(cell.items), np.nan)
    for places in truths.alike(counts):
        truthful = truths.stack(places).astype(float)
        chosen = truthful[np.arange(len(places)), index[places].astype(int)]
        shares[places] = (truthful.sum(axis=1) - chosen) / (truthful.shape[1] - 1)
    return np.asarray(shares[counts])


def _fit(cell: Cell, places: Places, features: Sequence[Options], rng: np.random.Generator) -> Fit:
    """Fit conditional logits with growing sets of features, and return their results.

    They are ridge conditional logits on the features of a trajectory probe (method, section 19).
    *wording* has the features that never read the question; *reading* adds the base's scores b;
    *the middle* adds the steps of S from depth to depth and that from b to t. Each item is answered
    by a fit to the other folds, at the penalty with the lowest log loss.
    """
    together = _groups(cell, places)
    # Groups are numbered by their sorted first ids, so that folds do not depend on the row order.
    order = np.argsort(rng.permutation(together.max() + 1))
    folds = deal_folds(together.tolist(), order.tolist(), FOLDS)
    x, present = padded(features)
    unread, (start, *_, base), t = feature_places(x.shape[2])
    # Steps instead of depths: depths that are nearly copies of b would share its weight, which
    # reduces the penalty on b and would look like a gain from the middle.
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
    evidence = Evidence.of(before > after, after > before, together)
    if evidence.exact:
        return Addition(mean(after), fixed, broken, mcnemar(fixed, broken))
    p = 2 * min(evidence.gains(), evidence.loses())
    return Addition(mean(after), fixed, broken, min(1.0, p))


def features_of_cell(cell: Cell) -> list[Options]:
    """Return a trajectory probe's features of each item that counts, from its record.

    Raises:
        InputError: An item was not read at every depth and by T, with and without the question.
    """
    features, _ = _survey(cell, cell.mc1_places)
    if features is None:
        raise InputError(
            "an item was not read at every depth and by T, with and without the question"
        )
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
        Features of the items at `places`, or None unless all were fully read with and without the
        question; and the share of items that some depth answers right, by trajectory (or nan).
    """
    # Trajectories are the largest part of the records, so only one slice of them is in memory at a
    # time. What remains is small: each item's MC1 at its best depth, and the features to fit.
    features: dict[int, Options] = {}
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
            if (of_item := _features(row)) is not None:
                features[place] = of_item
    oracles = {name: mean(values[cell.mc1_places]) for name, values in best.items()}
    if not len(features) == len(places) > 0:
        return None, oracles
    return [features[place] for place in places.tolist()], oracles


def _best_of_depths(
    S: Matrices, truthful: Lists, items: Places, counting: Int[np.ndarray, " counting"]
) -> Float[np.ndarray, " places"]:
    """Return the best MC1 of any depth for items that count; nan for the others.

    Args:
        S: Trajectories of some items.
        truthful: Labels of all items of the cell.
        items: The indices of the items of `S`.
        counting: Indices of the items that count for MC1.
    """
    best = np.full(len(items), np.nan)
    for some in S.alike(np.flatnonzero(np.isin(items, counting))):
        stacked = S.stack(some)
        truths = truthful.stack(items[some]).astype(bool)
        whole = ~np.isnan(stacked).any(axis=(1, 2))  # others were only read as far as needed
        best[some[whole]] = mc1_by_depth(stacked[whole], truths[whole]).max(axis=1, initial=0.0)
    return best


def _groups(cell: Cell, places: Places) -> Groups:
    """Return the group of each item; groups are numbered in the order of their first ids."""
    together = groups_at(cell, places)
    first = cell.items["id"].iloc[places].astype(str).groupby(together).transform("min")
    return np.asarray(np.unique(first, return_inverse=True)[1])
