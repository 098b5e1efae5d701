"""Contextual calibration: divide by the probabilities that content-free inputs give.

Applies if the candidates are fixed labels, and the text around the input makes the model prefer
some of them. Needs content-free prompts: the item's prompt with "N/A", nothing and "[MASK]" in
place of the input. It fails if such inputs are not valid inputs of the task.

Source: Zhao et al., 'Calibrate before use' (ICML 2021). The release divides by the mean of the
probabilities as they are, in which the input under which labels are likeliest counts most; here
each input's are first normalised over the candidates (method, section 16). With one input the two
are one.
"""

import numpy as np
from scipy.special import log_softmax, logsumexp

from lastword.methods.contract import Evidence, Facts, Needs
from lastword.methods.plain import Plain
from lastword.rule.geometry import Scores


def contextual(facts: Facts, *, released: bool = False) -> Plain:
    """Return log softmax(b) - log mean over content-free inputs of softmax(b after it), in nats."""

    def score(evidence: Evidence) -> Scores | None:
        if (b := evidence.content_free) is None:
            return None
        logs = b if released else log_softmax(b, axis=1)
        prior = log_softmax(logsumexp(logs, axis=0))
        u: Scores = log_softmax(evidence.trajectory.base) - np.asarray(prior)
        return u

    return Plain(Needs(frozenset([facts.depth]), content_free=True), score)
