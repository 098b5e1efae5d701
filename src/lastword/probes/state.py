"""State probes: a linear map from one state of the model to a question's options.

They apply if every text has the same options (method, section 19). Depth, pooling and penalty are
those with the best leave-one-out accuracy on the fit's labels.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

import numpy as np
from jaxtyping import Float, Int
from scipy.special import softmax

from lastword.errors import InputError
from lastword.probes.linear import (
    LinearMap,
    Rows,
    Table,
    Weights,
    fit_linear,
    leave_one_out,
    recurring,
    share_right,
)
from lastword.probes.unlike import Likeness
from lastword.trust.calibration import fit_temperature

Pooling = Literal["mean", "last", "own"]
POOLINGS: tuple[Pooling, ...] = ("mean", "last")  # of a decoder
OWN: Pooling = "own"  # of an encoder
Way = Literal["sum", "side"]  # of two probes together

Block = Float[np.ndarray, "texts _width"]  # of one source
_STANDARDS = ("mean", "scale")

States = Float[np.ndarray, "texts depths poolings width"]


@dataclass(frozen=True, eq=False)
class StateProbe:
    """A linear map from one pooled state to the classes.

    Attributes:
        classes: The classes, sorted by code point.
        depth: Depth of the state that it reads.
        pooling: `mean` over the input's tokens, `last` token of the prompt, or `own`, the pooling
            of an encoder.
        scale: Standard deviation of each feature over the fit's texts [width].
        weights: Weights of the standardised features [width, classes].
        temperature: T, which minimises the fit's leave-one-out log loss.
        likeness: Distances among the fit's texts, to find texts unlike them.
        reader: Name of the encoder whose state it reads; empty if it reads only the model's.
        beside: Depth of the encoder's state, if it is appended to the model's state.
    """

    classes: tuple[str, ...]
    depth: int
    pooling: Pooling
    mean: Float[np.ndarray, " width"]
    scale: Float[np.ndarray, " width"]
    weights: Float[np.ndarray, "width classes"]
    intercept: Float[np.ndarray, " classes"]
    temperature: float
    likeness: Likeness
    reader: str = ""
    beside: int | None = None

    @property
    def name(self) -> str:
        """The name: `probe@DEPTH`, `probe@READER:DEPTH`, or `probe@DEPTH+READER:DEPTH`."""
        if self.beside is not None:
            return f"probe@{self.depth}+{self.reader}:{self.beside}"
        return f"probe@{self.reader}:{self.depth}" if self.reader else f"probe@{self.depth}"

    @property
    def reader_depth(self) -> int | None:
        """The depth that is read in the encoder; None without an encoder."""
        return self.beside if self.beside is not None or not self.reader else self.depth

    def scores(self, states: Rows) -> Table:
        """Return the classes' scores [texts, classes]; softmax(scores / T) are probabilities."""
        return np.asarray(((states - self.mean) / self.scale) @ self.weights + self.intercept)

    def probabilities(self, states: Rows) -> Table:
        """Return softmax(scores / T)."""
        return np.asarray(softmax(self.scores(states) / self.temperature, axis=1))

    def likeness_p(self, states: Rows) -> Float[np.ndarray, " texts"]:
        """Return conformal p-values of the hypothesis that a text is like the labelled ones."""
        return self.likeness.p_values((states - self.mean) / self.scale)


@dataclass(frozen=True, eq=False)
class StateFit:
    """A probe, with the results of its selection.

    Attributes:
        scores: Leave-one-out scores of the fit's texts, in the caller's order [texts, classes].
        right: Leave-one-out accuracy by depth and pooling, each at its best penalty
            [depths, poolings].
    """

    probe: StateProbe
    scores: Table
    right: Float[np.ndarray, "depths poolings"]


def fit_state(
    states: States,
    labels: Sequence[str],
    *,
    depths: Sequence[int] | None = None,
    poolings: Sequence[Pooling] = POOLINGS,
    weights: Mapping[str, float] | None = None,
) -> StateFit:
    """Fit a state probe: one ridge per class on targets of +1 and -1 (method, section 19).

    Args:
        states: States of every text, by depth and pooling [texts, depths, poolings, width].
        labels: The right class of each text. The only text of a class is fitted, but leave-one-out
            does not judge by it.
        depths: The depths of the second axis of `states`; by default 0, 1, 2, ...
        poolings: The poolings of the third axis of `states`.
        weights: Weight of each class, in the fit and in its accuracy; by default equal.

    Raises:
        InputError: Fewer than two classes, no class with two texts, or states that are not finite.
    """
    classes = classes_of(labels)
    if not np.isfinite(states).all():
        raise InputError("states to fit on are finite numbers; these have NaN or infinity")
    truths = np.array([classes.index(label) for label in labels])
    each = of_rows(weights, labels)
    depths = range(states.shape[1]) if depths is None else depths
    fits = {
        (d, p): leave_one_out(states[:, d, p], truths, len(classes), weights=each)
        for d in range(states.shape[1])
        for p in range(states.shape[2])
    }
    d, p = max(fits, key=lambda place: fits[place].right)  # the lowest depth on ties
    best = fits[d, p]
    fitted = fit_linear(best, states[:, d, p], truths, len(classes), weights=each)
    probe = _probe(best.scores, fitted, truths, classes, depths[d], poolings[p])
    right = np.reshape([fit.right for fit in fits.values()], states.shape[1:3])
    return StateFit(probe, best.scores, right)


