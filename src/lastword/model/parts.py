"""Names of the parts of a transformers model, found by conventions and checked at load.

The trunk is what `get_decoder()` gives, its blocks the module list of the config's length, the head
what `get_output_embeddings()` gives. Only names that no convention tells stand in tables here.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers import PretrainedConfig, PreTrainedModel

from lastword.errors import UnsupportedModelError
from lastword.model.weights.layouts import AFTER_NORM, FINAL_NORMS

# Lengths in a config past which a block sees less than everything before it.
WINDOWS = ("sliding_window", "attention_chunk_size")
# Model types whose window is inside their attention, where the check cannot shrink it.
OWN_WINDOWS = ("gpt_neo",)
# Names under which configs keep the longest sequence.
CONTEXTS = ("max_position_embeddings", "n_positions", "max_sequence_length", "seq_length", "n_ctx")


@dataclass(frozen=True)
class Parts:
    """The modules between which states are read.

    Attributes:
        trunk: The text decoder, from ids to the last hidden state.
        blocks: Its transformer blocks, L of them.
        after_norm: What the trunk does after the norm, before the head; often nothing.
    """

    trunk: nn.Module
    blocks: nn.ModuleList
    norm: nn.Module | None
    after_norm: nn.Module | None


def locate(model: PreTrainedModel) -> Parts:
    """Find trunk, blocks and final norm of a decoder-only language model.

    Raises:
        UnsupportedModelError: Encoder-decoder, no output head, or no blocks where they should be.
    """
    config = text_config(model.config)
    if model.config.is_encoder_decoder:
        raise _refuse(
            model, "it is an encoder-decoder; lastword reads decoder-only language models"
        )
    if model.get_output_embeddings() is None:
        raise _refuse(model, "it has no output head; load it as a causal language model")
    trunk = model.get_decoder()
    if trunk is model:  # Llama 4's language model does not know its base model by name
        trunk = next((c for c in model.children() if c is not model.get_output_embeddings()), model)
    blocks = [
        m
        for m in trunk.children()
        if isinstance(m, nn.ModuleList) and len(m) == config.num_hidden_layers
    ]
    if len(blocks) != 1:
        raise _refuse(model, f"{len(blocks)} lists of {config.num_hidden_layers} blocks were found")
    norm, after_norm = (_first_module(trunk, names) for names in (FINAL_NORMS, AFTER_NORM))
    return Parts(trunk, blocks[0], norm, after_norm)


def text_config(config: PretrainedConfig) -> Any:
    """Return the text model's config; of a plain language model, its config."""
    return config.get_text_config(decoder=True)


def context_length(config: PretrainedConfig) -> int | None:
    """Return the longest sequence that the model takes, in tokens; None if not in its config."""
    text = text_config(config)
    for name in CONTEXTS:
        length = getattr(text, name, None)
        if length is not None:
            dynamic = [r for r in _ropes(text) if r.get("rope_type") == "dynamic"]
            return int(length * max((r.get("factor") or 1.0 for r in dynamic), default=1.0))
    return None


def rope_class(config: PretrainedConfig, length: int) -> int:
    """Return a length's class: those of one class may share a batch (method, section 2).

    Longrope and dynamic scaling choose their frequencies by the longest position in the batch.
    """
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


def device_of(module: nn.Module) -> torch.device:
    """Return where a module computes: where its weights are or, offloaded, are brought."""
    hook: Any = getattr(module, "_hf_hook", None)  # accelerate's
    for inner in getattr(hook, "hooks", (hook,)):
        device = getattr(inner, "execution_device", None)
        if device is not None:
            return torch.device(device)
    return next(module.parameters()).device


def _ropes(text: Any) -> list[dict[str, Any]]:
    rope = getattr(text, "rope_parameters", None) or {}
    nested = [r for r in rope.values() if isinstance(r, dict) and "rope_type" in r]
    return nested or [rope]


def _first_module(trunk: nn.Module, names: tuple[str, ...]) -> nn.Module | None:
    modules = (getattr(trunk, name, None) for name in names)
    return next((module for module in modules if isinstance(module, nn.Module)), None)


def _refuse(model: PreTrainedModel, why: str) -> UnsupportedModelError:
    return UnsupportedModelError(f"cannot read {type(model).__name__}: {why}")
