"""T, the trajectory scorer: a second reading of the candidates, token by token across depths.

A token's logit at the last depth is mixed with its mean over the anchor depths. The mean's weight
grows with the evidence that the token gained support across the feature depths (method, section 5).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import pairwise, product
from typing import get_args, get_type_hints

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional as F

from lastword.rule.theta import ScorerTheta, Theta
from lastword.rule.tile import Logits, Tile

BLOCK = 16  # tokens of which the largest is found first, for the top k
LogZ = dict[int, Float[Tensor, "rows 1"]]


class Scorer:
    """T for models of one depth and vocabulary size.

    Args:
        theta: Constants and switches.
        depth: L, the number of blocks.
        vocabulary: V, the number of rows of the output head.

    Attributes:
        depths: The depths whose logits T needs: A, G and L, ascending.
    """

    def __init__(self, theta: Theta, depth: int, vocabulary: int) -> None:
        self.theta = theta.scorer
        self.last = depth
        self.anchors = theta.anchor_depths(depth)
        self.features = theta.feature_depths(depth)
        self.depths = theta.scorer_depths(depth)
        self.raw_depths: tuple[int, ...] = ()
        k = max(self.theta.k_min, math.ceil(self.theta.k_fraction * vocabulary - 1e-6))
        self.k = min(vocabulary, k)
        self.quorum = math.ceil(self.theta.quorum * len(self.anchors) - 1e-6)
        weights = [math.exp(anchor / depth) for anchor in self.anchors]
        self.weights = [w / sum(weights) for w in weights]

    def log_probs(self, tile: Tile) -> Float[Tensor, " targets"]:
        """Return log_softmax(z_T)[token] at each predicted token, Eq. 13."""
        return self.by_variant(tile, [self.theta])[0]

    def variants(self) -> "dict[str, Variant]":
        """Return T by each variant that the paper leaves open: `outside` x `floor`."""
        switches = get_type_hints(ScorerTheta)
        pairs = product(*(get_args(switches[name]) for name in ("outside", "floor")))
        every = [replace(self.theta, outside=outside, floor=floor) for outside, floor in pairs]
        return {theta.reading: Variant(self, every, n) for n, theta in enumerate(every)}

    def by_variant(self, tile: Tile, every: Sequence[ScorerTheta]) -> list[Tensor]:
        """Return the scores of the predicted tokens by variant; shared parts are computed once."""
        scores = [tile.row.new_zeros(len(tile.row), dtype=torch.float32) for _ in every]
        for rows in tile.strips():
            logits = {depth: z[rows] for depth, z in tile.logits.items()}
            log_z = {depth: values[rows] for depth, values in tile.log_z.items()}
            z_L = logits[self.last]
            # Targets of other strips are computed too and dropped: shapes that depend on the data
            # would wait for the device.
            row = tile.row - rows.start
            inside = (row >= 0) & (row < len(z_L))
            at = row.clamp(0, len(z_L) - 1), tile.token
            parts = self.parts(logits, log_z)
            for n, theta in enumerate(every):
                mixed = self.mix(theta, z_L, *parts)
                scores[n] = torch.where(inside, F.log_softmax(mixed, dim=-1)[at], scores[n])
        return scores

    def parts(self, logits: dict[int, Logits], log_z: LogZ) -> tuple[Logits, Tensor, Logits]:
        """Return what all variants share: zbar - z_L, the tokens that h~ is scaled over, and h~."""
        omega = self.recurring(logits)
        # All tokens of a row without a recurring one.
        over = omega | ~omega.any(dim=-1, keepdim=True)
        rises = [
            (logits[b] - logits[a]).sub_(log_z[b] - log_z[a]) for a, b in pairwise(self.features)
        ]
        h = self.evidence(rises) if rises else torch.zeros_like(logits[self.last])
        return self.shift(logits), over, _rescale(h, over)

    def mix(
        self, theta: ScorerTheta, z_L: Logits, shift: Logits, over: Tensor, h: Logits
    ) -> Logits:
        """Return z_T = (1 - alpha) z_L + alpha zbar of a variant from the shared parts, Eq. 12."""
        weight = alpha(theta, h)
        if theta.outside != "clip":  # tokens outside get z_L, or alpha as for h~ = 0
            zero = torch.zeros(1, 1, dtype=torch.float64)
            outside = 0.0 if theta.outside == "final" else float(alpha(theta, zero))
            weight = torch.where(over, weight, outside)
        return torch.addcmul(z_L, weight, shift)

    def shift(self, logits: dict[int, Logits]) -> Logits:
        """Return zbar - z_L; zbar is the weighted mean over the anchors, Eq. 10."""
        shift = -logits[self.last]
        for weight, anchor in zip(self.weights, self.anchors, strict=True):
            shift.add_(logits[anchor], alpha=weight)
        return shift

    def recurring(self, logits: dict[int, Logits]) -> Bool[Tensor, "rows vocab"]:
        """Return Omega: the tokens in the top k at a quorum of the anchors, Eq. 10."""
        votes = torch.zeros_like(logits[self.last], dtype=torch.uint8)
        for anchor in self.anchors:
            votes += top_k(logits[anchor], self.k)
        return votes >= self.quorum

    def evidence(self, rises: Sequence[Logits]) -> Float[Tensor, "rows tokens"]:
        """Return h = a_s [slope]+ + a_j [jump]+ + a_c [curv]+, Eq. 11, from a trace's rises."""
        a_s, a_j, a_c = self.theta.weights
        count = len(rises) + 1
        # The least-squares slope. The feature depths count as equal steps x_j = (j - 1) / (count -
        # 1), and the sum of (x_j - mean)^2 is count (count + 1) / (12 (count - 1)).
        h = torch.zeros_like(rises[0])
        for j, rise in enumerate(rises, 1):
            h.add_(rise, alpha=6 * j * (count - j) / (count * (count + 1)))
        h.clamp_(min=0).mul_(a_s)
        jump = reduce(torch.maximum, rises)
        h.add_(jump.clamp(min=0), alpha=a_j)
        if count > 2:  # the mean of second differences telescopes
            h.add_((rises[-1] - rises[0]).div_(count - 2).clamp_(min=0), alpha=a_c)
        return h


