"""torchrun: how many processes share the model, and transformers' plan for its shares.

Every rank holds a share of each weight and computes the same states, logits and decisions.
"""

import os
from typing import Any

from torch import distributed

from lastword.errors import ModelError
from lastword.model.families import text_config


def count() -> int:
    """Count the processes that torchrun started together; 1 without it."""
    return int(os.environ.get("WORLD_SIZE", "1")) if distributed.is_torchelastic_launched() else 1


def shares(name: str, config: Any) -> Any:
    """Return transformers' configuration that divides a model over all ranks.

    Raises:
        ModelError: transformers has no plan for the model, or its heads do not divide.
    """
    from transformers.distributed.configuration_utils import DistributedConfig

    text, size = text_config(config), count()
    if not getattr(text, "base_model_tp_plan", None):
        raise ModelError(
            f"{name} ({config.model_type}) has no tensor-parallel plan in transformers: run it in "
            "one process, with --device-map auto where it needs several devices"
        )
    heads = text.num_attention_heads, getattr(text, "num_key_value_heads", None) or size
    if any(h % size for h in heads):
        raise ModelError(
            f"{name} has {heads[0]} attention heads and {heads[1]} of keys and values, which "
            f"{size} processes cannot share evenly: start as many as divide both"
        )
    return DistributedConfig(tp_size=size)
