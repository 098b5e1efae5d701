"""Refusal of weights that transformers loads only in part: it warns, and fills gaps randomly."""

import re
from collections.abc import Collection

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
    info: dict[str, Collection[str | tuple[str, ...]]],
    ignored: re.Pattern[str] = _HARMLESS,
) -> None:
    """Refuse a model if tensors are missing, unused, or of another shape than its config says."""
    kind = type(model).__name__
    for key, verb, what, advice in (
        (
            *("mismatched_keys", "has", "of other shapes than its config says"),
            f"the config is not that of these weights, or transformers does not read this {kind} "
            "whole",
        ),
        ("missing_keys", "lacks", f"of {kind}", "take the whole checkpoint"),
        (
            *("unexpected_keys", "stores", f"that {kind} does not use"),
            "its config is not that of these weights, or it is another kind of model. Correct the "
            "config, or remove the tensors",
        ),
    ):
        names = (name if isinstance(name, str) else name[0] for name in info[key])
        if wrong := sorted(name for name in names if not ignored.search(name)):
            first = ", ".join(wrong[:3]) + (", ..." if len(wrong) > 3 else "")
            count = counted(len(wrong), "tensor")
            raise ModelError(f"{label} {verb} {count} {what} ({first}): {advice}")
