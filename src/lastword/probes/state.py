"""State probes: a linear map from one state of the model to a question's options.

They apply where every text has the same options (method, section 19). Of all depths, poolings and
penalties the one is taken whose leave-one-out answers on the fit's own labels are right most often.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any, Literal, get_args

import numpy as np
from jaxtyping import Float, Int
from scipy.special import softmax

from lastword.errors import InputError
from lastword.probes.unlike import Likeness
from lastword.trust.calibration import fit_temperature

Pooling = Literal["mean", "last"]
POOLINGS: tuple[Pooling, ...] = get_args(Pooling)
LEAST = 2  # labels a class
MOST_EARLIER = 2**26  # bytes of the weights of earlier depths that a probe keeps

# Penalties of the ridge a feature; features have a variance of 1, so that these reach from next to
# no shrinkage to next to nothing but the classes' shares.
PENALTIES = 10.0 ** np.arange(-3, 2.1, 0.5)

States = Float[np.ndarray, "texts depths poolings width"]
Rows = Float[np.ndarray, "texts width"]
Table = Float[np.ndarray, "texts classes"]


@dataclass(frozen=True, eq=False)
class StateProbe:
    """One linear map from a pooled state to the classes.

    Attributes:
        classes: In Unicode's order.
        depth: Of the state it reads.
        pooling: The mean over the input's tokens, or the prompt's last token.
        scale: Deviation of each feature over the fit's texts [width].
        temperature: T, by the fit's leave-one-out log loss.
        likeness: How far the fit's texts lie from one another.
        earlier: What a probe of each depth before it would be, of the same pooling: weights of the
            state itself, the intercept in the last row [depth, width + 1, classes]; None where the
            fit did not see all of them, or they are too large to keep.
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

    @property
    def name(self) -> str:
        """`probe@DEPTH`, as answers have it for their method."""
        return f"probe@{self.depth}"

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
) -> StateFit:
    """Fit a state probe: a ridge a class on targets of +1 and -1 (method, section 19).

    The same texts in another order give the same probe to the bit.

    Args:
        states: Of every text, by depth and pooling.
        labels: The right class of each text, at least two texts a class.
        depths: What the second axis of `states` holds; 0 and up if left out.
        poolings: What the third axis of `states` holds.

    Raises:
        InputError: Fewer than two classes, a class of one text, or states that are not finite.
    """
    classes = classes_of(labels)
    if not np.isfinite(states).all():
        raise InputError("states to fit on are finite numbers; these have NaN or infinity")
    from threadpoolctl import threadpool_limits

    order = _order(states, labels)
    x, truths = states[order], np.array([classes.index(labels[i]) for i in order])
    every = depths is None
    depths = range(x.shape[1]) if depths is None else depths
    with threadpool_limits(1):  # small products, whose bits then depend on no other thread
        candidates = [
            _fit_one(x[:, d, p], truths, len(classes), (d, p))
            for d in range(x.shape[1])
            for p in range(x.shape[2])
        ]
        best = max(candidates, key=lambda own: own.right)  # the first of equals: the shallower
        d, p = best.place
        probe = _probe(best, x[:, d, p], truths, classes, depths[d], poolings[p])
        if every and d * x.shape[-1] * len(classes) * 4 <= MOST_EARLIER:
            before = [own for own in candidates if own.place[0] < d and own.place[1] == p]
            probe = replace(probe, earlier=_earlier(before, x[:, :, p], truths, len(classes)))
    scores = np.empty_like(best.scores)
    scores[order] = best.scores
    right = np.reshape([own.right for own in candidates], x.shape[1:3])
    return StateFit(probe, scores, right)


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


@dataclass(frozen=True, eq=False)
class _Candidate:
    """The best penalty of one depth and pooling, by leave-one-out."""

    place: tuple[int, int]
    penalty: float
    scores: Table
    right: float


def _order(states: States, labels: Sequence[str]) -> Int[np.ndarray, " texts"]:
    """Places of the texts in an order that is theirs alone."""
    digests = [blake2b(np.ascontiguousarray(own).tobytes()).digest() for own in states]
    return np.array(sorted(range(len(labels)), key=lambda i: (labels[i], digests[i])))


def _standards(x: Rows) -> tuple[np.ndarray, np.ndarray]:
    """Mean and deviation of each feature; a thousandth of the largest deviation at least."""
    deviation = x.std(axis=0, dtype=np.float64)
    scale = np.maximum(deviation, deviation.max() / 1000 or 1.0)
    return x.mean(axis=0, dtype=np.float64), scale


def _targets(truths: Int[np.ndarray, " texts"], classes: int) -> Table:
    return np.asarray(2.0 * np.eye(classes)[truths] - 1.0)


def _fit_one(
    x: Rows, truths: Int[np.ndarray, " texts"], classes: int, place: tuple[int, int]
) -> _Candidate:
    """Return the leave-one-out answers of one depth and pooling at its best penalty."""
    from sklearn.linear_model import RidgeCV

    mean, scale = _standards(x)
    z, targets = (x - mean) / scale, _targets(truths, classes)
    penalties = PENALTIES * z.shape[1]
    # With a scorer its `cv_results_` are the exact leave-one-out predictions.
    ridge = RidgeCV(penalties, scoring="neg_mean_squared_error", store_cv_results=True)
    answers = ridge.fit(z, targets).cv_results_  # [texts, classes, penalties]
    errors = np.square(answers - targets[:, :, None]).mean(axis=(0, 1))
    best = int(errors.argmin())
    scores = answers[:, :, best]
    right = float((scores.argmax(axis=1) == truths).mean())
    return _Candidate(place, float(penalties[best]), scores, right)


def _ridge(
    x: Rows, truths: Int[np.ndarray, " texts"], classes: int, penalty: float
) -> tuple[np.ndarray, np.ndarray, Rows, Any]:
    """Return mean, scale and standardised features, and the ridge that is fitted to them."""
    from sklearn.linear_model import Ridge

    mean, scale = _standards(x)
    z = (x - mean) / scale
    return mean, scale, z, Ridge(penalty).fit(z, _targets(truths, classes))


def _earlier(
    before: Sequence[_Candidate],
    x: Float[np.ndarray, "texts depths width"],
    truths: Int[np.ndarray, " texts"],
    classes: int,
) -> Float[np.ndarray, "_earlier width_1 classes"]:
    """Weights of unscaled states, with the intercept as their last row, of some depths."""
    each = np.empty((len(before), x.shape[-1] + 1, classes), dtype=np.float32)
    for own, told in zip(before, each, strict=True):
        mean, scale, _, ridge = _ridge(x[:, own.place[0]], truths, classes, own.penalty)
        weights = ridge.coef_.T / scale[:, None]
        told[:-1], told[-1] = weights, ridge.intercept_ - mean @ weights
    return each


def _probe(
    best: _Candidate,
    x: Rows,
    truths: Int[np.ndarray, " texts"],
    classes: tuple[str, ...],
    depth: int,
    pooling: Pooling,
) -> StateProbe:
    mean, scale, z, ridge = _ridge(x, truths, len(classes), best.penalty)
    return StateProbe(
        classes=classes,
        depth=depth,
        pooling=pooling,
        mean=mean,
        scale=scale,
        weights=np.ascontiguousarray(ridge.coef_.T),
        intercept=ridge.intercept_,
        temperature=fit_temperature(best.scores, truths.tolist()),
        likeness=Likeness.of(z),
    )
