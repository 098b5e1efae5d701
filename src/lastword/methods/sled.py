"""SLED: the last layer's logits, moved towards tokens that the earlier layers agree on.

It applies if early layers have a fact that the last one lost. It fails if the answer's tokens are
not among the top k of the last layer: those get -100. Its authors tuned k and alpha per model; here
one setting is used for all.

Source: Zhang et al., 'SLED: self logits evolution decoding for improving factuality in large
language models' (NeurIPS 2024), and its release (JayZhang42/SLED at 00067af), which reads early
layers without the final norm, every depth below L (run_tfqa.py:68-74). Per token, with I the top k
of p_L and `d_n = z_n - z_L` for every premature layer n,

    c_ni = (<p_n, d_n> - d_n[i]) / max(sqrt(|p_n|^2 - 2 p_n[i] + 1) |d_n|, 1e-8)
    m_ni = max(c_ni, 0)^2,  q_i = sum_n m_ni / sum_ni m_ni   (0 outside I)
    h   <- h - alpha (1 - t/T) (softmax(h) - q),  from z_L, for t = 0..T-1;  -100 outside I

(sled_decoding.py:172-225: agreement to line 208, steps to 219). If no layer agrees with any token,
q is 0, and the steps are still made.

Scores are sums of log_softmax(h): the release with --post_softmax (line 228).
"""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lastword.methods.contract import Aggregation, Facts, Method, by_tokens, method
from lastword.rule.scorer import top_k
from lastword.rule.tile import Logits, Tile

OUTSIDE = -100.0  # h of a token outside I
TINY = 1e-8  # minimum product of norms, to avoid 0/0


@dataclass(frozen=True)
class Evolution:
    """The token scorer of `sled`.

    Attributes:
        depths: Depth L.
        raw_depths: The layers n.
        k: Size of I.
        alpha: Size of the first step.
        steps: T, the number of steps.
    """

    depths: tuple[int]
    raw_depths: tuple[int, ...]
    k: int = 75
    alpha: float = 2.5
    steps: int = 10

    def log_probs(self, tile: Tile) -> Float[Tensor, " targets"]:
        """Return log_softmax(h)[token] at each predicted token."""
        tokens, h = self.evolved(tile)
        is_it = tokens[tile.row] == tile.token[:, None]
        at = torch.where(is_it.any(dim=-1), (h[tile.row] * is_it).sum(dim=-1), OUTSIDE)
        log_z = h.logsumexp(dim=-1)  # over V, where every token outside I counts as -100
        if outside := tile.logits[self.depths[0]].shape[1] - h.shape[1]:
            log_z = torch.logaddexp(log_z, torch.full_like(log_z, OUTSIDE + math.log(outside)))
        return at - log_z[tile.row]

    def evolved(self, tile: Tile) -> tuple[Int[Tensor, "rows k"], Float[Tensor, "rows k"]]:
        """Return the tokens of I, ascending, and their evolved logits h, for each row."""
        parts = [self._evolve_strip(tile, rows) for rows in tile.strips()]
        tokens, h = (torch.cat(x) for x in zip(*parts, strict=True))
        return tokens, h

    def _evolve_strip(
        self, tile: Tile, rows: slice
    ) -> tuple[Int[Tensor, "strip k"], Float[Tensor, "strip k"]]:
        z_L = tile.logits[self.depths[0]][rows]
        k = min(self.k, z_L.shape[1])
        tokens = top_k(z_L, k).nonzero()[:, 1].reshape(-1, k)  # ascending in each row
        agreed = torch.zeros_like(z_L[:, :k])
        for n in self.raw_depths:
            agreed += _agreement(tile.raw[n][rows], tile.raw_log_z(n)[rows], z_L, tokens)
        total = agreed.sum(dim=-1, keepdim=True)
        q = agreed / torch.where(total == 0, 1.0, total)
        # The softmax is over V, so the steps move all logits; only those of I are returned.
        h = z_L.clone()
        for t in range(self.steps):
            step = self.alpha * (1 - t / self.steps)
            h.sub_(h.softmax(dim=-1), alpha=step)
            h.scatter_add_(1, tokens, step * q)
        return tokens, h.gather(1, tokens)


def _agreement(
    z_n: Logits,
    log_z: Float[Tensor, "rows 1"],
    z_L: Logits,
    tokens: Int[Tensor, "rows k"],
) -> Float[Tensor, "rows k"]:
    """Return m_ni: the squared cosine of d_n and the gradient towards each token, if positive.

    `<p, d> - d_i = sum_v p_v (d_v - d_i)` and `|p|^2 - 2 p_i + 1 = (1 - p_i)^2 + sum_v!=i p_v^2`
    both suffer from cancellation if p_i is close to 1. This can happen to at most one token, so the
    top token is summed separately.
    """
    d = z_n - z_L
    p = torch.exp(z_n - log_z)
    top = z_n.argmax(dim=-1, keepdim=True)
    p_top, d_top = p.gather(1, top), d.gather(1, top)
    p_i, d_i = p.gather(1, tokens), d.gather(1, tokens)
    size = torch.linalg.vector_norm(d, dim=-1, keepdim=True)
    p.scatter_(1, top, 0.0)
    rest = p.sum(dim=-1, keepdim=True)  # 1 - p_top
    along = torch.einsum("rv,rv->r", p, d)[:, None]
    square = torch.einsum("rv,rv->r", p, p)[:, None]
    is_top = tokens == top
    numerator = torch.where(is_top, along - rest * d_i, along + p_top * d_top - d_i)
    # Tokens other than the top one: (1 - p_i)^2 + p_top^2 + the squares of all others but p_i.
    other = (1 - p_i) ** 2 + p_top**2 + (square - p_i**2).clamp(min=0)
    norm = torch.where(is_top, rest**2 + square, other).sqrt()
    cosine: Tensor = numerator / (norm * size).clamp(min=TINY)
    return cosine.clamp(min=0).square()


@method(
    "sled",
    "log_softmax of evolved logits",
    "Zhang et al., NeurIPS 2024, and its release",
    aggregates=True,
)
def sled(facts: Facts, aggregation: Aggregation = "sum") -> Method:
    """Return the scores by logits that every earlier depth has moved."""
    return by_tokens("sled", Evolution((facts.depth,), tuple(range(facts.depth))), aggregation)
