"""Self-taught probes: the model's own answers are the labels, and nobody has to write one.

Batch calibration takes off what the model says on average. The surest half of what it then answers
teaches a state probe, which answers the rest alike, and often better (method, section 19).
"""

from collections.abc import Sequence

import numpy as np
from scipy.special import softmax

from lastword.methods import batch_calibrated
from lastword.probes.stacked import Scores
from lastword.probes.state import LEAST, StateProbe, States, fit_state


def teach(states: States, base: Scores, options: Sequence[str]) -> StateProbe | None:
    """Fit a state probe to the model's own batch-calibrated answers.

    Returns:
        None where the texts are fewer than batch calibration takes, or teach no two classes.
    """
    if len(base) < batch_calibrated.LEAST:
        return None
    mean = softmax(base, axis=1).mean(axis=0)
    u = np.array([batch_calibrated.calibrated(own, mean, log=False) for own in base])
    taught, kept = u.argmax(axis=1), list[int]()
    for place in np.unique(taught):
        own = np.flatnonzero(taught == place)
        second, first = np.partition(u[own], -2, axis=1)[:, -2:].T
        sure = own[np.argsort(second - first, kind="stable")][: (len(own) + 1) // 2]
        kept += sure.tolist() if len(sure) >= LEAST else []
    if len(np.unique(taught[kept])) < 2:
        return None
    return fit_state(states[kept], [options[i] for i in taught[kept]]).probe
