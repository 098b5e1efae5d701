"""The check at load: is what the worker reads what vLLM itself says, and what transformers says.

At depth L a few random texts are read twice, by the worker and as vLLM's own log-probabilities of a
prompt. At every depth they are read by the same checkpoint in this process, where that is small.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

from lastword.engines.vllm.remote import RemoteBackbone
from lastword.errors import UnsupportedModelError
from lastword.model.backbone import Backbone, evaluating
from lastword.model.check import random_texts, rounding
from lastword.model.readout import Readout
from lastword.text.forest import Branch

LogProbs = Float[np.ndarray, "depths targets"]


@dataclass(frozen=True)
class Checked:
    """What the check saw; differences are in nats of log-probability.

    Attributes:
        readout: Largest difference between the worker at depth L and vLLM's own log-probabilities.
        depths: Largest difference at any depth from the same checkpoint under transformers; nan
            where that was not loaded.
    """

    readout: float
    depths: float = math.nan


def check(backbone: RemoteBackbone, readout: Readout, kind: str, reference: Any = None) -> Checked:
    """Compare, and refuse a model that is not read right.

    Args:
        backbone: The model in the side.
        readout: Its head.
        kind: Name of vLLM's class, which is refused by it.
        reference: The same checkpoint as a transformers model; None where there is none.

    Raises:
        UnsupportedModelError: A score differs by more than the dtype rounds.
    """
    branches = random_texts(readout.vocabulary)
    found = _scores(backbone, readout, branches)
    own = _own_scores(backbone, branches)
    allowed = 2 * rounding(backbone.dtype, own)
    differs = {"vLLM's own log-probabilities": np.abs(found[backbone.depth] - own).max()}
    if reference is not None:
        plain = Backbone(reference)
        with plain.lock, evaluating(reference):
            expected = _scores(plain, Readout(reference, plain.parts), branches)
        differs["transformers at some depth"] = np.abs(found - expected).max()
    for what, difference in differs.items():
        if not difference <= allowed:
            raise UnsupportedModelError(
                f"lastword cannot read vLLM's {kind}: its score of a token is {difference:.2g} "
                f"nats (allowed {allowed:.2g}) from {what}; leave --engine vllm out"
            )
    return Checked(*map(float, differs.values()))


def _scores(backbone: Backbone, readout: Readout, branches: list[Branch]) -> LogProbs:
    depths = range(backbone.depth + 1)
    states = backbone.states(branches, depths)
    reading = readout.read(states, np.arange(len(states.reads.token)), depths)
    return np.stack([reading.log_probs[depth] for depth in depths])


def _own_scores(backbone: RemoteBackbone, branches: list[Branch]) -> Float[np.ndarray, " targets"]:
    told, _ = backbone.process.call("own", sequences=[[*b.tokens] for b in branches])
    pairs = zip(told["log_probs"], branches, strict=True)
    return np.concatenate([np.array(known[b.boundary - 1 :]) for known, b in pairs])
