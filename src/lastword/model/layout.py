"""Layout: linear layers whose float32 weights lie in the order of oneDNN's kernels, on the CPU.

On x86 torch multiplies float32 by MKL, which is at its best on Intel's own processors. oneDNN, on
weights that were laid out for its kernels once, is faster elsewhere, and where rows are few.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

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


class LaidOut(nn.Linear):
    """A linear layer on weights in the order of oneDNN's kernels, for inference alone."""

    def __init__(self, layer: nn.Linear) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features = layer.in_features, layer.out_features
        self.bias = layer.bias
        self._packed = _pack(layer.weight)
        self.train(layer.training)

    @property
    def weight(self) -> Tensor:  # type: ignore[override]
        """Copy the weight as it was [outputs, inputs], for whoever looks past `forward`."""
        return self._packed.to_dense()

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - as torch calls it
        """Return the product, as the layer's [..., outputs]."""
        return _product(input, self._packed, self.bias)

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        destination[f"{prefix}weight"] = self.weight

    def __getstate__(self) -> dict[str, Any]:
        """Return what a copy is made of: oneDNN's own tensors cannot be copied."""
        return self.__dict__ | {"_packed": self.weight}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore what `__getstate__` gave."""
        self.__dict__.update(state | {"_packed": _pack(state["_packed"])})


def plain_layers(module: nn.Module) -> Iterator[tuple[nn.Module, str, nn.Linear]]:
    """Yield a module's layers that can be laid out, each with its parent and its name there.

    Not those whose weight others share: laid out, it would be kept once for each.
    """
    if not torch.backends.mkldnn.is_available():
        return
    parents = [m for m in module.modules() if type(m) is not nn.Linear]
    slots = [(parent, name) for parent in parents for name in parent._modules]
    uses = Counter(id(getattr(parent._modules[name], "weight", None)) for parent, name in slots)
    for parent, name in slots:
        layer: Any = parent._modules[name]
        if not is_plain(layer) or uses[id(layer.weight)] > 1:
            continue
        # No share of a rank's, and no forward of its own.
        if type(layer.weight) is nn.Parameter and "forward" not in vars(layer):
            yield parent, name, layer


def lay_out(module: nn.Module) -> None:
    """Put laid-out layers in the place of all that can be; each weight is kept once."""
    for parent, name, layer in plain_layers(module):
        setattr(parent, name, LaidOut(layer))


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
