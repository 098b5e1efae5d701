"""The check at load: which road a model takes, and whether its readout is the model's own.

A few short random texts run as the model itself would run them, then packed. Where the packed
scores differ by more than the plain ones differ among themselves, the model takes the plain road;
where the readout at depth L is not the model's own logits, it is refused (DESIGN 2).
"""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from torch.nn import functional as F

from tracelm.backbone import Backbone, Road, shrunk_windows
from tracelm.errors import UnsupportedModelError
from tracelm.forest import Branch
from tracelm.readout import Readout, read

ROADS: tuple[Road, ...] = ("packed", "masked")
SHRUNK = 4  # well below the length of the check's texts

Scores = Float[np.ndarray, " targets"]


@dataclass(frozen=True)
class Checked:
    """What the check saw; all differences are in nats of log-probability.

    Attributes:
        road: The road that the model takes.
        noise: Largest difference between the plain road batched and one text at a time.
        packed: Largest difference between the packed road and the plain one; nan where it raised.
        readout: Largest difference between the readout at depth L and the model's own logits.
        windowed: Whether the packed road was also checked past a shrunk sliding window.
    """

    road: Road
    noise: float
    packed: float
    readout: float
    windowed: bool


def check(backbone: Backbone, readout: Readout) -> Checked:
    """Run the check and set the backbone's road.

    Raises:
        UnsupportedModelError: The readout at depth L does not give the model's own logits, or the
            model is not causal.
    """
    branches = _texts(readout.vocabulary)
    backbone.road = "plain"
    alone = np.concatenate([_scores(backbone, readout, [b]) for b in branches])
    noise = _difference(_scores(backbone, readout, branches), alone)
    own = np.concatenate([_own_scores(backbone, b) for b in branches])
    allowed = 4 * noise + _rounding(backbone, own)
    off = _difference(alone, own)
    if not off <= allowed:
        raise UnsupportedModelError(
            f"the readout of {type(backbone.model).__name__} at its last depth is {off:.2g} nats "
            f"off the model's own logits (allowed {allowed:.2g}); tracelm cannot read this model"
        )
    ahead = _difference(_first_scores(backbone, branches), own[_firsts(branches)])
    if not ahead <= allowed:
        raise UnsupportedModelError(
            f"{type(backbone.model).__name__} scores a token by what comes after it ({ahead:.2g} "
            f"nats, allowed {allowed:.2g}); tracelm reads models that look back alone"
        )
    packed, windowed = np.nan, False
    for road in ROADS:
        try:
            packed, windowed = _packed_difference(backbone, readout, branches, alone, road)
        except Exception:  # noqa: BLE001 - whatever packing raises, the model is not packable so
            continue
        if packed <= allowed:
            backbone.road = road
            break
    else:
        backbone.road = "plain"
    return Checked(backbone.road, noise, packed, off, windowed)


def _packed_difference(
    backbone: Backbone, readout: Readout, branches: list[Branch], alone: Scores, road: Road
) -> tuple[float, bool]:
    backbone.road = road
    difference = _difference(_scores(backbone, readout, branches), alone)
    with shrunk_windows(backbone, SHRUNK) as windowed:
        if windowed:
            past = _scores(backbone, readout, branches)
            backbone.road = "plain"
            difference = max(difference, _difference(past, _scores(backbone, readout, branches)))
    return difference, windowed


def _scores(backbone: Backbone, readout: Readout, branches: list[Branch]) -> Scores:
    states = backbone.states(branches, [backbone.depth])
    every = np.arange(len(states.reads.token))
    return read(readout, states, every, [backbone.depth]).log_probs[backbone.depth]


@torch.inference_mode()
def _own_scores(backbone: Backbone, branch: Branch) -> Scores:
    """The model's own log-probabilities of the branch's predicted tokens."""
    ids = torch.tensor([branch.fed], device=backbone.device)
    logits = backbone.model(input_ids=ids, use_cache=False).logits[0, branch.boundary - 1 :]
    tokens = torch.tensor(branch.tokens[branch.boundary :], device=logits.device)
    log_probs = F.log_softmax(logits.float(), dim=-1).gather(1, tokens[:, None])
    scores: Scores = log_probs[:, 0].cpu().numpy()
    return scores


def _first_scores(backbone: Backbone, branches: list[Branch]) -> Scores:
    """The model's own log-probabilities of first predicted tokens, with nothing fed past them."""
    firsts = [Branch(b.tokens[: b.boundary + 1], b.boundary) for b in branches]
    return np.concatenate([_own_scores(backbone, b) for b in firsts])


def _firsts(branches: list[Branch]) -> Int[np.ndarray, " branches"]:
    """Place of each branch's first predicted token among all of them."""
    counts = [len(b.tokens) - b.boundary for b in branches]
    return np.cumsum([0, *counts[:-1]])


def _texts(vocabulary: int) -> list[Branch]:
    """Three prompts with a common beginning, three candidates of one to three tokens each."""
    draw = np.random.default_rng(0)

    def tokens(count: int) -> tuple[int, ...]:
        return tuple(int(t) for t in draw.integers(vocabulary, size=count))

    preamble = tokens(6)
    prompts = [preamble + tokens(length) for length in (2, 4, 5)]
    return [Branch(p + tokens(1 + i), len(p)) for p in prompts for i in range(3)]


def _rounding(backbone: Backbone, scores: Scores) -> float:
    """What the dtype alone may move a log-probability by."""
    dtype = backbone.model.dtype
    steps = 64 if dtype in (torch.float32, torch.float64) else 4
    return steps * torch.finfo(dtype).eps * max(1.0, float(np.abs(scores).max()))


def _difference(a: Scores, b: Scores) -> float:
    return float(np.abs(a - b).max())
