"""Cross-fitted conditional logits on a cell's candidates: what reading and the middle add.

They are controls of a gain (docs/statistics.md), of a benchmark (`lab.evaluation.controls`) and of
a trial.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lastword.errors import InputError, RecordError
from lastword.probes.logit import Options, best_penalty, centred, padded, root_mean_square
from lastword.probes.trajectory import features_of, unread
from lastword.records.cells import Cell, mean
from lastword.records.columns import decisions
from lastword.records.metrics import PerItem, Places, fixed_and_broken, mc1_rows
from lastword.trust.crossfit import deal_folds
from lastword.trust.evidence import Evidence
from lastword.trust.groups import Groups, groups

ALPHA = 0.05
SEED = 0  # for the sample and the folds
FOLDS = 10
MOST_FITTED = 5_000  # maximum number of items per fit; more would not change the weights
_FEATURES = (
    *("trajectory", "blind_trajectory", "t_scores", "blind_t_scores", "content_free_scores"),
    *("candidate_tokens", "candidates", "index", "base_index", "regime", "operator"),
    *("scores", "base_scores"),
)


@dataclass(frozen=True)
class Addition:
    """Gain of a fit over the fit with fewer features: its mean MC1, and answers fixed and broken.

    `p` is the two-sided test of more fixed than broken, or the reverse, over groups of items
    (`Evidence.gains`): McNemar's test if every item is a group by itself.
    """

    mc1: float
    fixed: int
    broken: int
    p: float

    @property
    def sentence(self) -> str:
        """The end of a sentence, such as `73 and loses 31 (p = 4e-05)`."""
        return f"{self.fixed} and loses {self.broken} (p = {self.p:.2g})"


@dataclass(frozen=True)
class Fit:
    """Results of cross-fitted conditional logits over candidates (docs/statistics.md).

    Attributes:
        wording: Mean MC1 of the fit that never reads the question.
        reading: Gain from adding the base's scores.
        middle: Gain from adding the steps of S from depth to depth, and that from b to t.
    """

    wording: float
    reading: Addition
    middle: Addition


def fit_cell(cell: Cell) -> Fit | None:
    """Return the fits to a cell; None unless all was read with and without the question.

    They are ridge conditional logits on the features of a trajectory probe (docs/statistics.md).
    Each item is answered by a fit to the other folds, at the penalty with the lowest log loss.
    """
    rng, places = np.random.default_rng(SEED), cell.mc1_places
    if len(places) > MOST_FITTED:
        places = np.sort(rng.choice(places, MOST_FITTED, replace=False))
    try:
        x, present = padded(features_of_cell(cell, places))
    except (InputError, RecordError):
        return None
    together = _groups(cell, places)
    # Groups are numbered by their sorted first ids, so that folds do not depend on the row order.
    order = np.argsort(rng.permutation(together.max() + 1))
    folds = deal_folds(together.tolist(), order.tolist(), FOLDS)
    first, base = unread(x.shape[2]), x.shape[2] - 2
    # Steps instead of layers: layers that are nearly copies of b would share its weight, which
    # reduces the penalty on b and would look like a gain from the middle.
    x[:, :, first:base] -= x[:, :, first + 1 : base + 1]
    x[:, :, base + 1] -= x[:, :, base]
    x = centred(x, present)
    x = x / root_mean_square(x, present)
    truthful = cell.truthful[places, : x.shape[1]]
    target = truthful / truthful.sum(axis=1, keepdims=True)

    def answers(features: Sequence[int]) -> PerItem:
        scores = best_penalty(x[:, :, features], present, target, folds)[1]
        return mc1_rows(scores, truthful)

    sets = range(first), [*range(first), base], range(x.shape[2])
    unaware, aware, whole = map(answers, sets)
    reading, middle = _addition(unaware, aware, together), _addition(aware, whole, together)
    return Fit(mean(unaware), reading, middle)


def _addition(before: PerItem, after: PerItem, together: Groups) -> Addition:
    fixed, broken = fixed_and_broken(after - before)
    pairs = before > after, after > before
    evidence, other_way = (Evidence.of(*pair, together) for pair in (pairs, pairs[::-1]))
    p = 2 * min(evidence.gains(), other_way.gains())
    return Addition(mean(after), fixed, broken, min(1.0, p))


def features_of_cell(cell: Cell, places: Places) -> list[Options]:
    """Return a trajectory probe's features of some items, from their records.

    Raises:
        InputError: There is no item, or one lacks a depth or T, with or without the question.
    """
    if not len(places):
        raise InputError("there is no item to fit to")
    answers = (one for f in cell.frames(*_FEATURES, items=places) for one in decisions(f))
    return [features_of(answer, answer.candidate_tokens or ()) for answer in answers]


def _groups(cell: Cell, places: Places) -> Groups:
    """Return the group of each item; groups are numbered in the order of their first ids."""
    together = groups(cell)[np.searchsorted(cell.mc1_places, places)]
    first = cell.items["id"].iloc[places].astype(str).groupby(together).transform("min")
    return np.asarray(np.unique(first, return_inverse=True)[1])