def fit_beside(
    model: StateFit,
    reader: StateFit,
    rows: tuple[Block, Block],
    labels: Sequence[str],
    ways: Sequence[Way] = get_args(Way),
    weights: Mapping[str, float] | None = None,
) -> StateFit:
    """Fit a probe over a model's state and an encoder's (method, section 22).

    The way with the best leave-one-out accuracy is used; the first on ties.

    Args:
        model: The probe of the model's states.
        reader: The probe of the encoder's states.
        rows: The states that the two probes read, for the texts of the fits [texts, width].
        labels: The right class of each text.
        ways: `sum` adds the scores of the two probes; `side` fits one linear map to both states.
        weights: Weight of each class; by default equal.
    """
    classes, one, other = model.probe.classes, model.probe, reader.probe
    x, widths = np.concatenate(rows, axis=1), tuple(block.shape[1] for block in rows)
    truths = np.array([classes.index(label) for label in labels])
    each = of_rows(weights, labels)
    fits: list[tuple[Table, LinearMap]] = []
    if "sum" in ways:
        fits.append((model.scores + reader.scores, _summed(one, other, x, widths)))
    if "side" in ways:
        both = leave_one_out(x, truths, len(classes), widths, each)
        fits.append((both.scores, fit_linear(both, x, truths, len(classes), widths, each)))
    right = [share_right(scores, truths, each) for scores, _ in fits]
    scores, fitted = fits[int(np.argmax(right))]
    probe = _probe(scores, fitted, truths, classes, one.depth, one.pooling)
    probe = replace(probe, reader=other.reader, beside=other.depth)
    return StateFit(probe, scores, np.array([[max(right)]]))


def _summed(one: StateProbe, other: StateProbe, x: Rows, widths: Sequence[int]) -> LinearMap:
    """Return one map over the rows of two probes, whose scores are the sum of theirs.

    Its scale is that of a map fitted to both blocks, so that likeness weighs the blocks equally.
    """
    roots = np.repeat(np.sqrt(widths), widths)
    mean, scale = (np.concatenate([getattr(each, n) for each in (one, other)]) for n in _STANDARDS)
    weights = np.concatenate([one.weights, other.weights]) * roots[:, None]
    rows = (x - mean) / (scale * roots)
    return LinearMap(mean, scale * roots, weights, one.intercept + other.intercept, rows)


def of_rows(weights: Mapping[str, float] | None, labels: Sequence[str]) -> Weights | None:
    """Return the weight of each row [rows], 1 on average."""
    if weights is None:
        return None
    each = np.array([weights[label] for label in labels])
    return np.asarray(each / each.mean())


def can_fit(labels: Sequence[str]) -> bool:
    """Return True if labels are enough for a probe: two classes, one of them with two labels."""
    return len(set(labels)) > 1 and bool(recurring(labels).any())


def classes_of(labels: Sequence[str]) -> tuple[str, ...]:
    """Return the distinct labels, sorted.

    Raises:
        InputError: There are fewer than two classes, or no class has two labels.
    """
    classes = tuple(sorted(set(labels)))
    if len(classes) < 2:
        raise InputError(f"a probe needs at least two classes, and the labels have {len(classes)}")
    if not can_fit(labels):
        raise InputError("a probe needs a class with two labels; label more texts")
    return classes


def _probe(
    scores: Table,
    fitted: LinearMap,
    truths: Int[np.ndarray, " texts"],
    classes: tuple[str, ...],
    depth: int,
    pooling: Pooling,
) -> StateProbe:
    judged = recurring(truths)
    return StateProbe(
        classes=classes,
        depth=depth,
        pooling=pooling,
        mean=fitted.mean,
        scale=fitted.scale,
        weights=fitted.weights,
        intercept=fitted.intercept,
        temperature=fit_temperature(scores[judged], truths[judged].tolist()),
        likeness=Likeness.of(fitted.rows),
    )
