"""Trajectory probes: weights over an option's scores at every layer, shared by all options.

They apply if options differ by item (docs/statistics.md). An option's features are its scores at
every layer and by T, each with and without the input, its content-free score and its length.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Literal

import numpy as np
from jaxtyping import Float

from lastword.errors import InputError
from lastword.probes.arrays import ARRAY, Temperature, require_shapes
from lastword.probes.logit import Options, Weights, fit_logit
from lastword.records.decision import Decision


@dataclass(frozen=True, eq=False)
class TrajectoryProbe:
    """One weight per feature.

    Attributes:
        temperature: T, which minimises the cross-fitted log loss.
    """

    weights: Annotated[Float[np.ndarray, " features"], ARRAY]
    temperature: Temperature
    kind: Literal["trajectory"] = field(default="trajectory", repr=False)

    name = "probe@trajectory"

    def __post_init__(self) -> None:
        """Refuse weights that are no vector."""
        require_shapes(self, weights=(self.weights.size,))

    def scores(self, features: Options) -> Float[np.ndarray, " options"]:
        """Return an item's scores [options]; softmax(scores / T) are probabilities."""
        return np.asarray((features - features.mean(axis=0)) @ self.weights)


def features_of(answer: Decision, tokens: Sequence[int]) -> Options:
    """Return the features of the options of an answer; InputError if a reading is missing.

    The last features, S by layer and t, depend on the input; the others never do (`unread`).
    """
    S, t, blind, blind_t = (
        *(answer.trajectory, answer.t_scores),
        *(answer.blind_trajectory, answer.blind_t_scores),
    )
    if blind is None or t is None or blind_t is None or np.isnan(S).any() or np.isnan(blind).any():
        raise InputError("a trajectory probe reads every layer and T, with the input and without")
    free = answer.content_free_scores
    free = np.zeros(len(S)) if free is None else free.mean(axis=0)
    lengths = np.log(tokens), np.log([*map(len, answer.candidates)])
    columns = [blind, np.stack([blind_t, free, *lengths], axis=1), S, t[:, None]]
    return np.concatenate(columns, axis=1)


def unread(features: int) -> int:
    """Return how many of an item's features, the first ones, do not depend on the input."""
    return (features - 5) // 2 + 4  # blind S, and four more; then follow S and t


def fit_trajectory(
    items: Sequence[Options],
    truths: Sequence[int],
    groups: Sequence[str] | None = None,
    weights: Weights | None = None,
) -> TrajectoryProbe:
    """Fit a trajectory probe (docs/statistics.md); arguments and errors as in `fit_logit`."""
    fitted, temperature, _ = fit_logit(items, truths, groups, weights)
    return TrajectoryProbe(fitted, temperature)
