"""Batch calibration: subtract the mean probability of each label over many items.

It applies to many items with one label set: the mean shows which labels the model prefers whatever
the input. It hurts if one label is truly frequent, because the mean then reflects the truth; labels
show which is the case. With the frozen means of a certificate the method is a pure function of the
item. Without, it is fitted to a cell's items, or decides by the mean over the items so far
(`RunningMeans`). It needs at least 20 items of a label set.

Source: Zhou et al., 'Batch calibration' (ICLR 2024): softmax(b) minus its mean.
"""

import json
import math
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from threading import Lock

import numpy as np
from scipy.special import softmax

from lastword.errors import CertificateError
from lastword.methods.contract import Facts, ItemReadings, Method, Needs, correction_of, method
from lastword.rule.geometry import Scores
from lastword.rule.operators import Gate, Ruling, Step

NAME = "batch-calibrated"
LEAST = 20  # minimum number of items of a label set before its mean is used
MOST = 4096  # maximum number of label sets with a running mean

# Mean of softmax(b) by `label_set` [labels], in the order of the sorted texts.
Means = Mapping[str, tuple[float, ...]]


def label_set(candidates: Sequence[str]) -> str:
    """Return the digest of the candidates' texts, whatever their order."""
    text = json.dumps(sorted(candidates), ensure_ascii=False)
    return sha256(text.encode()).hexdigest()[:16]


@method(
    NAME,
    "the base's probabilities less their mean over the label set",
    "Zhou et al., ICLR 2024",
    compared="",
)
def batch_calibrated(facts: Facts, means: Means | None = None) -> Method:
    """Return softmax(b) - mean, with one mean per label set, or a running mean without means."""

    def score(evidence: ItemReadings) -> Scores | None:
        mean = (means or {}).get(label_set(evidence.candidates))
        return None if mean is None else _calibrated(evidence, np.array(mean))

    def fit(items: Iterable[ItemReadings]) -> Method:
        return batch_calibrated(facts, means_of(items))

    needs = Needs(frozenset([facts.depth]))
    if means is not None:
        return Method(NAME, needs, score)
    return Method(NAME, needs, score, rule=RunningMeans().next, fit=fit)


class RunningMeans:
    """The means of softmax(b) over the items so far, by label set.

    As a correction of a stream, an answer depends on the items before it; its gate `seen` has their
    number. The first 19 items of a label set get the base's answer. Beyond `most` label sets, the
    least recently used mean is dropped.
    """

    def __init__(self, most: float = MOST) -> None:
        self.most = most
        self._sums: OrderedDict[str, tuple[int, Scores]] = OrderedDict()
        self._lock = Lock()

    def next(self, evidence: ItemReadings) -> Step | Ruling:
        """Read depth L, then return the scores minus the mean so far, which includes this item."""
        base = evidence.trajectory.base
        if np.isnan(base).any():
            return Step(frozenset([evidence.trajectory.depth]))
        count, total = self.add(evidence)
        gates = {"seen": Gate(float(count), float(LEAST), count >= LEAST)}
        if count < LEAST:
            return Ruling("base", base, gates)
        return Ruling(NAME, _calibrated(evidence, total / count), gates)

    def add(self, evidence: ItemReadings) -> tuple[int, Scores]:
        """Count an item; return the number of items of its label set, and the sum over them."""
        name = label_set(evidence.candidates)
        p = softmax(evidence.trajectory.base)[_order(evidence.candidates)]
        with self._lock:
            count, total = self._sums.get(name, (0, 0.0))
            self._sums[name] = after = count + 1, total + p
            self._sums.move_to_end(name)
            if len(self._sums) > self.most:
                self._sums.popitem(last=False)  # the least recently used
            return after

    def means(self) -> dict[str, tuple[float, ...]]:
        """Return the means of the label sets with 20 items or more."""
        return {n: tuple((s / m).tolist()) for n, (m, s) in self._sums.items() if m >= LEAST}


def means_of(items: Iterable[ItemReadings]) -> dict[str, tuple[float, ...]]:
    """Return the means over these items, for label sets with 20 or more."""
    running = RunningMeans(most=math.inf)
    for evidence in items:
        running.add(evidence)
    return running.means()


def certified(name: str, means: Means, requested: Method, facts: Facts) -> Method:
    """Return the correction of a certificate.

    Args:
        name: The certificate's method.
        means: The certificate's frozen means by label set; {} if the method has none.
        requested: The correction that decides without a certificate.
        facts: Facts of the model.

    Raises:
        CertificateError: `requested` is another method than the certificate's.
    """
    if requested.name not in ("trace", name):
        raise CertificateError(
            f"the certificate is for overrides by {name}, not for those of {requested.name}: leave "
            "the certificate or the correction out"
        )
    if not means:
        return requested if requested.name == name else correction_of(name, facts)
    if name != NAME:
        raise CertificateError(f"the certificate has means, and {name} uses none")
    return batch_calibrated(facts, means)


def _calibrated(evidence: ItemReadings, mean: Scores) -> Scores:
    """Return softmax(b) - mean; the mean is in the order of the sorted texts."""
    expected = np.empty(len(mean))
    expected[_order(evidence.candidates)] = mean
    u: Scores = softmax(evidence.trajectory.base) - expected
    return u


def _order(candidates: Sequence[str]) -> list[int]:
    return sorted(range(len(candidates)), key=candidates.__getitem__)
