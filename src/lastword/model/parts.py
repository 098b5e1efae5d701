"""The parts of a transformers model, found by conventions and checked at load.

`get_decoder()` returns the trunk, and `get_output_embeddings()` the head. The blocks are the module
list of the config's length. Tables here have only names without a convention.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers import PretrainedConfig, PreTrainedModel

from lastword.errors import UnsupportedModelError
from lastword.model.weights.layouts import AFTER_NORM, FINAL_NORMS, first_module

# Names of sliding windows in configs and modules.
WINDOWS = ("sliding_window", "attention_chunk_size")
# Model types with fixed windows inside their attention, which the check cannot shrink.
FIXED_WINDOWS = ("gpt_neo",)
# Names of the maximum sequence length in configs.
CONTEXTS = ("max_position_embeddings", "n_positions", "max_sequence_length", "seq_length", "n_ctx")


@dataclass(frozen=True)
class Parts:
    """The modules of a model; the trunk is the text decoder, from ids to the last hidden state."""

    trunk: nn.Module
    blocks: nn.ModuleList
    norm: nn.Module | None
    after_norm: nn.Module | None  # between the final norm and the head


def locate(model: PreTrainedModel) -> Parts:
    """Find trunk, blocks and final norm of a decoder-only language model."""
    if model.config.is_encoder_decoder:
        raise _refuse(model, "it is an encoder-decoder; lastword reads decoder-only models")
    if model.get_output_embeddings() is None:
        raise _refuse(model, "it has no output head; load it as a causal language model")
    trunk = model.get_decoder()
    if trunk is model:  # Llama 4's language model does not know its base model by name
        trunk = next((c for c in model.children() if c is not model.get_output_embeddings()), model)
    depth = text_config(model.config).num_hidden_layers
    lists = [m for m in trunk.children() if isinstance(m, nn.ModuleList) and len(m) == depth]
    if len(lists) != 1:
        raise _refuse(model, f"{len(lists)} lists of {depth} blocks were found")
    norm, after_norm = (first_module(trunk, names) for names in (FINAL_NORMS, AFTER_NORM))
    return Parts(trunk, lists[0], norm, after_norm)


def text_config(config: PretrainedConfig) -> Any:
    """Return the config of the text model, which may be the config itself."""
    return config.get_text_config(decoder=True)


def context_length(config: PretrainedConfig) -> int | None:
    """Return the model's maximum sequence length in tokens; None if its config has none."""
    text = text_config(config)
    lengths = (getattr(text, name, None) for name in CONTEXTS)
    if (length := next((n for n in lengths if n is not None), None)) is None:
        return None
    # Dynamic scaling reads texts that are longer by its factor than the config says.
    dynamic = [r for r in _ropes(text) if r.get("rope_type") == "dynamic"]
    return int(length * max((r.get("factor") or 1.0 for r in dynamic), default=1.0))


def rope_class(config: PretrainedConfig, length: int) -> int:
    """Return the class of a length; only lengths of one class may share a batch."""
    # Longrope and dynamic scaling choose their frequencies by the longest position in the batch,
    # so a long neighbour would change the scores of a short text (method, section 2).
    text = text_config(config)
    for rope in _ropes(text):
        if rope.get("rope_type") == "longrope":
            original = rope.get("original_max_position_embeddings") or getattr(
                text, "original_max_position_embeddings", text.max_position_embeddings
            )
            return int(length > original)
        if rope.get("rope_type") == "dynamic" and length > text.max_position_embeddings:
            return length
    return 0


def module_device(module: nn.Module) -> torch.device:
    """Return the device on which a module computes; its weights may be offloaded."""
    hook = getattr(module, "_hf_hook", None)  # set by accelerate
    devices = (getattr(h, "execution_device", None) for h in getattr(hook, "hooks", (hook,)))
    device = next((device for device in devices if device is not None), None)
    return next(module.parameters()).device if device is None else torch.device(device)


def _ropes(text: Any) -> list[dict[str, Any]]:
    rope = getattr(text, "rope_parameters", None) or {}
    nested = [r for r in rope.values() if isinstance(r, dict) and "rope_type" in r]
    return nested or [rope]


def _refuse(model: PreTrainedModel, why: str) -> UnsupportedModelError:
    return UnsupportedModelError(f"cannot read {type(model).__name__}: {why}")
