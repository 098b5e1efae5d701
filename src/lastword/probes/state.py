"""Linear probes: a linear map from states of a model or an encoder to a question's options.

They apply if every text has the same options (docs/statistics.md). Layer, pooling and penalty are
those with the best leave-one-out accuracy on the fit's labels. A probe reads one block of features
or two side by side. A stacked one adds the model's own scores of the options, which
have information that few labels per class lack.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Literal, get_args

import numpy as np
from jaxtyping import Float
from pydantic import Field
from scipy.special import softmax

from lastword.errors import InputError
from lastword.probes.arrays import ARRAY, LEAST, Temperature, require_shapes
from lastword.probes.linear import (
    LinearMap,
    Rows,
    Table,
    Weights,
    leave_one_out,
    recurring,
    share_right,
)
from lastword.probes.logit import fit_logit
from lastword.probes.novelty import Likeness
from lastword.probes.threshold import of_options
from lastword.trust.calibration import fit_temperature

Pooling = Literal["mean", "last", "own"]
POOLINGS: tuple[Pooling, ...] = ("mean", "last")  # of a decoder
OWN: Pooling = "own"  # of an encoder
Way = Literal["sum", "side"]  # of two probes together

Scores = Float[np.ndarray, "texts options"]
Side = Float[np.ndarray, "texts _width"]
States = Float[np.ndarray, "texts layers poolings width"]


@dataclass(frozen=True)
class StateBlock:
    """Features of a probe: one state of the model or of an encoder.

    Attributes:
        layer: The layer of the state; 0 is the embeddings.
        pooling: `mean` over the input's tokens, `last` token of the prompt, or an encoder's `own`.
        encoder: Name of the encoder; empty for the model.
    """

    layer: Annotated[int, Field(ge=0)]
    pooling: Pooling
    encoder: str = ""

    def __post_init__(self) -> None:
        """Refuse a pooling of another kind of model."""
        if (self.pooling == OWN) != bool(self.encoder):
            raise InputError("its pooling is not that of its model or encoder")

    def __str__(self) -> str:
        """Return `LAYER` or `ENCODER:LAYER`."""
        return f"{self.encoder}:{self.layer}" if self.encoder else str(self.layer)


@dataclass(frozen=True, eq=False)
class LinearProbe:
    """A linear map from blocks of features to the classes.

    Attributes:
        classes: The classes, sorted by code point.
        blocks: What it reads: a state of the model, of an encoder, or both in this order.
        scale: Standard deviation of each feature over the fit's texts [width].
        weights: Weights of the standardised features [width, classes].
        temperature: T, which minimises the log loss of the fit's cross-fitted scores.
        likeness: Distances among the fit's texts, to find texts unlike them.
        stack: Weights of the map's scores, of the model's, and of the model's without the input;
            None if the model's scores are not read.
    """

    classes: tuple[str, ...]
    blocks: Annotated[tuple[StateBlock, ...], Field(min_length=1, max_length=2)]
    mean: Annotated[Float[np.ndarray, " width"], ARRAY]
    scale: Annotated[Float[np.ndarray, " width"], ARRAY]
    weights: Annotated[Float[np.ndarray, "width classes"], ARRAY]
    intercept: Annotated[Float[np.ndarray, " classes"], ARRAY]
    temperature: Temperature
    likeness: Likeness
    stack: tuple[float, float, float] | None = None
    kind: Literal["linear"] = field(default="linear", repr=False)

    def __post_init__(self) -> None:
        """Refuse parts that do not fit together, as a damaged file may have."""
        width, count = self.mean.size, len(self.classes)
        if count < 2 or len(set(self.classes)) < count:
            raise InputError("its classes are fewer than two, or equal")
        if [bool(block.encoder) for block in self.blocks] not in ([False], [True], [False, True]):
            raise InputError("its blocks are not one of the model and one of an encoder")
        require_shapes(self, mean=(width,), scale=(width,), weights=(width, count))
        require_shapes(self, intercept=(count,))
        require_shapes(self.likeness, directions=(self.likeness.gains.size, width))
        if not (self.scale >= LEAST).all():
            raise InputError("its scale is not above 0")

    @property
    def name(self) -> str:
        """The name, such as `probe@19`, `probe@minilm:6` or `probe@19+minilm:6+model`."""
        parts = [*map(str, self.blocks), *(["model"] if self.stack is not None else [])]
        return f"probe@{'+'.join(parts)}"

    @property
    def encoder(self) -> str:
        """The name of the encoder that it reads; empty if there is none."""
        return self.blocks[-1].encoder

    @property
    def reads_model(self) -> bool:
        """True if it reads the model's states or scores."""
        return self.stack is not None or not self.blocks[0].encoder

    def scores(self, rows: Rows) -> Table:
        """Return the classes' scores by the linear map [texts, classes]."""
        return np.asarray(((rows - self.mean) / self.scale) @ self.weights + self.intercept)

    def table(
        self,
        scores: Table,
        options: Sequence[str],
        base: Scores | None = None,
        blind: Scores | None = None,
    ) -> Scores:
        """Return the scores of all options on the ridge's scale [texts, options].

        Options without a class get the score of an unseen one. A stacked probe needs the model's
        scores of the options, with the input (`base`) and without it (`blind`).
        """
        table = of_options(scores, self.classes, options)
        if self.stack is None:
            return table
        assert base is not None and blind is not None
        a, b, c = self.stack
        return np.asarray(a * table + b * base + c * blind)

    def probabilities(self, table: Scores, options: Sequence[str]) -> Scores:
        """Return softmax(table / T); 0 for an option that nothing says anything about."""
        seen = [self.stack is not None or option in self.classes for option in options]
        return np.asarray(softmax(np.where(seen, table / self.temperature, -np.inf), axis=1))

    def likeness_p(self, rows: Rows) -> Float[np.ndarray, " texts"]:
        """Return conformal p-values of the hypothesis that a text is like the labelled ones."""
        return self.likeness.p_values((rows - self.mean) / self.scale)


