"""The floor: what the same arithmetic costs as matrix products and nothing else.

    floor = trunk FLOPs on distinct tokens + attention FLOPs that the forest needs
          + head FLOPs on the (row, depth) pairs that were read,

each over the best rate of its own shape and dtype that any product known here reaches, measured in
the same run: plain, by a transposed copy of the weight, block by block, laid out for oneDNN.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lastword.batch import branches_of
from lastword.model.layout import can_lay_out, laid_out
from lastword.model.readout import PIECE_ROWS
from lastword.text.forest import build
from lastword.text.tokens import Encoded
from lastword.timing.meter import Clock, synchronise
from lastword.tracer import Tracer

ROWS = (128, 1024)  # rows of a trunk's product: few stay in a cache, many hide what each call costs
BLOCK = 2048  # columns of a product that is done block by block
NODES = 512  # of a sequence whose attention is timed
ENOUGH = 0.5  # seconds after which a product is not timed again

Shape = tuple[tuple[int, ...], torch.dtype, torch.device]  # of a weight
Product = Callable[[], Tensor | tuple[Tensor, ...] | list[Tensor]]


@dataclass(frozen=True)
class Floor:
    """Seconds of the products, by part."""

    trunk: float
    attention: float
    head: float

    @property
    def total(self) -> float:
        """Add up all seconds."""
        return self.trunk + self.attention + self.head


@dataclass(frozen=True)
class Floors:
    """The floor of one set of items, and the products that it is made of.

    Attributes:
        readings: The floor by reading; none where the trunk's products are no plain linear layers.
        rates: GFLOP a second by part and shape, and by product: the largest made the floor.
    """

    readings: dict[str, Floor] = field(default_factory=dict)
    rates: dict[str, dict[str, float]] = field(default_factory=dict)


def floors(
    tracer: Tracer, encoded: Sequence[Encoded], reads: Mapping[str, int], clock: Clock
) -> Floors:
    """Compute the floor of a set of items, by reading: the products are timed once for all.

    Args:
        tracer: The model.
        encoded: The items; their distinct tokens count once over the whole set.
        reads: (row, depth) pairs that went through the head, by reading.
        clock: What the readings were timed by.
    """
    blocks = tracer.backbone.parts.blocks
    weights = [m.weight for m in blocks.modules() if isinstance(m, nn.Linear)]
    shapes: Counter[Shape] = Counter((tuple(w.shape), w.dtype, w.device) for w in weights)
    if not shapes or not all(dtype.is_floating_point for _, dtype, _ in shapes):
        return Floors()
    forest = build([b for e in encoded for b in branches_of(e)])
    stopwatch = _Stopwatch(clock)
    with torch.inference_mode():
        trunk = _trunk_seconds(stopwatch, shapes) * len(forest)
        attention = _attention_seconds(stopwatch, tracer) * int((forest.positions + 1).sum())
        head = _head_seconds(stopwatch, tracer)
    readings = {name: Floor(trunk, attention, head * count) for name, count in reads.items()}
    return Floors(readings, stopwatch.rates)


def _trunk_seconds(stopwatch: "_Stopwatch", shapes: Mapping[Shape, int]) -> float:
    """Time all linear layers of the blocks: seconds a token, each shape as often as it is there."""
    return sum(
        count * min(stopwatch.linear("trunk", rows, *shape) / rows for rows in ROWS)
        for shape, count in shapes.items()
    )


def _attention_seconds(stopwatch: "_Stopwatch", tracer: Tracer) -> float:
    """Time both products of attention over all blocks: seconds a (query, key) pair."""
    config = tracer.backbone.config
    heads = config.num_attention_heads
    width = getattr(config, "head_dim", None) or config.hidden_size // heads
    dtype, device = tracer.backbone.model.dtype, tracer.backbone.device
    query = torch.randn(1, heads, NODES, width, device=device, dtype=dtype)
    weights = torch.randn(1, heads, NODES, NODES, device=device, dtype=dtype)
    pairs = NODES * (NODES + 1) // 2
    ways: dict[str, tuple[int, Product]] = {
        "plain": (NODES**2, lambda: (query @ query.transpose(2, 3), weights @ query)),
        "fused, causal": (
            pairs,
            lambda: F.scaled_dot_product_attention(query, query, query, is_causal=True),
        ),
    }
    shape = f"attention, {heads} x {width}"
    return stopwatch.best(shape, 4 * heads * width, ways) * tracer.backbone.depth


def _head_seconds(stopwatch: "_Stopwatch", tracer: Tracer) -> float:
    """Time the head's product in the dtype that it multiplies in: seconds a row."""
    weight: Tensor = tracer.backbone.model.get_output_embeddings().weight
    wide = tracer.head_dtype == "float32" and not weight.is_cuda
    dtype, rows = torch.float32 if wide else weight.dtype, max(PIECE_ROWS, tracer.readout.tile_rows)
    return stopwatch.linear("head", rows, tuple(weight.shape), dtype, weight.device) / rows


def products(weight: Tensor, rows: Tensor) -> dict[str, Product]:
    """Return the known products of rows and a weight, each into memory that it has already.

    Args:
        weight: As a linear layer keeps it [outputs, inputs].
        rows: What it is applied to [rows, inputs].
    """
    turned, out = weight.t().contiguous(), rows.new_empty(len(rows), len(weight))
    parts = [(part.t(), rows.new_empty(len(rows), len(part))) for part in weight.split(BLOCK)]
    ways: dict[str, Product] = {
        "plain": lambda: torch.mm(rows, weight.t(), out=out),
        "transposed": lambda: torch.mm(rows, turned, out=out),
        "blocked": lambda: [torch.mm(rows, part, out=there) for part, there in parts],
    }
    if can_lay_out(weight):
        product = laid_out(weight)
        ways["laid out"] = lambda: product(rows)
    return ways


class _Stopwatch:
    """Times products by one clock and holds the rates of all that were tried."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.rates: dict[str, dict[str, float]] = {}

    def linear(
        self, part: str, rows: int, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device
    ) -> float:
        """Return seconds of the fastest product of some rows and a weight of this shape."""
        weight = torch.randn(shape, device=device, dtype=dtype)
        inputs = torch.randn(rows, shape[1], device=device, dtype=dtype)
        ways = {name: (1, run) for name, run in products(weight, inputs).items()}
        name = f"{part}, {shape[0]} x {shape[1]}, {rows} rows"
        return self.best(name, 2 * rows * weight.numel(), ways)

    def best(self, name: str, flops: int, ways: Mapping[str, tuple[int, Product]]) -> float:
        """Return seconds of one unit by the fastest way.

        Args:
            name: Part and shape.
            flops: Of one unit.
            ways: How many units each does, and how.
        """
        seconds = {way: self._shortest(run) / units for way, (units, run) in ways.items()}
        self.rates[name] = {way: flops / s / 1e9 for way, s in seconds.items()}
        return min(seconds.values())

    def _shortest(self, product: Product, rounds: int = 5) -> float:
        """Give the shortest of a few timings, after one that does not count."""
        times: list[float] = []
        repeats = 20 if torch.cuda.is_available() else 1  # else a launch would count
        while len(times) < 2 or (len(times) <= rounds and sum(times) * repeats < ENOUGH):
            start = self._clock()
            for _ in range(repeats):
                product()
            synchronise()
            times.append((self._clock() - start) / repeats)
        return min(times[1:])
