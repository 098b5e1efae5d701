"""Baselines: what every correction is held against, most of them single readings of S.

`base-sum` is what lm-evaluation-harness calls accuracy and favours short answers, `base-mean` is
TRACE's own b, `base-bytes` divides the sum by the candidate's UTF-8 bytes and does not depend on
the tokenizer's cut. An earlier depth (the logit lens) fails wherever late layers add knowledge; the
mean over the interior window, where it agrees on wording. `decisive-only` is TRACE's component
without its gates: an early layer may be sharp about the wording and wrong (Eqs. 6-7). Two never
read the question: where one of them comes close, the benchmark can be answered without it.
"""

from dataclasses import dataclass

import numpy as np
from scipy.special import log_softmax

from lastword.errors import InputError
from lastword.methods.contract import Aggregation, Evidence, Facts, Needs
from lastword.rule.geometry import Scores, decisive_layer
from lastword.theta import depth_of


@dataclass(frozen=True)
class Depths:
    """Mean of S over some depths, aggregated.

    Attributes:
        depths: In 0..L.
        aggregation: Sum, mean or sum over bytes.
    """

    depths: tuple[int, ...]
    aggregation: Aggregation = "mean"

    @property
    def needs(self) -> Needs:
        """Those depths."""
        return Needs(frozenset(self.depths))

    def scores(self, evidence: Evidence) -> Scores:
        """Return log-probabilities in nats: of a token, a candidate, or a byte."""
        means: Scores = evidence.trajectory.scores[:, list(self.depths)].mean(axis=1)
        return evidence.aggregate(means, self.aggregation)


def own_answer(facts: Facts, aggregation: Aggregation = "mean") -> Depths:
    """Return the model's own answer: depth L."""
    return Depths((facts.depth,), aggregation)


def early_exit(facts: Facts, fraction: float) -> Depths:
    """Return the answer of depth min(L, ceil(fraction L)).

    Raises:
        InputError: The fraction lies outside [0, 1].
    """
    if not 0 <= fraction <= 1:
        raise InputError(f"early-exit takes a fraction of depth in [0, 1], not {fraction}")
    return Depths((depth_of(fraction, facts.depth),))


def self_consistent(facts: Facts) -> Depths:
    """Return the vote of the interior window, l_minus <= l < l_plus of Eq. 3."""
    return Depths(tuple(facts.theta.window(facts.depth)))


@dataclass(frozen=True)
class DecisiveOnly:
    """q = log pi at l*, for every item.

    Attributes:
        facts: Of the model.
    """

    facts: Facts
    aggregation: Aggregation = "mean"

    @property
    def needs(self) -> Needs:
        """Every depth from 1 on."""
        return Needs(frozenset(range(1, self.facts.depth + 1)))

    def scores(self, evidence: Evidence) -> Scores:
        """Return candidate-restricted log-probabilities at the decisive layer."""
        S = evidence.trajectory.scores
        q: Scores = log_softmax(S[:, decisive_layer(S, self.facts.theta.eps_H)])
        return q


@dataclass(frozen=True)
class QuestionBlind:
    """b after the blind prompt: what the candidates' wording alone gives away.

    Attributes:
        facts: Of the model.
    """

    facts: Facts
    aggregation: Aggregation = "mean"

    @property
    def needs(self) -> Needs:
        """Depth L after the blind prompt."""
        return Needs(blind=frozenset([self.facts.depth]))

    def scores(self, evidence: Evidence) -> Scores | None:
        """Return the mean log-probability a token; None for an item without a blind prompt."""
        return None if evidence.blind is None else evidence.blind.base


@dataclass(frozen=True)
class LengthOnly:
    """Minus the number of characters, which are the same for every model; its facts are not read.

    Attributes:
        facts: Of the model.
    """

    facts: Facts
    aggregation: Aggregation = "mean"

    @property
    def needs(self) -> Needs:
        """Nothing."""
        return Needs()

    def scores(self, evidence: Evidence) -> Scores:
        """Return minus characters; its softmax is no probability of anything."""
        return np.array([-float(len(text)) for text in evidence.candidates])
