"""Batch calibration: subtract the mean probability of each label over many items.

It applies to many items with one label set: the mean shows which labels the model prefers whatever
the input. It hurts if one label is truly frequent, because the mean then reflects the truth; labels
show which is the case. With the frozen means of a certificate the method is a pure function of the
item. Without, it is fitted to a cell's items, or decides by the mean over the items so far
(`Running`). It needs at least 20 items of a label set.

Source: Zhou et al., 'Batch calibration' (ICLR 2024): softmax(b) minus its mean.
"""

import json
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from threading import Lock

import numpy as np
from scipy.special import softmax

from lastword.errors import CertificateError
from lastword.methods.contract import Evidence, Facts, Method, Needs
from lastword.methods.names import correction_of, method
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

    def score(evidence: Evidence) -> Scores | None:
        mean = (means or {}).get(label_set(evidence.candidates))
        return None if mean is None else _calibrated(evidence, np.array(mean))

    def fit(items: Iterable[Evidence]) -> Method:
        return batch_calibrated(facts, means_of(items))

    needs = Needs(frozenset([facts.depth]))
    if means is not None:
        return Method(NAME, needs, score)
    return Method(NAME, needs, score, rule=Running(needs.depths).next, fit=fit)


class Running:
    """Batch calibration of a stream: the mean is over a label set's items so far.

    An answer depends on the items before it; its gate `seen` has their number. The first 19 items
    of a label set get the base's answer. Beyond `most` label sets, the least recently used mean is
    dropped.
    """

    def __init__(self, depths: frozenset[int], most: int = MOST) -> None:
        self.depths, self.most = depths, most
        self._sums: OrderedDict[str, tuple[int, Scores]] = OrderedDict()
        self._lock = Lock()

    def next(self, evidence: Evidence) -> Step | Ruling:
        """Read depth L, then return the scores minus the mean so far, which includes this item."""
        base = evidence.trajectory.base
        if np.isnan(base).any():
            return Step(self.depths)
        p = softmax(base)[_order(evidence.candidates)]
        count, total = self._count(label_set(evidence.candidates), p)
        gates = {"seen": Gate(float(count), float(LEAST), count >= LEAST)}
        if count < LEAST:
            return Ruling("base", base, gates)
        return Ruling(NAME, _calibrated(evidence, total / count), gates)

    def _count(self, name: str, p: Scores) -> tuple[int, Scores]:
        with self._lock:
            count, total = self._sums.get(name, (0, 0.0))
            self._sums[name] = after = count + 1, total + p
            self._sums.move_to_end(name)
            if len(self._sums) > self.most:
                self._sums.popitem(last=False)  # the least recently used
            return after


def means_of(items: Iterable[Evidence]) -> dict[str, tuple[float, ...]]:
    """Return the means over these items, for label sets with 20 or more."""
    sums: dict[str, Scores] = {}
    counts: dict[str, int] = {}
    for evidence in items:
        name, p = label_set(evidence.candidates), softmax(evidence.trajectory.base)
        sums[name] = sums.get(name, 0.0) + p[_order(evidence.candidates)]
        counts[name] = counts.get(name, 0) + 1
    return {n: tuple((s / counts[n]).tolist()) for n, s in sums.items() if counts[n] >= LEAST}


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


def _calibrated(evidence: Evidence, mean: Scores) -> Scores:
    """Return softmax(b) - mean; the mean is in the order of the sorted texts."""
    expected = np.empty(len(mean))
    expected[_order(evidence.candidates)] = mean
    u: Scores = softmax(evidence.trajectory.base) - expected
    return u


def _order(candidates: Sequence[str]) -> list[int]:
    """Return the indices of the candidates in the order of their texts."""
    return sorted(range(len(candidates)), key=candidates.__getitem__)
