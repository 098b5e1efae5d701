"""Refusal of weights that transformers loads only in part: it warns, and fills gaps randomly."""

import re
from collections.abc import Collection
from typing import Any

from transformers import PreTrainedModel

from lastword.errors import ModelError
from lastword.files.wording import counted

# Tensors that a model may leave unused, since they change no answer: computed buffers, heads that
# draft several tokens, and scales of quantised activations and caches.
_HARMLESS = re.compile(
    r"(rotary_emb\.|\.)inv_freq$|position_ids$|\bh\.\d+\.attn\.(attention\.)?(masked_)?bias$"
    r"|(^|\.)mtp(_\w+)?\.|\.(input_scale|activation_scale|[kvq]_scale|[kv]_zero_point)$"
)


def require_whole(
    label: str,
    model: PreTrainedModel,
    info: dict[str, Collection[Any]],
    ignored: re.Pattern[str] = _HARMLESS,
) -> None:
    """Refuse a model if tensors are missing, unused, or of another shape than its config says.

    Args:
        label: The checkpoint's name in messages.
        model: The model.
        info: What `from_pretrained` returns with `output_loading_info`.
        ignored: Pattern of tensors that change no answer.

    Raises:
        ModelError: It is not whole.
    """
    kind = type(model).__name__
    if wrong := sorted(name for name, *_ in info["mismatched_keys"]):
        raise ModelError(
            f"{label} has {counted(len(wrong), 'tensor')} of other shapes than its config says "
            f"({_first(wrong)}): the config is not that of these weights, or transformers does not "
            f"read this {kind} whole"
        )
    if absent := sorted(name for name in info["missing_keys"] if not ignored.search(name)):
        raise ModelError(
            f"{label} lacks {counted(len(absent), 'tensor')} of {kind} ({_first(absent)}): take "
            "the whole checkpoint"
        )
    if unused := sorted(name for name in info["unexpected_keys"] if not ignored.search(name)):
        raise ModelError(
            f"{label} stores {counted(len(unused), 'tensor')} that {kind} does not use "
            f"({_first(unused)}): its config is not that of these weights, or it is another kind "
            "of model. Correct the config, or remove the tensors"
        )


def _first(names: list[str]) -> str:
    """Return the first three names."""
    return ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
