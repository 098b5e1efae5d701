"""Trajectory probes: weights over an option's scores at every depth, shared by all options.

They apply if options differ by item (method, section 19). An option's features are its scores at
every depth and by T, each with and without the input, its content-free score and its length.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from lastword.errors import InputError
from lastword.probes.logit import (
    Features,
    Present,
    Weights,
    best_penalty,
    centred,
    conditional_logit,
    root_mean_square,
)
from lastword.records.decision import Decision
from lastword.trust.calibration import fit_temperature
from lastword.trust.crossfit import deal_folds

PENALTIES = tuple(10.0 ** np.arange(-1, 4.1, 0.5))
FOLDS = 4
_UNREAD, _OTHERS = 4, 5  # features besides the depths: those that never read the input, and all

Options = Float[np.ndarray, "_options features"]  # as many options as the item has


@dataclass(frozen=True, eq=False)
class TrajectoryProbe:
    """One weight per feature.

    Attributes:
        scale: Root mean square of each centred feature over the fit [features].
        weights: Weights of the centred and scaled features [features].
        temperature: T, which minimises the cross-fitted log loss.
    """

    scale: Float[np.ndarray, " features"]
    weights: Float[np.ndarray, " features"]
    temperature: float

    name = "probe@trajectory"

    def scores(self, features: Options) -> Float[np.ndarray, " options"]:
        """Return an item's scores [options]; softmax(scores / T) are probabilities."""
        return np.asarray(((features - features.mean(axis=0)) / self.scale) @ self.weights)


@dataclass(frozen=True, eq=False)
class TrajectoryFit:
    """A probe, and its cross-fitted scores of each item [options]."""

    probe: TrajectoryProbe
    scores: tuple[Float[np.ndarray, " _options"], ...]


def features_of(answer: Decision, tokens: Sequence[int]) -> Options:
    """Return the features of an item's options, from its answer.

    Raises:
        InputError: A reading is missing.
    """
    free = answer.content_free_scores
    return features_from(
        answer.trajectory,
        answer.blind_trajectory,
        answer.t_scores,
        answer.blind_t_scores,
        None if free is None else free.mean(axis=0),
        tokens,
        answer.candidates,
    )


def features_from(
    S: Float[np.ndarray, "_options depths"],
    blind: Float[np.ndarray, "_options depths"] | None,
    t: Float[np.ndarray, " _options"] | None,
    blind_t: Float[np.ndarray, " _options"] | None,
    content_free: Float[np.ndarray, " _options"] | None,
    tokens: Sequence[int],
    candidates: Sequence[str],
) -> Options:
    """Return the features of an item's options from its readings.

    The last features, S and t, depend on the input; the others never do.

    Raises:
        InputError: A reading is missing.
    """
    if blind is None or t is None or blind_t is None or np.isnan(S).any() or np.isnan(blind).any():
        raise InputError("a trajectory probe reads every depth and T, with the input and without")
    free = np.zeros(len(S)) if content_free is None else content_free
    lengths = np.log(tokens), np.log([*map(len, candidates)])
    columns = [blind, np.stack([blind_t, free, *lengths], axis=1), S, t[:, None]]
    return np.concatenate(columns, axis=1)


def without_input(features: Options) -> Float[np.ndarray, "_options unread"]:
    """Return the features that do not depend on the input."""
    return features[:, feature_places(features.shape[1]).unread]


class Places(NamedTuple):
    """Indices of the features of `features_from`: those without the input, S by depth, and t."""

    unread: range
    depths: range
    t: int


def feature_places(count: int) -> Places:
    """Return the indices of an item's features."""
    depths = (count - _OTHERS) // 2
    first = depths + _UNREAD
    return Places(range(first), range(first, first + depths), first + depths)


def fit_trajectory(
    items: Sequence[Options],
    truths: Sequence[int],
    groups: Sequence[str] | None = None,
    weights: Weights | None = None,
) -> TrajectoryFit:
    """Fit a trajectory probe: a conditional logit with one ridge penalty (method, section 19).

    Args:
        items: Features of each item's options.
        truths: Index of each item's right option.
        groups: Group of each item; a group is never split over folds. By default each item is one.
        weights: Weight of each item; by default equal.

    Raises:
        InputError: Fewer groups than folds, or features that are not finite.
    """
    names = [str(i) for i in range(len(items))] if groups is None else [*groups]
    x, present = padded(items)
    if not np.isfinite(x).all():
        raise InputError("features to fit on are finite numbers; these have NaN or infinity")
    distinct = sorted({*names})  # so that folds do not depend on the order of the items
    if len(distinct) < FOLDS:
        raise InputError(f"a trajectory probe needs {FOLDS} groups of items, not {len(distinct)}")
    folds = deal_folds(names, distinct, FOLDS)
    target = np.eye(present.shape[1])[np.asarray(truths)]
    x = centred(x, present)
    scale = root_mean_square(x, present)
    x = x / scale
    penalty, scores = best_penalty(x, present, target, PENALTIES, folds, weights)
    fitted = conditional_logit(x, present, target, penalty, weights)
    temperature = fit_temperature(scores, truths)
    by_item = tuple(row[mask] for row, mask in zip(scores, present, strict=True))
    return TrajectoryFit(TrajectoryProbe(scale, fitted, temperature), by_item)


def padded(items: Sequence[Options]) -> tuple[Features, Present]:
    """Return the items' features as one array, and a mask that is False in the padding."""
    present = np.arange(max(map(len, items))) < np.array([*map(len, items)])[:, None]
    x = np.zeros((*present.shape, items[0].shape[1]))
    x[present] = np.concatenate(items)
    return x, present
