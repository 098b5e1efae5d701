"""The floor: what the same arithmetic costs as plain matrix products and nothing else.

    floor = trunk FLOPs on distinct tokens + attention FLOPs that the forest needs
          + head FLOPs on the (row, depth) pairs that were read,

each over the rate of a plain product of its own shape and dtype, measured in the same run.
"""

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tracelm.batch import branches_of
from tracelm.text.forest import build
from tracelm.text.tokens import Encoded
from tracelm.timing.meter import synchronise
from tracelm.tracer import Tracer

ROWS = 1024  # rows of a trunk's plain product: enough for its rate to be the machine's best


@dataclass(frozen=True)
class Floor:
    """Seconds of the plain products, by part."""

    trunk: float
    attention: float
    head: float

    @property
    def total(self) -> float:
        """Seconds in all."""
        return self.trunk + self.attention + self.head


def floors(
    tracer: Tracer, encoded: Sequence[Encoded], reads: Mapping[str, int]
) -> dict[str, Floor]:
    """The floor of one set of items, by reading: the products are timed once for all.

    Args:
        tracer: The model.
        encoded: The items; their distinct tokens count once over the whole set.
        reads: (row, depth) pairs that went through the head, by reading.

    Returns:
        The floors by reading; none where the trunk's products are no plain linear layers.
    """
    blocks = tracer.backbone.parts.blocks
    layers = [m for m in blocks.modules() if isinstance(m, nn.Linear)]
    if not layers or not all(m.weight.is_floating_point() for m in layers):
        return {}
    forest = build([b for e in encoded for b in branches_of(e)])
    trunk = _trunk_seconds(layers) * len(forest)
    attention = _attention_seconds(tracer) * int((forest.positions + 1).sum())
    head = _head_seconds(tracer)
    return {name: Floor(trunk, attention, head * count) for name, count in reads.items()}


def _trunk_seconds(layers: Sequence[nn.Linear]) -> float:
    """Seconds a token of all linear layers of the blocks."""
    shapes = Counter((tuple(m.weight.shape), m.weight.dtype, m.weight.device) for m in layers)
    return sum(count * _linear_seconds(*shape) / ROWS for shape, count in shapes.items())


def _linear_seconds(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> float:
    rows = torch.randn(ROWS, shape[1], device=device, dtype=dtype)
    weight = torch.randn(shape, device=device, dtype=dtype)
    return _best(lambda: F.linear(rows, weight))


def _attention_seconds(tracer: Tracer) -> float:
    """Seconds a (query, key) pair of both products of attention, over all blocks."""
    config, size = tracer.backbone.config, 512
    heads = config.num_attention_heads
    width = getattr(config, "head_dim", None) or config.hidden_size // heads
    dtype, device = tracer.backbone.model.dtype, tracer.backbone.device
    query = torch.randn(heads, size, width, device=device, dtype=dtype)
    weights = torch.randn(heads, size, size, device=device, dtype=dtype)
    seconds = _best(lambda: query @ query.transpose(1, 2)) + _best(lambda: weights @ query)
    return seconds / size**2 * tracer.backbone.depth


def _head_seconds(tracer: Tracer) -> float:
    """Seconds a row of the head's product, in the dtype that it multiplies in."""
    weight: Tensor = tracer.backbone.model.get_output_embeddings().weight
    wide = tracer.head_dtype == "float32" and not weight.is_cuda
    dtype = torch.float32 if wide else weight.dtype
    rows = tracer.readout.tile_rows
    hidden = torch.randn(rows, weight.shape[1], device=weight.device, dtype=dtype)
    other = torch.randn(weight.shape, device=weight.device, dtype=dtype)
    return _best(lambda: F.linear(hidden, other)) / rows


def _best(product: Callable[[], Tensor], rounds: int = 5) -> float:
    """The shortest of a few timings, after one that does not count."""
    repeats = 20 if torch.cuda.is_available() else 1  # else a launch would count as arithmetic
    times = []
    for _ in range(rounds + 1):
        start = time.perf_counter()
        for _ in range(repeats):
            product()
        synchronise()
        times.append((time.perf_counter() - start) / repeats)
    return min(times[1:])