@dataclass(frozen=True, eq=False)
class LinearFit:
    """A probe, with the results of its selection.

    Attributes:
        scores: Leave-one-out scores of the fit's texts [texts, classes]; for a stacked probe
            cross-fitted ones [texts, options].
        right: Leave-one-out accuracy, each at its best penalty [layers, poolings].
    """

    probe: LinearProbe
    scores: Table
    right: Float[np.ndarray, "layers poolings"]


def fit_state(
    states: States,
    labels: Sequence[str],
    *,
    layers: Sequence[int] | None = None,
    poolings: Sequence[Pooling] = POOLINGS,
    encoder: str = "",
    weights: Mapping[str, float] | None = None,
) -> LinearFit:
    """Fit a probe of one state: one ridge per class on targets of +1 and -1 (docs/statistics.md).

    Args:
        states: States of every text, by layer and pooling [texts, layers, poolings, width].
        labels: The right class of each text. The only text of a class is fitted, but leave-one-out
            does not judge by it.
        layers: The layers of the second axis of `states`; by default 0, 1, 2, ...
        poolings: The poolings of the third axis of `states`; those of an encoder are `own`.
        encoder: The encoder's name; empty for the model.
        weights: Weight of each class, in the fit and in its accuracy; by default equal.

    Raises:
        InputError: Fewer than two classes, no class with two texts, or states that are not finite.
    """
    classes = classes_of(labels)
    if not np.isfinite(states).all():
        raise InputError("states to fit on are finite numbers; these have NaN or infinity")
    truths, each = np.array([*map(classes.index, labels)]), of_rows(weights, labels)
    fits = {
        (i, p): leave_one_out(states[:, i, p], truths, len(classes), weights=each)
        for i in range(states.shape[1])
        for p in range(states.shape[2])
    }
    i, p = max(fits, key=lambda place: fits[place].right)  # the lowest layer on ties
    best, right = fits[i, p], np.reshape([fit.right for fit in fits.values()], states.shape[1:3])
    layer, pooling = i if layers is None else layers[i], OWN if encoder else poolings[p]
    blocks = (StateBlock(layer, pooling, encoder),)
    return LinearFit(_probe(best.scores, best.fit(), labels, blocks), best.scores, right)


