"""Products with float32 weights in the order of oneDNN's kernels, for the head on the CPU.

On x86 torch multiplies float32 by MKL. oneDNN, on weights that were laid out for its kernels once,
is faster for few rows.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

# Rows that weights are laid out for; other numbers of rows are as exact.
PACKED_ROWS = 128


def can_lay_out(weight: Tensor) -> bool:
    """Return True if oneDNN has kernels here for a weight's device and dtype."""
    here = weight.device.type == "cpu" and torch.backends.mkldnn.is_available()
    return here and weight.dtype == torch.float32


def laid_out(weight: Tensor) -> Callable[[Tensor], Tensor]:
    """Return the product of rows with a copy of a weight in the order of oneDNN's kernels."""
    packed = _pack(weight)
    return lambda rows: _product(rows, packed, None)


def is_plain(layer: nn.Module) -> bool:
    """Return True if a layer is a product in float32 on the CPU, and nothing else."""
    if type(layer) is not nn.Linear or hasattr(layer, "_hf_hook"):
        return False
    hooked = layer._forward_hooks or layer._forward_pre_hooks
    return not hooked and layer.weight.dtype == torch.float32 and layer.weight.device.type == "cpu"


# torch calls these where it compiles a model, and has no public name for them. What the first
# returns is one opaque block in the order in which oneDNN's kernel walks through it: it cannot be
# sliced, pickled or copied by `deepcopy`, and `to_dense` alone gives the numbers back, the same
# bits. The order depends on the rows that are expected; products of others are as right.
def _pack(weight: Tensor) -> Tensor:
    onednn = torch.ops.mkldnn
    packed: Tensor = onednn._reorder_linear_weight(weight.detach().contiguous(), PACKED_ROWS)
    return packed


def _product(rows: Tensor, packed: Tensor, bias: Tensor | None) -> Tensor:
    product: Tensor = torch.ops.mkldnn._linear_pointwise(rows, packed, bias, "none", [], "")
    return product
