"""Baselines that every correction is compared with, mostly single readings of S.

`base-sum` gives the accuracy of lm-evaluation-harness and favours short answers. `base-mean` is
TRACE's b. `base-bytes` divides the sum by the candidate's UTF-8 bytes and so does not depend on the
tokenizer. An earlier depth (the logit lens) fails if late layers add knowledge, and the mean over
the interior window if these layers agree on a wording. `decisive-only` is TRACE's component without
its gates: an early layer may be sharp about the wording and wrong (Eqs. 6-7). Two baselines never
read the question: if one of them comes close, the benchmark can be answered without it.
"""

import numpy as np
from scipy.special import log_softmax

from lastword.errors import InputError
from lastword.methods.by_function import Plain
from lastword.methods.contract import Aggregation, Facts, Needs
from lastword.rule.geometry import decisive_layer
from lastword.rule.theta import depth_of


def model_answer(facts: Facts, aggregation: Aggregation = "mean") -> Plain:
    """Return the scores at depth L, the model's answer."""
    return _mean_over([facts.depth], aggregation)


def early_exit(facts: Facts, fraction: float) -> Plain:
    """Return the scores at depth `exit_depth(facts, fraction)`."""
    return _mean_over([exit_depth(facts, fraction)])


def exit_depth(facts: Facts, fraction: float) -> int:
    """Return the depth min(L, ceil(fraction L)).

    Raises:
        InputError: The fraction is outside [0, 1].
    """
    if not 0 <= fraction <= 1:
        raise InputError(f"early-exit takes a fraction of depth in [0, 1], not {fraction}")
    return depth_of(fraction, facts.depth)


def self_consistent(facts: Facts) -> Plain:
    """Return the mean of S over the interior window, l_minus <= l < l_plus (Eq. 3)."""
    return _mean_over(list(facts.theta.window(facts.depth)))


def _mean_over(depths: list[int], aggregation: Aggregation = "mean") -> Plain:
    """Return the mean of S over some depths: log-probabilities in nats."""
    needs = Needs(frozenset(depths))
    return Plain(needs, lambda e: e.trajectory.scores[:, depths].mean(axis=1), aggregation)


def decisive_only(facts: Facts) -> Plain:
    """Return q = log pi at l*, for every item."""

    def q(S: np.ndarray) -> np.ndarray:
        scores: np.ndarray = log_softmax(S[:, decisive_layer(S, facts.theta.eps_H)])
        return scores

    needs = Needs(frozenset(range(1, facts.depth + 1)))
    return Plain(needs, lambda evidence: q(evidence.trajectory.scores))


def question_blind(facts: Facts) -> Plain:
    """Return b after the blind prompt, which depends only on the candidates' wording."""
    needs = Needs(blind=frozenset([facts.depth]))
    return Plain(needs, lambda evidence: None if evidence.blind is None else evidence.blind.base)


def length_only(facts: Facts) -> Plain:
    """Return the negative number of characters; the softmax of these has no meaning."""
    return Plain(Needs(), lambda e: np.array([-float(len(text)) for text in e.candidates]))