def fit_beside(
    model: LinearFit,
    encoder: LinearFit,
    rows: tuple[Side, Side],
    labels: Sequence[str],
    ways: Sequence[Way] = get_args(Way),
    weights: Mapping[str, float] | None = None,
) -> LinearFit:
    """Fit a probe over a model's state and an encoder's (docs/statistics.md).

    `rows` are the states that the two probes read, for the texts of the fits. The way with the best
    leave-one-out accuracy is used, the first on ties: `sum` adds the scores of the two probes, and
    `side` fits one linear map to both states.
    """
    classes, one, other = model.probe.classes, model.probe, encoder.probe
    x, widths = np.concatenate(rows, axis=1), [block.shape[1] for block in rows]
    truths, each = np.array([*map(classes.index, labels)]), of_rows(weights, labels)
    fits: dict[Way, tuple[Table, float, Callable[[], LinearMap]]] = {}
    if "sum" in ways:
        scores = model.scores + encoder.scores
        right = share_right(scores, truths, each)
        fits["sum"] = scores, right, lambda: _summed(one, other, x, widths)
    if "side" in ways:
        fits["side"] = leave_one_out(x, truths, len(classes), widths, each)[:3]
    scores, right, fit = max(fits.values(), key=lambda way: way[1])
    probe = _probe(scores, fit(), labels, (*one.blocks, *other.blocks))
    return LinearFit(probe, scores, np.array([[right]]))


def fit_stacked(
    fit: LinearFit,
    labels: Sequence[str],
    options: Sequence[str],
    base: Scores,
    blind: Scores,
    groups: Sequence[str],
    weights: Mapping[str, float] | None = None,
) -> LinearFit:
    """Fit three weights, shared by all options: of a probe's scores, the model's, and its blind.

    The last two include every `pmi` correction as a special case. The result's scores are those of
    all options, cross-fitted.

    Raises:
        InputError: Fewer groups than folds.
    """
    # Leave-one-out scores, because a probe's scores of its own labels would get too much weight.
    x = np.stack([of_options(fit.scores, fit.probe.classes, options), base, blind], axis=2)
    truths = [options.index(label) for label in labels]
    stack, T, scores = fit_logit([*x], truths, groups, of_rows(weights, labels))
    # The scores are log odds, and half of these are on the ridge's scale (`threshold`).
    a, b, c = (stack / 2).tolist()
    return LinearFit(replace(fit.probe, stack=(a, b, c), temperature=T / 2), scores / 2, fit.right)


def _summed(one: LinearProbe, other: LinearProbe, x: Rows, widths: Sequence[int]) -> LinearMap:
    """Return one map over the rows of two probes, whose scores are the sum of theirs.

    Its scale is that of a map fitted to both blocks, so that likeness weighs the blocks equally.
    """
    roots = np.repeat(np.sqrt(widths), widths)
    mean = np.concatenate([one.mean, other.mean])
    scale = np.concatenate([one.scale, other.scale]) * roots
    weights = np.concatenate([one.weights, other.weights]) * roots[:, None]
    return LinearMap(mean, scale, weights, one.intercept + other.intercept, (x - mean) / scale)


def of_rows(weights: Mapping[str, float] | None, labels: Sequence[str]) -> Weights | None:
    """Return the weight of each row [rows], 1 on average."""
    each = None if weights is None else np.array([weights[label] for label in labels])
    return None if each is None else each / each.mean()


def can_fit(labels: Sequence[str]) -> bool:
    """Return True if labels are enough for a probe: two classes, one of them with two labels."""
    return len(set(labels)) > 1 and bool(recurring(labels).any())


def classes_of(labels: Sequence[str]) -> tuple[str, ...]:
    """Return the distinct labels, sorted; InputError if they are not enough for a probe."""
    classes = tuple(sorted(set(labels)))
    if len(classes) < 2:
        raise InputError(f"a probe needs at least two classes, and the labels have {len(classes)}")
    if not can_fit(labels):
        raise InputError("a probe needs a class with two labels; label more texts")
    return classes


def _probe(
    scores: Table, fitted: LinearMap, labels: Sequence[str], blocks: tuple[StateBlock, ...]
) -> LinearProbe:
    classes, judged = classes_of(labels), recurring(labels)
    truths = [classes.index(label) for label in labels]
    temperature = fit_temperature(scores[judged], np.array(truths)[judged].tolist())
    return LinearProbe(classes, blocks, *fitted[:4], temperature, Likeness.of(fitted.rows))
