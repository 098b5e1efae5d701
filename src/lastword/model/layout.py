"""Products with float32 weights in the order of oneDNN's kernels, on the CPU.

On x86 torch multiplies float32 by MKL, which uses few instructions of processors that Intel did
not make. oneDNN uses them all, but needs the weights in an order of its own.
"""

import contextlib
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

ROWS = 128  # the order of the weights depends on the expected rows; other numbers work too
# Weights in all. With fewer, products take less time than the code around them.
_LEAST = 2**23
_TIMED_ROWS, _ROUNDS, _FASTER = 256, 3, 0.75  # well below 1: a machine chooses alike each time


class LaidOut(nn.Linear):
    """A linear layer with its weight in the order of oneDNN's kernels, for inference."""

    def __init__(self, layer: nn.Linear) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features = layer.in_features, layer.out_features
        self.bias = layer.bias
        self._packed = _pack(layer.weight)
        self.train(layer.training)

    @property
    @torch.inference_mode()  # torch refuses to change a tensor that was made in this mode
    def weight(self) -> Tensor:  # type: ignore[override]
        """A copy of the weight as it was [outputs, inputs], to the bit."""
        return self._packed.to_dense()

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - torch's name
        """Return the layer's product, which has no gradient."""
        return _product(input, self._packed, self.bias)

    def _save_to_state_dict(
        self, destination: dict[str, Tensor], prefix: str, keep_vars: bool
    ) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        destination[f"{prefix}weight"] = self.weight


def rounded(rows: int) -> int:
    """Return at least `rows`, and one of eight numbers between a power of two and the next.

    oneDNN makes kernels of 0.5 MB for each number of rows that a layer meets, and keeps them all.
    """
    step = max(8, 1 << max(0, rows.bit_length() - 4))
    return -(-rows // step) * step


def in_pieces(weight: Tensor, size: int) -> list[nn.Module]:
    """Return float32 layers of at most `size` rows of a weight, laid out if that is faster.

    Each piece is freed as soon as it is laid out, so that the weight is in memory once.
    """
    layers = [_in_float32(piece) for piece in weight.split(size)]
    if not _gains(layers):
        return [*layers]
    return [LaidOut(layers.pop(0)) for _ in range(len(layers))]


def _in_float32(weight: Tensor) -> nn.Linear:
    layer = nn.Linear(weight.shape[1], weight.shape[0], bias=False, device="meta")
    layer.weight = nn.Parameter(weight.float(), requires_grad=False)
    return layer


@torch.inference_mode()
def lay_out_if_faster(blocks: nn.Module) -> bool:
    """Lay the weights of blocks out for oneDNN, if that is faster on this processor and as exact.

    The plain layers, one of each shape, have to take at most 0.75 of the time. Each is replaced as
    soon as it is laid out, so that the weights are in memory once. True if blocks were changed.
    """
    layers = [layer for _, _, layer in _plain_layers(blocks)]
    if not _gains(layers):
        return False
    del layers  # so that each is freed as soon as it is replaced
    for parent, name, layer in _plain_layers(blocks):
        setattr(parent, name, LaidOut(layer))
    return True


def _plain_layers(module: nn.Module) -> Iterator[tuple[nn.Module, str, nn.Linear]]:
    """Yield a module's plain linear layers that share no weight, each with its parent and name."""
    # No list of the layers: each would keep its weight in memory until the last is replaced.
    parents = [m for m in module.modules() if type(m) is not nn.Linear]
    places = [(parent, name) for parent in parents for name in parent._modules]
    weights = (getattr(parent._modules[name], "weight", None) for parent, name in places)
    uses = Counter(map(id, weights))
    for parent, name in places:
        layer: Any = parent._modules[name]
        if is_plain(layer) and uses[id(layer.weight)] == 1:
            yield parent, name, layer


def is_plain(layer: nn.Module) -> bool:
    """Return True if a layer is a plain linear layer in float32 on the CPU."""
    if type(layer) is not nn.Linear or hasattr(layer, "_hf_hook") or layer._forward_hooks:
        return False
    weight = layer.weight
    plain = weight.dtype == torch.float32 and weight.device.type == "cpu"
    return plain and not layer._forward_pre_hooks


def _gains(layers: list[nn.Linear]) -> bool:
    if sum(layer.weight.numel() for layer in layers) < _LEAST:
        return False
    with contextlib.suppress(RuntimeError):  # oneDNN may have no kernel for these weights
        return torch.backends.mkldnn.is_available() and _is_faster(layers)
    return False


def _is_faster(layers: list[nn.Linear]) -> bool:
    draw = torch.Generator().manual_seed(0)
    plain = laid = 0.0
    for layer in {layer.weight.shape: layer for layer in layers}.values():
        rows = torch.randn(_TIMED_ROWS, layer.in_features, generator=draw)
        other, expected = LaidOut(layer), layer(rows)
        error = 64 * torch.finfo(torch.float32).eps * float(expected.abs().max())
        if not torch.allclose(other(rows), expected, rtol=0.0, atol=error):
            return False
        plain, laid = plain + _least_seconds(layer, rows), laid + _least_seconds(other, rows)
    return laid <= _FASTER * plain


def _least_seconds(layer: nn.Linear, rows: Tensor) -> float:
    seconds = []
    for _ in range(_ROUNDS):
        start = time.thread_time()
        layer(rows)
        seconds.append(time.thread_time() - start)
    return min(seconds)


# torch uses these operators in compiled models, and has no public names for them.
def _pack(weight: Tensor) -> Tensor:
    contiguous = weight.detach().contiguous()
    packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(contiguous, ROWS)
    return packed


def _product(rows: Tensor, packed: Tensor, bias: Tensor | None) -> Tensor:
    product: Tensor = torch.ops.mkldnn._linear_pointwise(rows, packed, bias, "none", [], "")
    return product
