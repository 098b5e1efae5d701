"""The layers that are plain products in float32, so that the head may use oneDNN."""

import pytest
import torch
from torch import nn

from lastword.model.readout import is_plain


class Subclass(nn.Linear):
    """A layer that may do more than a product."""


def hooked() -> nn.Linear:
    layer = nn.Linear(4, 4)
    layer.register_forward_hook(lambda *_: None)
    return layer


@pytest.mark.parametrize(
    ("layer", "plain"),
    [
        (nn.Linear(4, 4), True),
        (nn.Linear(4, 4, dtype=torch.bfloat16), False),
        (nn.Linear(4, 4, device="meta"), False),
        (Subclass(4, 4), False),
        (nn.LayerNorm(4), False),
        (hooked(), False),
    ],
)
def test_only_plain_float32_products_are_recognised(layer, plain):
    assert is_plain(layer) == plain
