"""The check at load that the worker's scores agree with those of vLLM and of transformers.

The scores of a few random texts at depth L are compared with vLLM's log-probabilities of a prompt.
For small checkpoints, the scores at every depth are compared with transformers in this process.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float
from transformers import PreTrainedModel

from lastword.errors import UnsupportedModelError
from lastword.model.backbone import Backbone, evaluating
from lastword.model.backend import MOST_BATCH_TOKENS, Profile
from lastword.model.check import random_texts, rounding
from lastword.model.reading import Reading, States
from lastword.model.readout import Readout
from lastword.text.branch import Branch

LogProbs = Float[np.ndarray, "depths targets"]


@dataclass(frozen=True)
class VllmCheck:
    """The results of the check; differences of log-probabilities in nats.

    Attributes:
        readout: Largest difference between the worker at depth L and vLLM's log-probabilities.
        depths: Largest difference at any depth from the same checkpoint in transformers; nan if
            that was not loaded.
    """

    readout: float
    depths: float = math.nan


def check(side: Any, kind: str, reference: PreTrainedModel | None = None) -> VllmCheck:
    """Compare the worker's scores with references, and refuse a model that differs.

    Args:
        side: The model in the side, a `backend.Vllm`.
        kind: Name of vLLM's class, for the error message.
        reference: The same checkpoint as a transformers model; None if there is none.

    Raises:
        UnsupportedModelError: A score differs by more than the rounding of the dtype.
    """
    profile: Profile = side.profile
    branches, depths = random_texts(profile.vocabulary), range(profile.depth + 1)
    scores = _scores(side.states, side.read, branches, depths)
    from_vllm = side.vllm_scores(branches)
    tolerance = 2 * rounding(profile.dtype, from_vllm)
    differs = {"vLLM's log-probabilities": np.abs(scores[profile.depth] - from_vllm).max()}
    if reference is not None:
        plain = Backbone(reference)
        with plain.lock, evaluating(reference):
            readout = Readout(reference, plain.parts)
            expected = _scores(plain.states, readout.read, branches, depths)
        differs["transformers at some depth"] = np.abs(scores - expected).max()
    for what, difference in differs.items():
        if not difference <= tolerance:
            raise UnsupportedModelError(
                f"lastword cannot read vLLM's {kind}: its score of a token is {difference:.2g} "
                f"nats (allowed {tolerance:.2g}) from {what}; leave --engine vllm out"
            )
    return VllmCheck(*map(float, differs.values()))


def _scores(
    compute: Callable[..., States],
    read: Callable[..., Reading],
    branches: Sequence[Branch],
    depths: Sequence[int],
) -> LogProbs:
    states = compute(branches, depths, MOST_BATCH_TOKENS)
    reading = read(states, np.arange(len(states.reads.token)), depths)
    return np.stack([reading.log_probs[depth] for depth in depths])
