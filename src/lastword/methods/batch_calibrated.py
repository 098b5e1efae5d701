"""Batch calibration: subtract, or divide by, the mean probability of each label over many items.

It applies to many items with one label set: the mean shows which labels the model prefers whatever
the input. It hurts if one label is truly frequent, because the mean then reflects the truth; labels
show which is the case. With a frozen mean the method is a pure function of the item. Without one,
the mean is over the items so far (`Running`). It needs at least 20 items of a label set.

Source: Zhou et al., 'Batch calibration' (ICLR 2024): softmax(b) minus its mean. The variant
`batch-calibrated-log` divides by the mean, as contextual calibration does.
"""

import json
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from threading import Lock
from typing import Literal

import numpy as np
from scipy.special import log_softmax, softmax

from lastword.methods.contract import Aggregation, Evidence, Facts, Needs
from lastword.rule import operators
from lastword.rule.answer import Gate
from lastword.rule.geometry import Scores
from lastword.rule.operators import Step
from lastword.rule.router import Ruling

LEAST = 20  # minimum number of items of a label set before its mean is used
MOST = 4096  # maximum number of label sets with a stored running mean

Means = Mapping[str, tuple[float, ...]]


def label_set(candidates: Sequence[str]) -> str:
    """Return the digest of the candidates' texts, whatever their order."""
    text = json.dumps(sorted(candidates), ensure_ascii=False)
    return sha256(text.encode()).hexdigest()[:16]


@dataclass(frozen=True)
class BatchCalibrated:
    """softmax(b) - mean, or log softmax(b) - log mean, with one mean per label set.

    Attributes:
        log: True to divide by the mean instead of subtracting it.
        means: Mean of softmax(b) by `label_set` [labels], in the order of the sorted texts.
    """

    facts: Facts
    log: bool = False
    means: Means = field(default_factory=dict)
    aggregation: Aggregation = "mean"

    @property
    def needs(self) -> Needs:
        """Return depth L."""
        return Needs(frozenset([self.facts.depth]))

    def scores(self, evidence: Evidence) -> Scores | None:
        """Return calibrated scores, or None for a label set without a mean."""
        mean = self.means.get(label_set(evidence.candidates))
        if mean is None:
            return None
        expected = np.empty(len(mean))
        expected[_order(evidence.candidates)] = mean
        return calibrated(evidence.trajectory.base, expected, log=self.log)

    def fitted(self, items: Iterable[Evidence]) -> "BatchCalibrated":
        """Return the method with the means over these items, for label sets with 20 or more."""
        sums: dict[str, np.ndarray] = {}
        counts: dict[str, int] = {}
        for evidence in items:
            name, p = label_set(evidence.candidates), softmax(evidence.trajectory.base)
            sums[name] = sums.get(name, 0.0) + p[_order(evidence.candidates)]
            counts[name] = counts.get(name, 0) + 1
        ripe = {name: s / counts[name] for name, s in sums.items() if counts[name] >= LEAST}
        means = {name: tuple(mean.tolist()) for name, mean in ripe.items()}
        return replace(self, means=means)


def calibrated(b: Scores, mean: Scores, *, log: bool) -> Scores:
    """Return softmax(b) - mean, or log softmax(b) - log mean in nats."""
    u: Scores = log_softmax(b) - np.log(mean) if log else softmax(b) - mean
    return u


class Running:
    """Batch calibration of a stream: the mean is over a label set's items so far.

    An answer depends on the items before it; its gate `seen` has their number. The first 19 items
    of a label set get the base's answer. Beyond `most` label sets, the least recently used mean is
    dropped.

    Args:
        most: Maximum number of label sets with a stored mean.
    """

    learns: Literal[True] = True

    def __init__(self, name: str, facts: Facts, *, log: bool = False, most: int = MOST) -> None:
        self.name, self.facts, self.log, self.most = name, facts, log, most
        self._sums: OrderedDict[str, tuple[int, Scores]] = OrderedDict()
        self._lock = Lock()

    @property
    def needs(self) -> Needs:
        """Return depth L."""
        return Needs(frozenset([self.facts.depth]))

    def next(self, evidence: Evidence) -> Step | Ruling:
        """Read depth L, then return the scores minus the mean so far, which includes this item."""
        base = evidence.trajectory.base
        if np.isnan(base).any():
            return Step(self.needs.depths)
        order = _order(evidence.candidates)
        count, total = self._count(label_set(evidence.candidates), softmax(base)[order])
        gates = {"seen": Gate(float(count), float(LEAST), count >= LEAST)}
        if count < LEAST:
            return Ruling("scalar", np.nan, operators.OperatorScores("base", base, gates))
        mean = np.empty(len(order))
        mean[order] = total / count
        scores = calibrated(base, mean, log=self.log)
        return Ruling("scalar", np.nan, operators.OperatorScores(self.name, scores, gates))

    def _count(self, name: str, p: Scores) -> tuple[int, Scores]:
        with self._lock:
            # Removed and added again at the end, so that the first is the least recently used.
            count, before = self._sums.pop(name, (0, np.zeros(len(p))))
            self._sums[name] = after = count + 1, before + p
            while len(self._sums) > self.most:
                self._sums.popitem(last=False)
            return after


def _order(candidates: Sequence[str]) -> list[int]:
    """Return the indices of the candidates in the order of their texts."""
    return sorted(range(len(candidates)), key=candidates.__getitem__)
