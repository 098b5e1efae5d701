"""Metrics of one item and of many: MC1, MC2-style, MC3, calibration error (docs/benchmarks.md).

Everything is numpy in float64, and is computed from scores and truth labels only. Scores are u, b
or another reading: mean log-probabilities per token in nats. A metric is nan (undefined) for an
item without a truthful or without a false candidate.
"""

from collections.abc import Callable, Sequence

import numpy as np
from jaxtyping import Bool, Float, Int

from lastword.errors import InputError

CALIBRATION_BINS = 15
PAIR_ENDS = ("/a", "/b")  # suffixes of the ids of a pair's items

Numbers = Sequence[float | int | bool] | np.ndarray
PerItem = Float[np.ndarray, " items"]
Places = Int[np.ndarray, " places"]
Rows = Float[np.ndarray, "items candidates"]
Truths = Bool[np.ndarray, "items candidates"]
ByDepth = Float[np.ndarray, "items depths"]
Metric = Callable[[Rows, Truths], PerItem]


def mc1(scores: Numbers, truthful: Numbers) -> float:
    """Return MC1: 1 if the top-scoring candidate is truthful, 0 if not (docs/benchmarks.md).

    A tie for first counts as the share of the tied candidates that are truthful. The result is nan
    without a truthful or without a false candidate.

    Raises:
        InputError: Lengths differ, a score is nan or +inf, or all are -inf.
    """
    return _of_item(mc1_rows, scores, truthful)


def mc2(scores: Numbers, truthful: Numbers) -> float:
    """Return the MC2-style metric: softmax mass on the truthful set; otherwise as `mc1`.

    The scores are means over tokens, so this is not comparable with an MC2 of summed scores.
    """
    return _of_item(mc2_rows, scores, truthful)


def mc3(scores: Numbers, truthful: Numbers) -> float:
    """Return MC3: share of truthful candidates that score above all false ones; as `mc1`."""
    return _of_item(mc3_rows, scores, truthful)


def _of_item(rows: Metric, scores: Numbers, truths: Numbers) -> float:
    u, truth = np.asarray(scores, dtype=float), np.asarray(truths, dtype=bool)
    if u.shape != truth.shape or u.ndim != 1:
        raise InputError(f"{u.size} scores for {truth.size} truth labels; give one a candidate")
    if (np.isnan(u) | (u == np.inf)).any() or (u.size and (u == -np.inf).all()):
        raise InputError("a score is nan or +inf, or all are -inf; give log-probabilities")
    counts = truth.any() and not truth.all()
    return float(rows(u[None], truth[None])[0]) if counts else float("nan")


def of_items(metric: Metric, scores: Rows, truthful: Truths) -> PerItem:
    """Return a metric of many items, padded as in `mc1_rows`; nan for an item without scores.

    Items without a truthful or without a false candidate get no meaningful value.
    """
    read = ~np.isnan(scores).any(axis=1) & truthful.any(axis=1)
    shares = np.full(len(scores), np.nan)
    shares[read] = metric(scores[read], truthful[read])
    return shares


def mc1_rows(scores: Rows, truthful: Truths) -> Float[np.ndarray, " items"]:
    """Return MC1 of many items, each with a truthful and a false candidate.

    Items with fewer candidates than the widest are padded with score -inf and truth False.
    """
    tied = scores == scores.max(axis=1, keepdims=True)
    share: np.ndarray = (tied & truthful).sum(axis=1) / tied.sum(axis=1)
    return share


def mc2_rows(scores: Rows, truthful: Truths) -> Float[np.ndarray, " items"]:
    """Return the MC2-style metric of many items, padded as in `mc1_rows`."""
    shifted = scores - scores.max(axis=1, keepdims=True)  # as in log-sum-exp: avoids 0/0
    mass = np.exp(shifted).sum(axis=1)
    true_mass = np.where(truthful, np.exp(shifted), 0.0).sum(axis=1)
    share: np.ndarray = true_mass / mass
    return share


def mc3_rows(scores: Rows, truthful: Truths) -> Float[np.ndarray, " items"]:
    """Return MC3 of many items, padded as in `mc1_rows`."""
    bar = np.where(truthful, -np.inf, scores).max(axis=1, keepdims=True)
    share: np.ndarray = (truthful & (scores > bar)).sum(axis=1) / truthful.sum(axis=1)
    return share


def mc1_by_depth(S: Float[np.ndarray, "items candidates depths"], truthful: Truths) -> ByDepth:
    """Return MC1 of the scores at every depth, padded as in `mc1_rows`; nan where unread."""
    count, candidates, depths = S.shape
    rows, truths = S.swapaxes(1, 2).reshape(-1, candidates), np.repeat(truthful, depths, axis=0)
    return of_items(mc1_rows, rows, truths).reshape(count, depths)


def pair_accuracy(ids: Sequence[str], corrects: Numbers) -> float:
    """Return the share of pairs with both items right, nan without a pair; a tie is not right.

    Two items are a pair if their ids differ only in the suffix, as in `pair/017/a` (`pair_name`).
    """
    right = dict(zip(ids, np.asarray(corrects, dtype=float) == 1, strict=True))
    pairs = dict.fromkeys(name for item in right if (name := pair_name(item)) is not None)
    sides = [[right.get(f"{name}{end}") for end in PAIR_ENDS] for name in pairs]
    both = [all(pair) for pair in sides if None not in pair]
    return float(np.mean(both)) if both else float("nan")


def pair_name(name: str) -> str | None:
    """Return the pair that an id belongs to: `pair/017` for `pair/017/a`, otherwise None."""
    return name[:-2] if name.endswith(PAIR_ENDS) else None


def fixed_and_broken(gains: Numbers) -> tuple[int, int]:
    """Count the answers made right and those made wrong: those whose MC1 rose or fell.

    MC1 is a quotient of small counts, so equal shares are equal floats and need no tolerance.
    """
    changes = np.asarray(gains, dtype=float)
    return int((changes > 0).sum()), int((changes < 0).sum())


def calibration_error(confidences: Numbers, corrects: Numbers) -> float:
    """Return the expected calibration error: sum of |accuracy - confidence| weighted by items.

    It is over equal bins (a, b] of [0, 1]; 0 belongs to the first bin. Items with nan do not count;
    nan without items.
    """
    p, right = np.asarray(confidences, dtype=float), np.asarray(corrects, dtype=float)
    valid = ~(np.isnan(p) | np.isnan(right))
    p, right = p[valid], right[valid]
    if not p.size:
        return float("nan")
    edges, bins = np.linspace(0, 1, CALIBRATION_BINS + 1), CALIBRATION_BINS
    place = np.clip(np.searchsorted(edges, p, side="left") - 1, 0, bins - 1)
    return float(np.abs(np.bincount(place, weights=right - p, minlength=bins)).sum() / p.size)