@dataclass(frozen=True)
class Variant:
    """One variant of T as a token scorer; all of them are computed together."""

    scorer: Scorer
    every: Sequence[ScorerTheta]
    place: int
    raw_depths: tuple[int, ...] = ()

    @property
    def depths(self) -> tuple[int, ...]:
        """Depths whose logits T needs."""
        return self.scorer.depths

    def log_probs(self, tile: Tile) -> Float[Tensor, " targets"]:
        """Return the score of each predicted token of a tile, in nats."""
        every = tile.once("variants", lambda: self.scorer.by_variant(tile, self.every))
        return every[self.place]


def alpha(theta: ScorerTheta, h: Float[Tensor, "rows tokens"]) -> Float[Tensor, "rows tokens"]:
    """Return alpha = lambda_0 + (1 - lambda_0) sigmoid(gamma_alpha (h~ - 1/2)), Eq. 12."""
    share = (h - 0.5).mul_(theta.gamma_alpha).sigmoid_().mul_(1 - theta.lambda_0)
    return share.add_(theta.lambda_0) if theta.floor == "anchor" else share


def top_k(logits: Logits, k: int) -> Bool[Tensor, "rows vocab"]:
    """Return True for the k largest logits per row; ties at the k-th go to the lowest token ids."""
    if k >= logits.shape[1]:
        return torch.ones_like(logits, dtype=torch.bool)
    # topk does not define which of tied tokens it returns, so only its threshold is used.
    largest = _largest(logits, k + 1)
    threshold = largest[:, k - 1 : k]
    among = logits >= threshold
    crowded = _rows_where(largest[:, k] == threshold[:, 0])
    above = logits[crowded] > threshold[crowded]
    level = among[crowded] & ~above
    room = k - above.sum(dim=-1, keepdim=True)
    among[crowded] = above | (level & (level.cumsum(dim=-1, dtype=torch.int32) <= room))
    return among


def _largest(logits: Logits, k: int) -> Float[Tensor, "rows k"]:
    """Return the k largest logits of each row, descending."""
    # They are in the k blocks with the largest maxima, which are a small part of the vocabulary.
    count = logits.shape[1] // BLOCK
    if count <= k:
        return logits.topk(k, dim=-1).values
    blocks = logits[:, : count * BLOCK].unflatten(1, (BLOCK, count))
    best = blocks.amax(dim=1).topk(k, dim=-1, sorted=False).indices
    found = blocks.gather(2, best[:, None].expand(-1, BLOCK, -1)).flatten(1)
    return torch.cat([found, logits[:, count * BLOCK :]], dim=1).topk(k, dim=-1).values


def answers_at_once(tensor: Tensor) -> bool:
    """Return True if a tensor is on the CPU, so that reading a value does not wait for a device."""
    return tensor.device.type == "cpu"


def _rows_where(condition: Bool[Tensor, " rows"]) -> Tensor | slice:
    """Return the rows where a condition holds; all rows if finding them would wait for a device."""
    return condition.nonzero()[:, 0] if answers_at_once(condition) else slice(None)


def _rescale(
    h: Float[Tensor, "rows tokens"], over: Bool[Tensor, "rows tokens"]
) -> Float[Tensor, "rows tokens"]:
    """Return h~: h scaled so that its range over `over` is [0, 1], and clipped; 0 if max = min."""
    outside = ~over
    low = h.masked_fill(outside, torch.inf).amin(dim=-1, keepdim=True)
    high = h.masked_fill(outside, -torch.inf).amax(dim=-1, keepdim=True)
    spread = high - low
    flat = spread == 0
    scaled = (h - low).div_(torch.where(flat, 1.0, spread)).clamp_(0, 1)
    return scaled.masked_fill_(flat, 0.0)
