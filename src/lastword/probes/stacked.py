"""Stacked probes: a weighted sum of a state probe's scores and the model's scores.

With few labels per class, the model's scores add information that the labels lack (method, section
19). All options share three weights: for the state probe's score, b and blind b. The last two
include every `pmi` correction as a special case.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from lastword.probes.linear import Table
from lastword.probes.state import StateFit, StateProbe, of_rows
from lastword.probes.threshold import of_options
from lastword.probes.trajectory import TrajectoryProbe, fit_trajectory

Scores = Float[np.ndarray, "texts options"]


@dataclass(frozen=True, eq=False)
class StackedProbe:
    """A state probe, and weights over it and the model's scores.

    Attributes:
        state: The state probe, whose scores are the first feature.
        over: The weights of the three features.
    """

    state: StateProbe
    over: TrajectoryProbe

    @property
    def name(self) -> str:
        """The name, such as `probe@19+model`."""
        return f"{self.state.name}+model"

    @property
    def temperature(self) -> float:
        """T, which minimises the cross-fitted log loss."""
        return self.over.temperature

    def scores(self, table: Table, options: Sequence[str], base: Scores, blind: Scores) -> Scores:
        """Return each text's scores [texts, options]; softmax(scores / T) are probabilities."""
        x = _features(table, self.state.classes, options, base, blind)
        return np.array([self.over.scores(rows) for rows in x])


@dataclass(frozen=True, eq=False)
class StackedFit:
    """A stacked probe, and its cross-fitted scores of the fit's texts [texts, options]."""

    probe: StackedProbe
    scores: Scores


def fit_stacked(
    fit: StateFit,
    labels: Sequence[str],
    options: Sequence[str],
    base: Scores,
    blind: Scores,
    groups: Sequence[str],
    weights: Mapping[str, float] | None = None,
) -> StackedFit:
    """Fit the weights to the state probe's leave-one-out scores and the model's scores.

    Raises:
        InputError: Fewer groups than folds.
    """
    # Leave-one-out scores, because a probe's scores of its own labels would get too much weight.
    x = _features(fit.scores, fit.probe.classes, options, base, blind)
    each = of_rows(weights, labels)
    over = fit_trajectory([*x], [options.index(label) for label in labels], groups, each)
    return StackedFit(StackedProbe(fit.probe, over.probe), np.stack(over.scores))


def _features(
    table: Table, classes: Sequence[str], options: Sequence[str], base: Scores, blind: Scores
) -> Float[np.ndarray, "texts options 3"]:
    return np.stack([of_options(table, classes, options), base, blind], axis=2)
