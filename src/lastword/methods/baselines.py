"""Baselines that every correction is compared with, mostly single readings of S.

`base-sum` gives the accuracy of lm-evaluation-harness and favours short answers. `base-mean` is
TRACE's b. `base-bytes` divides the sum by the candidate's UTF-8 bytes and so does not depend on the
tokenizer. An earlier depth (the logit lens) fails if late layers add knowledge, and the mean over
the interior window if these layers agree on a wording. `decisive-only` is TRACE's component without
its gates: an early layer may be sharp about the wording and wrong (Eqs. 6-7). Two baselines never
read the question: if one of them comes close, the benchmark can be answered without it.
"""

from collections.abc import Sequence

import numpy as np
from scipy.special import log_softmax

from lastword.errors import InputError
from lastword.methods.contract import Aggregation, Facts, ItemReadings, Method, Needs, method
from lastword.rule.geometry import Scores, decisive_layer
from lastword.rule.theta import depth_of

_BASELINE = "a baseline"


def _base(aggregation: Aggregation, summary: str, user: str) -> None:
    name = f"base-{aggregation}"

    @method(name, summary, f"the model's answer: {user}")
    def base(facts: Facts) -> Method:
        return _mean_over(name, [facts.depth], aggregation)


_base("mean", "mean log-probability per token", "TRACE's b")
_base("sum", "summed log-probability", "lm-evaluation-harness, DoLa")
_base("bytes", "summed log-probability over UTF-8 bytes", "lm-evaluation-harness")


@method(
    "early-exit",
    "one earlier depth",
    _BASELINE,
    number="a fraction of depth",
    aggregates=True,
    compared="early-exit@0.75",
)
def early_exit(facts: Facts, fraction: float, aggregation: Aggregation = "mean") -> Method:
    """Return the scores at depth min(L, ceil(fraction L)).

    Raises:
        InputError: The fraction is outside [0, 1].
    """
    if not 0 <= fraction <= 1:
        raise InputError(f"early-exit takes a fraction of depth in [0, 1], not {fraction}")
    return _mean_over("early-exit", [depth_of(fraction, facts.depth)], aggregation)


@method("self-consistent-depth", "mean over the interior window", _BASELINE, aggregates=True)
def self_consistent(facts: Facts, aggregation: Aggregation = "mean") -> Method:
    """Return the mean of S over the interior window, l_minus <= l < l_plus (Eq. 3)."""
    return _mean_over("self-consistent-depth", facts.theta.window(facts.depth), aggregation)


def _mean_over(name: str, depths: Sequence[int], aggregation: Aggregation) -> Method:
    """Return the mean of S over some depths: log-probabilities in nats."""

    def score(evidence: ItemReadings) -> Scores:
        means = evidence.trajectory.scores[:, [*depths]].mean(axis=1)
        return evidence.aggregate(means, aggregation)

    return Method(name, Needs(frozenset(depths)), score, aggregation)


@method("decisive-only", "the decisive layer, ungated", "a part of TRACE")
def decisive_only(facts: Facts) -> Method:
    """Return q = log pi at l*, for every item."""

    def score(evidence: ItemReadings) -> Scores:
        S = evidence.trajectory.scores
        scores: Scores = log_softmax(S[:, decisive_layer(S, facts.theta.eps_H)])
        return scores

    return Method("decisive-only", Needs(frozenset(range(1, facts.depth + 1))), score)


@method("question-blind", "the base without the question", _BASELINE)
def question_blind(facts: Facts) -> Method:
    """Return b after the blind prompt, which depends only on the candidates' wording."""
    needs = Needs(blind=frozenset([facts.depth]))
    return Method("question-blind", needs, lambda e: None if e.blind is None else e.blind.base)


@method("length-only", "the fewest characters", _BASELINE)
def length_only(facts: Facts) -> Method:
    """Return the negative number of characters; the softmax of these has no meaning."""
    return Method(
        "length-only", Needs(), lambda e: np.array([-float(len(text)) for text in e.candidates])
    )
