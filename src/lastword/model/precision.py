"""Find out whether this processor runs a model faster in bfloat16 than in float32."""

import torch
from torch import nn
from torch.nn import functional as F

from lastword.model.backbone import Backbone
from lastword.model.check import rounding_dtype
from lastword.model.layout import least_seconds, parameters_of

# Parameters. In a smaller model products take less time than the code around them.
_LEAST = 50_000_000
_ROWS, _FASTER = 128, 0.3


@torch.inference_mode()
def faster_in_bfloat16(backbone: Backbone) -> bool:
    """Return True if a float32 model on the CPU should run in bfloat16 for speed.

    The products of the first block's largest layer have to take at most 0.3 of the time, so that
    the whole model takes less than half. They are timed because the processor's flags are not
    enough: some with AVX-512 BF16 multiply more slowly in bfloat16 than in float32.
    """
    if rounding_dtype(backbone) != torch.float32 or backbone.device.type != "cpu":
        return False
    layers = [m for m in backbone.parts.blocks[0].modules() if isinstance(m, nn.Linear)]
    if parameters_of(backbone.model) < _LEAST or not layers:
        return False
    layer = max(layers, key=lambda layer: layer.in_features * layer.out_features)
    rows, weight = torch.ones(_ROWS, layer.in_features), layer.weight.bfloat16()
    half = least_seconds(lambda some: F.linear(some, weight), rows.bfloat16())
    return half <= _FASTER * least_seconds(layer, rows)
