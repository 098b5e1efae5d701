"""Contextual calibration: divide by the probabilities that content-free inputs give.

It applies if the candidates are fixed labels, and the text around the input makes the model prefer
some of them. It needs content-free prompts: the item's prompt with "N/A", nothing and "[MASK]"
instead of the input. It fails if such inputs are not valid inputs of the task.

Source: Zhao et al., 'Calibrate before use' (ICML 2021). The release divides by the mean of the raw
probabilities, so that the input after which labels are most probable counts most. Here each input's
probabilities are first normalised over the candidates (docs/methods.md). With one input both are
equal.
"""

import numpy as np
from scipy.special import log_softmax, logsumexp

from lastword.methods.contract import Facts, ItemReadings, Method, Needs, method
from lastword.rule.geometry import Scores


@method(
    "contextual",
    "the base over its mean on inputs that say nothing",
    "Zhao et al., ICML 2021",
    compared="",
)
def contextual(facts: Facts) -> Method:
    """Return log softmax(b) - log mean over content-free inputs of softmax(b after it), in nats."""

    def score(evidence: ItemReadings) -> Scores | None:
        if (b := evidence.content_free) is None:
            return None
        prior = log_softmax(logsumexp(log_softmax(b, axis=1), axis=0))
        u: Scores = log_softmax(evidence.trajectory.base) - np.asarray(prior)
        return u

    return Method("contextual", Needs(frozenset([facts.depth]), content_free=True), score)
