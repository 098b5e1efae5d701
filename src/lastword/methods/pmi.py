"""Pointwise mutual information: the support that the question adds to a candidate.

It applies if the candidates are fixed labels (topics, tools, options) and the model prefers some of
them whatever the question. It needs a blind prompt. LAMBDA between 0 and 1 keeps a part of that
preference. No LAMBDA is best for every task: choose it with labels of your task.

Source: Holtzman et al., 'Surface form competition' (EMNLP 2021), with sums at LAMBDA = 1 (`dcpmi`).
Context-aware decoding with alpha is LAMBDA = alpha / (1 + alpha), except for its normaliser.
"""

import math

from lastword.errors import InputError
from lastword.methods.contract import Aggregation, Facts, ItemReadings, Method, Needs, method
from lastword.rule.geometry import Scores

_SOURCE = "Holtzman et al., EMNLP 2021"


@method(
    "pmi",
    "the base less LAMBDA times the base without the question",
    _SOURCE,
    number="LAMBDA",
    aggregates=True,
    compared="",
)
def pmi(facts: Facts, weight: float, aggregation: Aggregation = "mean") -> Method:
    """Return b - LAMBDA q, with q the base scores after the blind prompt, in nats.

    Raises:
        InputError: LAMBDA is negative or not a number.
    """
    if not 0 <= weight < math.inf:
        raise InputError(f"pmi takes a LAMBDA of 0 or more, not {weight}")

    def score(evidence: ItemReadings) -> Scores | None:
        if evidence.blind is None:
            return None
        b = evidence.aggregate(evidence.trajectory.base, aggregation)
        q = evidence.aggregate(evidence.blind.base, aggregation, blind=True)
        return b - weight * q

    last = frozenset([facts.depth])
    return Method("pmi", Needs(last, blind=last), score, aggregation)


@method("dcpmi", "pmi@1 of sums, as released", _SOURCE, compared="")
def dcpmi(facts: Facts) -> Method:
    """Return pmi of sums at LAMBDA = 1."""
    return pmi(facts, 1.0, "sum")
