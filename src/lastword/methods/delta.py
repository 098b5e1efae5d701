"""DeLTa: logits extrapolated with a straight line over depth, to a depth beyond the last.

It applies if support for the right token still grows at the last block. It fails if late blocks
overshoot, because the line extends their mistakes.

Source: 'DeLTa: a decoding strategy based on logit trajectory prediction' (2025). Least squares of
z_l against l over M..N, read at Lambda, is the weighted sum `yhat = sum_l w_l z_l` with
`w_l = 1/n + (l - lbar)(Lambda - lbar) / sum (l - lbar)^2`. Here M = floor(L/2), N = L,
Lambda = L + 1. Early layers are read through the final norm.
"""

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from lastword.methods.contract import Facts
from lastword.rule.tile import Logits, Tile


@dataclass(frozen=True)
class Extrapolation:
    """log_softmax of the extrapolated logits."""

    facts: Facts
    raw_depths: tuple[int, ...] = ()

    @property
    def depths(self) -> tuple[int, ...]:
        """The depths M..N."""
        return tuple(range(self.facts.depth // 2, self.facts.depth + 1))

    @property
    def weights(self) -> tuple[float, ...]:
        """w_l of each depth; the weights sum to 1."""
        n, virtual = len(self.depths), self.facts.depth + 1
        mean = sum(self.depths) / n
        spread = sum((depth - mean) ** 2 for depth in self.depths)
        slope = (virtual - mean) / spread
        return tuple(1 / n + slope * (depth - mean) for depth in self.depths)

    def log_probs(self, tile: Tile) -> Float[Tensor, " targets"]:
        """Return log_softmax(yhat)[token] at each predicted token, in nats."""
        extrapolated = self.vocabulary_scores(tile)
        log_z = extrapolated.logsumexp(dim=-1)
        return extrapolated[tile.row, tile.token] - log_z[tile.row]

    def vocabulary_scores(self, tile: Tile) -> Logits:
        """Return yhat of every token."""
        last = self.facts.depth
        *earlier, final = self.weights
        yhat = tile.logits[last] * final
        for depth, weight in zip(self.depths, earlier, strict=False):
            yhat.add_(tile.logits[depth], alpha=weight)
        return yhat
