"""DoLa: log-probabilities of the last layer minus those of the most different earlier layer.

It applies if facts appear only in late layers: the support of an early layer is subtracted. It
fails on tokens that early layers predict as well as the last one (function words, repeated names).
Its scores are not log-probabilities, so their sums are not comparable with sums of log p.

Source: Chuang et al., 'DoLa: decoding by contrasting layers improves factuality in large language
models' (ICLR 2024), and its release (voidism/DoLa at 805230e, dola.py:161-217). Per token, with
`M = (p_L + p_l) / 2`,

    D_l = 1/(2V) sum_v M (2 log M - log p_L - log p_l)
    l*  = argmax of D_l over the candidate premature layers, the first on ties
    s   = log p_L - log p_l*

D is the KL from M averaged over V that the release computes, not the Jensen-Shannon divergence of
the paper, and it selects other layers. The release reads early layers without the final
norm; for TruthfulQA it sums s without a filter (tfqa_mc_eval.py:302).
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lastword.methods.contract import Aggregation, Facts, Method, by_tokens, method
from lastword.rule.tile import Tile


@dataclass(frozen=True)
class Contrast:
    """s of the predicted tokens.

    Attributes:
        depths: Depth L.
        raw_depths: Candidate premature layers, read without the final norm.
    """

    depths: tuple[int]
    raw_depths: tuple[int, ...]

    def log_probs(self, tile: Tile) -> Float[Tensor, " targets"]:
        """Return s[token] at each predicted token: a difference of log-probabilities, in nats."""
        early = torch.stack(
            [
                tile.raw[n][tile.row, tile.token] - tile.raw_log_z(n)[tile.row, 0]
                for n in self.raw_depths
            ]
        )
        picks = self.chosen(tile)[tile.row]
        (last,) = self.depths
        late = tile.logits[last][tile.row, tile.token] - tile.log_z[last][tile.row, 0]
        return late - early.gather(0, picks[None])[0]

    def chosen(self, tile: Tile) -> Int[Tensor, " rows"]:
        """Return the index of l* among the premature layers, for each row."""
        return tile.once(self, lambda: self._divergent(tile))

    def _divergent(self, tile: Tile) -> Int[Tensor, " rows"]:
        (last,), picks = self.depths, []
        for rows in tile.strips():
            late = tile.logits[last][rows] - tile.log_z[last][rows]
            early = (tile.raw[n][rows] - tile.raw_log_z(n)[rows] for n in self.raw_depths)
            divergences = [divergence(late, each) for each in early]
            picks.append(torch.stack(divergences).argmax(dim=0))  # the first on ties
        return torch.cat(picks)


def divergence(
    late: Float[Tensor, "rows vocab"], early: Float[Tensor, "rows vocab"]
) -> Float[Tensor, " rows"]:
    """Return D_l = 1/(2V) sum_v M (2 log M - log p_L - log p_l), M = (p_L + p_l) / 2."""
    mean = early.exp().add_(late.exp()).mul_(0.5)  # M
    # If both underflow, M is 0 and so is its term; the clamp avoids log 0.
    term = mean.clamp(min=torch.finfo(mean.dtype).tiny).log_().mul_(2).sub_(late).sub_(early)
    return torch.einsum("rv,rv->r", mean, term) / (2 * late.shape[-1])


def premature_depths(depth: int) -> tuple[int, ...]:
    """Return the candidate premature layers: every second depth from floor(L/2), without L.

    Args:
        depth: L; above 40 the layers begin at L - 20.
    """
    return tuple(range(depth - 20 if depth > 40 else depth // 2, depth, 2))


@method(
    "dola",
    "contrast with the most unlike earlier layer, read raw",
    "Chuang et al., ICLR 2024, and its release",
    aggregates=True,
)
def dola(facts: Facts, aggregation: Aggregation = "sum") -> Method:
    """Return the contrast with early layers that are read without the final norm."""
    scorer = Contrast((facts.depth,), premature_depths(facts.depth))
    return by_tokens("dola", scorer, aggregation)
