"""Token scorers (T and other methods), and the tiles of logits that they read.

A token scorer needs the logits of the whole vocabulary at several depths. They fit in memory for
a few rows only, so the readout computes them tile by tile, and gives each tile to every scorer.
"""

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

T = TypeVar("T")
Logits = Float[Tensor, "rows vocab"]

# Logits per strip of a tile. On the CPU several tensors of this size fit into a core's cache; on a
# GPU they are small compared with the tile.
STRIP_LOGITS = 2**18
STRIP_LOGITS_CUDA = 2**24


@dataclass(frozen=True)
class Tile:
    """The logits of a few rows and values derived from them.

    Attributes:
        logits: z_l by depth, float32 [rows, vocab].
        log_z: log-sum-exp of z_l over the vocabulary, by depth [rows, 1].
        raw: Logits by depth without the final norm [rows, vocab].
        row: Row of each predicted token [targets].
        token: The predicted tokens [targets].
        notes: Results that scorers share, by key; see `once`.
    """

    logits: dict[int, Logits]
    log_z: dict[int, Float[Tensor, "rows 1"]]
    raw: dict[int, Logits]
    row: Int[Tensor, " targets"]
    token: Int[Tensor, " targets"]
    notes: dict[Hashable, Any] = field(default_factory=dict)

    def once(self, key: Hashable, compute: Callable[[], T]) -> T:
        """Return the result of `compute` for this tile, shared by scorers with equal keys."""
        if key not in self.notes:
            self.notes[key] = compute()
        result: T = self.notes[key]
        return result

    def raw_log_z(self, depth: int) -> Float[Tensor, "rows 1"]:
        """Return the log-sum-exp of a depth's logits without the final norm."""
        return self.once(("raw_log_z", depth), lambda: self._log_z(self.raw[depth]))

    def _log_z(self, logits: Logits) -> Float[Tensor, "rows 1"]:
        parts = [logits[rows].logsumexp(dim=-1, keepdim=True) for rows in self.strips()]
        return torch.cat(parts)

    def strips(self) -> list[slice]:
        """Return slices of rows that are small enough to keep intermediate tensors small."""
        logits = next(iter((self.raw or self.logits).values()))
        rows, vocabulary = logits.shape
        size = max(1, (STRIP_LOGITS_CUDA if logits.is_cuda else STRIP_LOGITS) // vocabulary)
        return [slice(start, start + size) for start in range(0, rows, size)]


@runtime_checkable
class TokenScorer(Protocol):
    """A score of predicted tokens by the logits of whole vocabularies at several depths."""

    @property
    def depths(self) -> tuple[int, ...]:
        """Depths whose logits the scorer needs."""

    @property
    def raw_depths(self) -> tuple[int, ...]:
        """Depths whose logits the scorer needs without the final norm."""

    def log_probs(self, tile: Tile) -> Float[Tensor, " targets"]:
        """Return the score of each predicted token of a tile, in nats."""
