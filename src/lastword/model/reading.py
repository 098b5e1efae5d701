"""Reading: states at any depth -> log-probabilities of predicted tokens, in tiles of rows.

It needs only states and a head, and does not import transformers.
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

# Logits per tile. On the CPU, a tile at all depths of the scorer fits the caches. On a GPU, larger
# tiles read the head's weights less often.
TILE_LOGITS = 3 * 2**21
TILE_LOGITS_CUDA = 2**26
# Rows per call of a head that does not store logits.
STACKED_ROWS = 4096


@dataclass(frozen=True)
class States:
    """Residual-stream states of a batch at its read rows, in the model's dtype.

    Attributes:
        hidden: The states by depth; depth 0 is the input of block 0.
    """

    hidden: dict[int, Float[Tensor, "rows width"]]
    reads: Reads


@runtime_checkable
class Head(Protocol):
    """A final norm and output head."""

    device: torch.device
    tile_rows: int

    def logits(
        self, hidden: Float[Tensor, "rows width"], *, norm: bool = True, layer: int | None = None
    ) -> Logits:
        """Return W_U N(h) in float32, or W_U h if `norm` is false; a lens depends on the layer."""


def tile_rows(vocabulary: int, device: torch.device) -> int:
    """Return the maximum number of rows per tile for a vocabulary."""
    logits = TILE_LOGITS_CUDA if device.type == "cuda" else TILE_LOGITS
    return max(16, min(1024, logits // vocabulary))


@dataclass(frozen=True)
class Reading:
    """The log-probabilities and scores of a set of predicted tokens.

    Attributes:
        log_probs: For each depth, log p of each predicted token in nats [targets].
        scores: For each token scorer, its scores [targets].
        faults: For each predicted token, the first depth with a logit that is not finite at its
            row; -1 if there is none [targets].
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

    Only the logits of one tile of rows are in memory at a time. Scorers share them. If the device
    runs out of memory, tiles are halved.

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
    """Read log-probabilities with a function that does not return logits, at all depths at once.

    A log-probability is NaN if a logit of its row is not finite.

    Raises:
        torch.OutOfMemoryError: One row alone is more than the device holds.
    """
    if not depths:
        return {}
    rows, row, token, place = _by_row(states.reads, targets)
    # The rows at all depths form one stack: row r at the i-th depth is row i * len(rows) + r.
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
    """The numbers of one tile, on its device; a GPU may still compute them."""

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

    def check(depth: int, extreme: Tensor) -> None:  # only the first fault of a row counts
        faults[(faults < 0) & ~extreme.isfinite()] = depth

    for depth in depths:
        logits = head.logits(_rows(states, depth, rows), layer=depth)
        normed = F.log_softmax(logits, dim=-1)
        values.append(normed[row, token])
        check(depth, normed.amin(dim=-1))
        if depth in scored:
            tile.logits[depth], tile.log_z[depth] = logits, _log_z(logits, normed)
    for depth in sorted({d for s in scorers for d in s.raw_depths}):
        tile.raw[depth] = head.logits(_rows(states, depth, rows), norm=False)
        check(depth, tile.raw_log_z(depth)[:, 0])
    values += [scorer.log_probs(tile) for scorer in scorers]
    return _Part(indices[3], torch.stack(values), faults[row])


def _halving(read: Callable[[_Indices], T], tiles: Iterable[_Indices]) -> list[T]:
    """Read every tile; halve the remaining ones when the device runs out of memory."""
    parts, rest = [], list(tiles)
    while rest:
        try:
            parts.append(read(rest[0]))
            del rest[0]
            continue
        except torch.OutOfMemoryError:
            if len(rest[0][0]) == 1:
                raise
        torch.cuda.empty_cache()  # not inside `except`, where the error still holds the logits
        size = (len(rest[0][0]) + 1) // 2
        rest = [half for tile in rest for half in _cut(tile, size)]
    return parts


def _rows(states: States, depth: int, rows: Int[Tensor, " some"]) -> Float[Tensor, "some width"]:
    """Return the states of rows at a depth, on the device of `rows`; blocks may be on others."""
    hidden = states.hidden[depth]
    return hidden.index_select(0, rows.to(hidden.device)).to(rows.device)


def _log_z(logits: Logits, normed: Logits) -> Float[Tensor, "rows 1"]:
    """Return log-sum-exp as the difference of a logit and its log-softmax."""
    # Some heads mask tokens with -inf, so the largest of a few is taken.
    token = logits[:, :64].argmax(dim=-1, keepdim=True)
    return logits.gather(1, token) - normed.gather(1, token)


def _by_row(reads: Reads, targets: Int[np.ndarray, " targets"]) -> _Indices:
    """Return the targets in the order of their rows, so that tiles are slices."""
    order = np.argsort(reads.row[targets], kind="stable")
    rows, row = np.unique(reads.row[targets][order], return_inverse=True)
    return rows, row, reads.token[targets][order], order


def _cut(indices: _Indices, size: int) -> Iterator[_Indices]:
    rows, row, token, place = indices
    for start in range(0, len(rows), size):
        a, b = np.searchsorted(row, [start, start + size])
        yield rows[start : start + size], row[a:b] - start, token[a:b], place[a:b]


def dtype_name(dtype: torch.dtype) -> str:
    """Return the name of a dtype, such as `float32`."""
    return str(dtype).removeprefix("torch.")


def on_device(array: np.ndarray, device: torch.device) -> Tensor:
    """Return an array as a tensor on a device, without waiting for a GPU."""
    tensor = torch.from_numpy(np.ascontiguousarray(array))
    return tensor.to(device, non_blocking=device.type == "cuda")
