"""State probes: a linear map from one state of the model to a question's options.

They apply where every text has the same options (method, section 19). Of all depths, poolings and
penalties the one is taken whose leave-one-out answers on the fit's own labels are right most often.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Literal, get_args

import numpy as np
from jaxtyping import Float, Int
from scipy.special import softmax

from lastword.errors import InputError
from lastword.probes.linear import (
    LeaveOneOut,
    LinearMap,
    Rows,
    Table,
    Weights,
    fit_linear,
    leave_one_out,
    share_right,
)
from lastword.probes.unlike import Likeness
from lastword.trust.calibration import fit_temperature

Pooling = Literal["mean", "last", "own"]
POOLINGS: tuple[Pooling, ...] = ("mean", "last")  # of a decoder
OWN: Pooling = "own"  # of an encoder
Way = Literal["sum", "side"]  # of two probes together
LEAST = 2  # labels a class
MOST_EARLIER = 2**26  # bytes of the weights of earlier depths that a probe keeps

Block = Float[np.ndarray, "texts _width"]  # of one source
_STANDARDS = ("mean", "scale")

States = Float[np.ndarray, "texts depths poolings width"]


@dataclass(frozen=True, eq=False)
class StateProbe:
    """One linear map from a pooled state to the classes.

    Attributes:
        classes: In Unicode's order.
        depth: Of the state it reads.
        pooling: The mean over the input's tokens, or the prompt's last token; an encoder's own.
        scale: Deviation of each feature over the fit's texts [width].
        temperature: T, by the fit's leave-one-out log loss.
        likeness: How far the fit's texts lie from one another.
        earlier: What a probe of each depth before it would be, of the same pooling: weights of the
            state itself, the intercept in the last row [depth, width + 1, classes]; None where the
            fit did not see all of them, or they are too large to keep.
        reader: Name of the encoder whose state it reads; empty if it reads the model's alone.
        beside: Depth of that encoder's state, if that stands behind the model's in a row.
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
    earlier: Float[np.ndarray, "_earlier width_1 classes"] | None = None
    reader: str = ""
    beside: int | None = None

    @property
    def name(self) -> str:
        """`probe@DEPTH`, `probe@READER:DEPTH`, or `probe@DEPTH+READER:DEPTH` of both."""
        if self.beside is not None:
            return f"probe@{self.depth}+{self.reader}:{self.beside}"
        return f"probe@{self.reader}:{self.depth}" if self.reader else f"probe@{self.depth}"

    @property
    def reader_depth(self) -> int | None:
        """The depth of the encoder that is read; None if none is."""
        return self.beside if self.beside is not None or not self.reader else self.depth

    def scores(self, states: Rows) -> Table:
        """Return the classes' scores; their softmax at the temperature are the probabilities."""
        return np.asarray(((states - self.mean) / self.scale) @ self.weights + self.intercept)

    def probabilities(self, states: Rows) -> Table:
        """Return softmax(scores / T)."""
        return np.asarray(softmax(self.scores(states) / self.temperature, axis=1))

    def by_depth(self, states: Float[np.ndarray, "depths width"]) -> Table | None:
        """Return what each depth up to this one says of a text [depths, classes]."""
        if self.earlier is None:
            return None
        before = np.einsum("dw,dwc->dc", states[:-1], self.earlier[:, :-1]) + self.earlier[:, -1]
        return np.concatenate([before, self.scores(states[-1:])])

    def likeness_p(self, states: Rows) -> Float[np.ndarray, " texts"]:
        """Return conformal p-values of: the text is like the labelled ones."""
        return self.likeness.p_values((states - self.mean) / self.scale)


