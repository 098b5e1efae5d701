"""Dense weights of a projection, from the formats of checkpoints.

| stored | companions | dense |
|---|---|---|
| floating point | none | as it is |
| float8 | `weight_scale_inv` or `weight_scale` | times its scale: one, a row's, or a block's |
| int8 (LLM.int8) | `SCB` | `w SCB / 127`, a scale a row |
| NF4, FP4 (bitsandbytes) | absmax, `quant_map`, `quant_state` | codebook times a block's scale |
| GPTQ, AWQ, packed | `qweight`, `weight_packed` | refused |

MXFP4 checkpoints store their attention dense.
"""

import re
from collections.abc import Iterable
from importlib.util import find_spec
from typing import Any

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from lastword.errors import CheckpointError, InvariantError, ModelError
from lastword.model.weights.checkpoint import Checkpoint
from lastword.model.weights.layouts import text_part

# Suffixes of a projection's tensor after its module's name, in the formats above.
_WEIGHT = re.compile(r"(.+)\.(weight|qweight|weight_packed)")
_FLOAT8 = (torch.float8_e4m3fn, torch.float8_e5m2)
_INT8_RANGE = 127.0

Matrix = Float[Tensor, "rows columns"]


def modules_of(names: Iterable[str]) -> frozenset[str]:
    """Return the modules with a weight, in any of the formats, from the names of tensors."""
    return frozenset(match[1] for match in map(_WEIGHT.fullmatch, names) if match)


def read_dense(checkpoint: Checkpoint, module: str) -> tuple[Matrix, tuple[str, ...]]:
    """Return the dense weight of a module, in the stored order, and the names of its tensors."""
    name = f"{module}.weight"
    if name not in checkpoint.names:
        raise _refusal(checkpoint, module)
    if any(n.startswith(f"{name}.quant_state.bitsandbytes__") for n in checkpoint.names):
        return _read_four_bit(checkpoint, name)
    weight = checkpoint.read(name)
    if weight.dtype == torch.int8 and f"{module}.SCB" in checkpoint.names:
        scale = checkpoint.read(f"{module}.SCB").double() / _INT8_RANGE
        return weight.double() * scale.reshape(-1, 1), (name, f"{module}.SCB")
    if weight.dtype in _FLOAT8:
        return _read_float8(checkpoint, name, weight)
    if not weight.is_floating_point():
        raise _refusal(checkpoint, module)
    if weight.ndim != 2:
        raise CheckpointError(f"{name} has shape {tuple(weight.shape)}: a matrix was expected")
    return weight, (name,)


def _read_float8(
    checkpoint: Checkpoint, name: str, weight: Shaped[Tensor, "rows columns"]
) -> tuple[Matrix, tuple[str, ...]]:
    scales = [s for s in (f"{name}_scale_inv", f"{name}_scale") if s in checkpoint.names]
    if not scales:
        raise CheckpointError(f"{name} of {checkpoint.label} is float8 and has no scale beside it")
    # The weight is multiplied by either: `inv` means the inverse of the scale in quantisation.
    scale = checkpoint.read(scales[0]).double()
    rows, columns = weight.shape
    if scale.numel() == 1 or tuple(scale.shape) in ((rows,), (rows, 1)):
        scale = scale.reshape(-1, 1)
    else:
        size = _quantisation(checkpoint).get("weight_block_size")
        if not isinstance(size, list | tuple) or len(size) != 2:
            raise CheckpointError(
                f"{checkpoint.label} has block scales and no weight_block_size in its "
                "quantization_config"
            )
        high, wide = map(int, size)
        if tuple(scale.shape) != (-(-rows // high), -(-columns // wide)):
            raise CheckpointError(
                f"{scales[0]} of {checkpoint.label} has shape {tuple(scale.shape)}, which blocks "
                f"of {high} x {wide} do not give for {rows} x {columns}"
            )
        # One scale per block of high x wide; the blocks at the edges may be cut.
        scale = scale.repeat_interleave(high, 0).repeat_interleave(wide, 1)[:rows, :columns]
    return weight.double() * scale, (name, scales[0])


def _read_four_bit(checkpoint: Checkpoint, name: str) -> tuple[Matrix, tuple[str, ...]]:
    """Return the weight as bitsandbytes reads it: codebook entries times their block's scale."""
    if find_spec("bitsandbytes") is None:
        advice = 'pip install "lastword[quant]"'
        raise ModelError(f"{checkpoint.label} is quantised with bitsandbytes: {advice}")
    from bitsandbytes.functional import QuantState, dequantize_4bit

    names = sorted(n for n in checkpoint.names if n.startswith(f"{name}."))
    parts = {part: checkpoint.read(part) for part in names}
    state = QuantState.from_dict(parts, device=torch.device("cpu"))
    state.dtype = torch.float32  # a stored dtype of 16 bits would round the products
    dense: Matrix = dequantize_4bit(checkpoint.read(name), state)
    return dense, (name, *names)


def _quantisation(checkpoint: Checkpoint) -> dict[str, Any]:
    configs = (checkpoint.config, text_part(checkpoint.config))
    sections = (config.get("quantization_config") for config in configs)
    return next((section for section in sections if isinstance(section, dict)), {})


def _refusal(checkpoint: Checkpoint, module: str) -> InvariantError:
    method = _quantisation(checkpoint).get("quant_method", "a packed format")
    origin = checkpoint.config.get("_name_or_path") or ""
    example = f", for example {origin}," if origin and origin != checkpoint.label else ""
    return InvariantError(
        f"{module} of {checkpoint.label} is quantised ({method}) in a form that is not dequantised "
        f"here: take I(M) from the unquantised checkpoint{example} by `lastword invariant`, and "
        "give it: invariant=VALUE (in a command --load invariant=VALUE)"
    )
