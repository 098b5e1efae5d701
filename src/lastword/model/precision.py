"""Find out whether this processor runs a model faster in bfloat16 than in float32."""

import time

import torch

from lastword.model.backbone import Backbone

# Parameters. In a smaller model products take less time than the code around them.
_LEAST = 50_000_000
_ROWS, _ROUNDS, _FASTER = 128, 5, 0.6


@torch.inference_mode()
def faster_in_bfloat16(backbone: Backbone) -> bool:
    """Return True if a float32 model on the CPU should run in bfloat16 for speed.

    The products with a weight of the first block have to take at most 0.6 of the time. They are
    timed because the processor's flags do not tell: some processors with AVX-512 BF16 multiply
    more slowly in it than in float32, and processors without it emulate it.
    """
    model = backbone.model
    quantised = getattr(model, "hf_quantizer", None) is not None
    if model.dtype != torch.float32 or backbone.device.type != "cpu" or quantised:
        return False
    if model.num_parameters() < _LEAST:
        return False
    matrices = [p for p in backbone.parts.blocks[0].parameters() if p.ndim == 2]
    weight = max(matrices, key=torch.Tensor.numel)
    rows = torch.ones(_ROWS, weight.shape[1])
    return _seconds(rows.bfloat16(), weight.bfloat16()) <= _FASTER * _seconds(rows, weight)


def _seconds(rows: torch.Tensor, weight: torch.Tensor) -> float:
    """Return the least time of a product over some rounds."""
    least = float("inf")
    for _ in range(_ROUNDS):
        start = time.perf_counter()
        torch.nn.functional.linear(rows, weight)
        least = min(least, time.perf_counter() - start)
    return least