@dataclass(frozen=True, eq=False)
class StateFit:
    """A probe, and what its fit saw on the way.

    Attributes:
        scores: Leave-one-out scores of the fit's texts, in the caller's order [texts, classes].
        right: Leave-one-out share right of each depth and pooling, at its best penalty.
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
    """Fit a state probe: a ridge a class on targets of +1 and -1 (method, section 19).

    The same texts in another order give the same probe to the bit.

    Args:
        states: Of every text, by depth and pooling.
        labels: The right class of each text, at least two texts a class.
        depths: What the second axis of `states` holds; 0 and up if left out.
        poolings: What the third axis of `states` holds.
        weights: Weight of each class, in the fit and in its accuracy; equal if left out.

    Raises:
        InputError: Fewer than two classes, a class of one text, or states that are not finite.
    """
    classes = classes_of(labels)
    if not np.isfinite(states).all():
        raise InputError("states to fit on are finite numbers; these have NaN or infinity")
    from threadpoolctl import threadpool_limits

    order = _order(states, labels)
    x, truths = states[order], np.array([classes.index(labels[i]) for i in order])
    each = of_rows(weights, [labels[i] for i in order])
    every = depths is None
    depths = range(x.shape[1]) if depths is None else depths
    with threadpool_limits(1):  # small products, whose bits then depend on no other thread
        fits = {
            (d, p): leave_one_out(x[:, d, p], truths, len(classes), weights=each)
            for d in range(x.shape[1])
            for p in range(x.shape[2])
        }
        d, p = max(fits, key=lambda place: fits[place].right)  # of equals the shallower
        best = fits[d, p]
        fitted = fit_linear(best, x[:, d, p], truths, len(classes), weights=each)
        probe = _probe(best.scores, fitted, truths, classes, depths[d], poolings[p])
        if every and d * x.shape[-1] * len(classes) * 4 <= MOST_EARLIER:
            before = [fits[depth, p] for depth in range(d)]
            earlier = _earlier(before, x[:, :, p], truths, len(classes), each)
            probe = replace(probe, earlier=earlier)
    right = np.reshape([fit.right for fit in fits.values()], x.shape[1:3])
    return StateFit(probe, _in_order(best.scores, order), right)


def fit_beside(
    model: StateFit,
    reader: StateFit,
    rows: tuple[Block, Block],
    labels: Sequence[str],
    ways: Sequence[Way] = get_args(Way),
    weights: Mapping[str, float] | None = None,
) -> StateFit:
    """Fit a probe over a model's state and an encoder's (method, section 22).

    The way with the best leave-one-out accuracy is taken; of equals the first.

    Args:
        model: The probe of the model's states alone.
        reader: The probe of the encoder's states alone.
        rows: The states that each of the two reads, of the texts of the fits.
        labels: The right class of each text.
        ways: `sum` adds the scores of the two probes; `side` fits one linear map to both states.
        weights: Weight of each class; equal if left out.
    """
    from threadpoolctl import threadpool_limits

    classes, one, other = model.probe.classes, model.probe, reader.probe
    order = _order(rows[0][:, None, None], labels)
    x, widths = np.concatenate(rows, axis=1)[order], tuple(block.shape[1] for block in rows)
    truths = np.array([classes.index(labels[i]) for i in order])
    each = of_rows(weights, [labels[i] for i in order])
    with threadpool_limits(1):
        fits: list[tuple[Table, LinearMap]] = []
        if "sum" in ways:
            scores = (model.scores + reader.scores)[order]
            fits.append((scores, _summed(one, other, x, widths)))
        if "side" in ways:
            both = leave_one_out(x, truths, len(classes), widths, each)
            fits.append((both.scores, fit_linear(both, x, truths, len(classes), widths, each)))
        right = [share_right(scores.argmax(axis=1) == truths, each) for scores, _ in fits]
        scores, fitted = fits[int(np.argmax(right))]
        probe = _probe(scores, fitted, truths, classes, one.depth, one.pooling)
    probe = replace(probe, reader=other.reader, beside=other.depth)
    return StateFit(probe, _in_order(scores, order), np.array([[max(right)]]))


def _summed(one: StateProbe, other: StateProbe, x: Rows, widths: Sequence[int]) -> LinearMap:
    """Return the map whose scores are the sum of two probes' over their rows side by side.

    It is scaled as one map over both blocks is, so that likeness weighs them alike.
    """
    roots = np.repeat(np.sqrt(widths), widths)
    mean, scale = (np.concatenate([getattr(each, n) for each in (one, other)]) for n in _STANDARDS)
    weights = np.concatenate([one.weights, other.weights]) * roots[:, None]
    rows = (x - mean) / (scale * roots)
    return LinearMap(mean, scale * roots, weights, one.intercept + other.intercept, rows)


def of_rows(weights: Mapping[str, float] | None, labels: Sequence[str]) -> Weights | None:
    """Return the weight of each row, 1 on average."""
    if weights is None:
        return None
    each = np.array([weights[label] for label in labels])
    return np.asarray(each / each.mean())


def _in_order(scores: Table, order: Int[np.ndarray, " texts"]) -> Table:
    restored = np.empty_like(scores)
    restored[order] = scores
    return restored


def few(labels: Sequence[str]) -> list[str]:
    """Return the classes of fewer labels than a probe needs, which it leaves out."""
    return sorted(label for label, count in Counter(labels).items() if count < LEAST)


def kept(labels: Sequence[str], places: Sequence[int]) -> list[int]:
    """Return those of some places whose class has labels enough among them."""
    rare = few([labels[i] for i in places])
    return [i for i in places if labels[i] not in rare]


def classes_of(labels: Sequence[str]) -> tuple[str, ...]:
    """Return the classes that labels name.

    Raises:
        InputError: Fewer than two, or some of fewer labels than a probe needs.
    """
    classes = tuple(sorted(set(labels)))
    if len(classes) < 2:
        raise InputError(f"a probe tells classes apart, and the labels name {len(classes)}")
    if rare := few(labels):
        names = ", ".join(map(repr, rare))
        raise InputError(f"a class needs {LEAST} labels; label more of, or leave out: {names}")
    return classes


def _order(states: States, labels: Sequence[str]) -> Int[np.ndarray, " texts"]:
    """Places of the texts in an order that is theirs alone."""
    digests = [blake2b(np.ascontiguousarray(state).tobytes()).digest() for state in states]
    return np.array(sorted(range(len(labels)), key=lambda i: (labels[i], digests[i])))


def _earlier(
    before: Sequence[LeaveOneOut],
    x: Float[np.ndarray, "texts depths width"],
    truths: Int[np.ndarray, " texts"],
    classes: int,
    weights: Weights | None,
) -> Float[np.ndarray, "_earlier width_1 classes"]:
    """Weights of unscaled states, with the intercept as their last row, of the first depths."""
    each = np.empty((len(before), x.shape[-1] + 1, classes), dtype=np.float32)
    for depth, (fit, told) in enumerate(zip(before, each, strict=True)):
        map_of_depth = fit_linear(fit, x[:, depth], truths, classes, weights=weights)
        unscaled = map_of_depth.weights / map_of_depth.scale[:, None]
        told[:-1], told[-1] = unscaled, map_of_depth.intercept - map_of_depth.mean @ unscaled
    return each


def _probe(
    scores: Table,
    fitted: LinearMap,
    truths: Int[np.ndarray, " texts"],
    classes: tuple[str, ...],
    depth: int,
    pooling: Pooling,
) -> StateProbe:
    return StateProbe(
        classes=classes,
        depth=depth,
        pooling=pooling,
        mean=fitted.mean,
        scale=fitted.scale,
        weights=fitted.weights,
        intercept=fitted.intercept,
        temperature=fit_temperature(scores, truths.tolist()),
        likeness=Likeness.of(fitted.rows),
    )
