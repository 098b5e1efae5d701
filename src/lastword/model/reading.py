"""Reading: states at any depth -> log-probabilities of predicted tokens, in tiles of rows.

Knows no model library: whoever has states and a head reads them here, in another process too.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from lastword.rule.tile import Logits, Tile, TokenScorer
from lastword.text.forest import Reads

T = TypeVar("T")
# A tile's rows, and for each of its targets the row within it, the token, and its place.
_Indices = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]

# Logits of one tile: on the CPU all the scorer's depths at once still fit a fast part of memory, on
# a GPU the head's weights are read seldom enough for its products to be busy.
TILE_LOGITS = 3 * 2**21
TILE_LOGITS_CUDA = 2**26
# Rows of several depths that a head takes at once which makes no logits.
STACKED_ROWS = 4096


@dataclass(frozen=True)
class States:
    """Residual-stream states of a batch at its read rows, in the model's dtype.

    Attributes:
        hidden: For each captured depth, states [rows, width] (depth 0 is the input of block 0).
    """

    hidden: dict[int, Float[Tensor, "rows width"]]
    reads: Reads


@runtime_checkable
class Head(Protocol):
    """A final norm and output head."""

    device: torch.device
    tile_rows: int

    def logits(self, hidden: Float[Tensor, "rows width"], *, norm: bool = True) -> Logits:
        """Return W_U N(h) in float32; without N where `norm` is false."""


def tile_rows(vocabulary: int, device: torch.device) -> int:
    """Return most rows of a tile whose logits are of that many tokens each."""
    logits = TILE_LOGITS_CUDA if device.type == "cuda" else TILE_LOGITS
    return max(16, min(1024, logits // vocabulary))


@dataclass(frozen=True)
class Reading:
    """The log-probabilities and scores of a set of predicted tokens.

    Attributes:
        log_probs: For each depth, log p of each predicted token in nats [targets].
        scores: For each token scorer, its scores [targets].
        faults: For each predicted token, the first depth whose logits are NaN or infinite at its
            row; -1 if all are finite [targets].
    """

    log_probs: dict[int, Float[np.ndarray, " targets"]]
    scores: list[Float[np.ndarray, " targets"]]
    faults: Int[np.ndarray, " targets"]


@torch.inference_mode()
def read(
    head: Head,
    states: States,
    targets: Int[np.ndarray, " targets"],
    depths: Sequence[int],
    scorers: Sequence[TokenScorer] = (),
) -> Reading:
    """Read log-probabilities of predicted tokens at some depths, and token scorers' scores.

    Logits exist for one tile of rows at a time; scorers share those of their depths. Where the
    device runs out of memory, tiles are halved.

    Raises:
        torch.OutOfMemoryError: One row alone is more than the device holds.
    """
    if not depths:
        return Reading({}, [], np.full(len(targets), -1))
    tiles = _cut(_by_row(states.reads, targets), head.tile_rows)
    parts = _halving(lambda tile: _read_tile(head, states, tile, depths, scorers), tiles)
    order = np.concatenate([part.place for part in parts]).argsort()
    values = torch.cat([part.values for part in parts], dim=1).cpu().numpy()[:, order]
    faults = torch.cat([part.faults for part in parts]).cpu().numpy()[order]
    return Reading(dict(zip(depths, values, strict=False)), list(values[len(depths) :]), faults)


@torch.inference_mode()
def read_stacked(
    log_probs: Callable[[Tensor, Tensor, Tensor], Tensor],
    device: torch.device,
    states: States,
    targets: Int[np.ndarray, " targets"],
    depths: Sequence[int],
) -> dict[int, Float[np.ndarray, " targets"]]:
    """Read log-probabilities at depths that need no whole logits, as one stack of rows.

    A log-probability is NaN if a logit of its row is not finite.

    Raises:
        torch.OutOfMemoryError: One row alone is more than the device holds.
    """
    if not depths:
        return {}
    rows, row, token, place = _by_row(states.reads, targets)
    level = np.arange(len(depths))[:, None]
    stack = np.arange(len(depths) * len(rows)), (row + level * len(rows)).ravel()
    indices = *stack, np.tile(token, len(depths)), (place + level * len(place)).ravel()

    def read_some(some: _Indices) -> tuple[np.ndarray, Tensor]:
        depth, within = np.divmod(some[0], len(rows))
        pieces = [
            _rows(states, depths[i], on_device(rows[within[depth == i]], device))
            for i in np.unique(depth)
        ]
        row, token = (on_device(x, device) for x in some[1:3])
        return some[3], log_probs(torch.cat(pieces), row, token)

    parts = _halving(read_some, _cut(indices, STACKED_ROWS))
    order = np.concatenate([place for place, _ in parts]).argsort()
    values = torch.cat([of_depth for _, of_depth in parts]).cpu().numpy()[order]
    return dict(zip(depths, values.reshape(len(depths), len(place)), strict=True))


@dataclass(frozen=True)
class _Part:
    """The numbers of one tile, on its device, which nothing has waited for."""

    place: Int[np.ndarray, " some"]  # of each target among all
    values: Float[Tensor, "readings some"]  # log-probabilities by depth, then the scorers' scores
    faults: Int[Tensor, " some"]  # as in `Reading`


def _read_tile(
    head: Head,
    states: States,
    indices: _Indices,
    depths: Sequence[int],
    scorers: Sequence[TokenScorer],
) -> _Part:
    rows, row, token = (on_device(x, head.device) for x in indices[:3])
    tile, scored = Tile({}, {}, {}, row, token), {d for s in scorers for d in s.depths}
    values = []
    faults = torch.full((len(rows),), -1, device=head.device)

    def check(depth: int, least: Tensor) -> None:  # a row that has no fault yet gets this depth
        faults[(faults < 0) & ~least.isfinite()] = depth

    for depth in depths:
        logits = head.logits(_rows(states, depth, rows))
        normed = F.log_softmax(logits, dim=-1)
        values.append(normed[row, token])
        check(depth, normed.amin(dim=-1))
        if depth in scored:
            tile.logits[depth], tile.log_z[depth] = logits, _log_z(logits, normed)
    for depth in _raw_depths(scorers):
        tile.raw[depth] = head.logits(_rows(states, depth, rows), norm=False)
        check(depth, tile.raw_log_z(depth)[:, 0])
    values += [scorer.log_probs(tile) for scorer in scorers]
    return _Part(indices[3], torch.stack(values), faults[row])


def _halving(read: Callable[[_Indices], T], tiles: Iterable[_Indices]) -> list[T]:
    """Read every tile; in halves from where the device runs out of memory."""
    parts, rest = [], list(tiles)
    while rest:
        try:
            parts.append(read(rest[0]))
            del rest[0]
            continue
        except torch.OutOfMemoryError:
            if len(rest[0][0]) == 1:
                raise
        torch.cuda.empty_cache()  # not above, where the error still holds the tile's logits
        size = (len(rest[0][0]) + 1) // 2
        rest = [half for tile in rest for half in _cut(tile, size)]
    return parts


def _raw_depths(scorers: Sequence[TokenScorer]) -> list[int]:
    return sorted({d for s in scorers for d in s.raw_depths})


def _rows(states: States, depth: int, rows: Int[Tensor, " some"]) -> Float[Tensor, "some width"]:
    """Return some rows' states at a depth, on the device of `rows`: blocks may be on others."""
    hidden = states.hidden[depth]
    return hidden.index_select(0, rows.to(hidden.device)).to(rows.device)


def _log_z(logits: Logits, normed: Logits) -> Float[Tensor, "rows 1"]:
    """Return log-sum-exp from a logit and its log-softmax, of a token that no head masks."""
    some = logits[:, :64].argmax(dim=-1, keepdim=True)
    return logits.gather(1, some) - normed.gather(1, some)


def _by_row(reads: Reads, targets: Int[np.ndarray, " targets"]) -> _Indices:
    order = np.argsort(reads.row[targets], kind="stable")
    rows, row = np.unique(reads.row[targets][order], return_inverse=True)
    return rows, row, reads.token[targets][order], order


def _cut(indices: _Indices, size: int) -> Iterator[_Indices]:
    rows, row, token, place = indices
    for start in range(0, len(rows), size):
        a, b = np.searchsorted(row, [start, start + size])
        yield rows[start : start + size], row[a:b] - start, token[a:b], place[a:b]


def on_device(array: np.ndarray, device: torch.device) -> Tensor:
    """Return an array as a tensor there, without waiting for what a GPU still has to do."""
    tensor = torch.from_numpy(np.ascontiguousarray(array))
    return tensor.to(device, non_blocking=device.type == "cuda")
