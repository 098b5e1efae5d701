"""Stacked probes: a state probe and the model's own reading of the options, weighed together.

Where labels are few for the classes, the model's answer knows what they cannot say (method,
section 19). Three weights, shared by all options: of the state probe's score, of b and of blind b,
which together hold every pmi.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from lastword.probes.state import StateFit, StateProbe, of_rows
from lastword.probes.threshold import of_options
from lastword.probes.trajectory import TrajectoryProbe, fit_trajectory

Table = Float[np.ndarray, "texts classes"]
Scores = Float[np.ndarray, "texts options"]


@dataclass(frozen=True, eq=False)
class StackedProbe:
    """A state probe, and weights over it and the model's scores.

    Attributes:
        state: Its scores are the first feature.
        over: Weighs it, b and blind b.
    """

    state: StateProbe
    over: TrajectoryProbe

    @property
    def name(self) -> str:
        """`probe@DEPTH+model`."""
        return f"{self.state.name}+model"

    @property
    def temperature(self) -> float:
        """T, by the cross-fitted log loss."""
        return self.over.temperature

    def scores(self, known: Table, options: Sequence[str], base: Scores, blind: Scores) -> Scores:
        """Return each text's scores; their softmax at the temperature are the probabilities."""
        x = _features(known, self.state.classes, options, base, blind)
        return np.array([self.over.scores(rows) for rows in x])


@dataclass(frozen=True, eq=False)
class StackedFit:
    """A stacked probe, and the scores of each text by a fit without its fold [texts, options]."""

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
    """Fit the weights on the state probe's leave-one-out scores.

    Raises:
        InputError: Fewer groups than folds.
    """
    x = _features(fit.scores, fit.probe.classes, options, base, blind)
    each = of_rows(weights, labels)
    over = fit_trajectory([*x], [options.index(label) for label in labels], groups, each)
    return StackedFit(StackedProbe(fit.probe, over.probe), np.stack(over.scores))


def _features(
    known: Table, classes: Sequence[str], options: Sequence[str], base: Scores, blind: Scores
) -> Float[np.ndarray, "texts options 3"]:
    return np.stack([of_options(known, classes, options), base, blind], axis=2)
