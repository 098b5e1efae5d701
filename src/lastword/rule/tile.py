"""Tile: what a token scorer is given, and what it is: T, and TRACE's peers.

A token scorer needs the logits of whole vocabularies at several depths. They exist for one tile of
rows at a time; whoever reads them out makes the tile and hands it to every scorer.
"""

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

T = TypeVar("T")
Logits = Float[Tensor, "rows vocab"]

# Logits of one strip of a tile: several tensors of this size fit a core's cache; on a GPU they are
# small beside the tile.
STRIP_LOGITS = 2**19
STRIP_LOGITS_CUDA = 2**24


@dataclass(frozen=True)
class Tile:
    """The logits of a few rows and values derived from them.

    Attributes:
        logits: z_l by depth, float32.
        log_z: log-sum-exp of z_l over the vocabulary, by depth.
        raw: Logits of depths read without the final norm.
        row: Row of each predicted token.
        token: The predicted tokens.
        notes: What scorers worked out of this tile, for one another.
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
        """Return log-sum-exp of a depth's logits without the final norm."""
        return self.once(("raw_log_z", depth), lambda: self._log_z(self.raw[depth]))

    def _log_z(self, logits: Logits) -> Float[Tensor, "rows 1"]:
        parts = [logits[rows].logsumexp(dim=-1, keepdim=True) for rows in self.strips()]
        return torch.cat(parts)

    def strips(self) -> list[slice]:
        """Return the rows in strips, so that what is worked out of them stays small."""
        logits = next(iter((self.raw or self.logits).values()))
        rows, vocabulary = logits.shape
        size = max(1, (STRIP_LOGITS_CUDA if logits.is_cuda else STRIP_LOGITS) // vocabulary)
        return [slice(start, start + size) for start in range(0, rows, size)]


@runtime_checkable
class TokenScorer(Protocol):
    """A score of predicted tokens that needs whole vocabularies at several depths: T and its peers.

    Attributes:
        depths: Depths whose logits it needs.
        raw_depths: Depths whose logits it needs without the final norm.
    """

    @property
    def depths(self) -> tuple[int, ...]:
        """Depths whose logits the scorer needs."""

    @property
    def raw_depths(self) -> tuple[int, ...]:
        """Depths whose logits the scorer needs without the final norm."""

    def log_probs(self, tile: Tile) -> Float[Tensor, " targets"]:
        """Return its score of each predicted token of a tile, in nats."""
