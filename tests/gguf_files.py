"""Small GGUF files of many architectures, as llama.cpp's converter writes them.

The package gguf gives the names of tensors. The converter's changes to tensors are repeated here in
numpy, independent of the code that reads them. The vocabulary is bytes and pairs of letters.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import families
import gguf
import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter
from numpy.typing import NDArray
from tokenizers.pre_tokenizers import ByteLevel
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

Array = NDArray[Any]
Change = Callable[[Array, Any], Array]

TEMPLATE = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
_PLAIN = families.COMMON | {"intermediate_size": 64}
_HEAD_DIM = {"head_dim": 16}
_ROTARY = {"rope_parameters": {"rope_type": "default", "rope_theta": 50000.0}}
_MOE = {"moe_intermediate_size": 32, "num_experts": 4, "num_experts_per_tok": 2}
_GPT2 = families.IDS | {"n_embd": families.WIDTH, "n_layer": families.DEPTH, "n_head": 4}


def _rotary_rows(array: Array, heads: int) -> Array:
    """Interleave the two halves of each head, as llama.cpp's converter does."""
    half = array.shape[0] // heads // 2
    swapped = array.reshape(heads, 2, half, *array.shape[1:]).swapaxes(1, 2)
    return swapped.reshape(array.shape)


def _queries(array: Array, config: Any) -> Array:
    return _rotary_rows(array, config.num_attention_heads)


def _keys(array: Array, config: Any) -> Array:
    return _rotary_rows(array, config.num_key_value_heads)


def _transposed(array: Array, _: Any) -> Array:
    return array.T


def _plus_one(array: Array, _: Any) -> Array:
    return array + 1


def _ungrouped(array: Array, config: Any) -> Array:
    """Reorder q, k, v per head to all q, all k, all v."""
    heads = config.num_attention_heads
    grouped = array.reshape(heads, 3, -1, *array.shape[1:])
    return grouped.swapaxes(0, 1).reshape(array.shape)


_PERMUTED: dict[str, Change] = {"attn_q": _queries, "attn_k": _keys}
_NORMS: dict[str, Change] = {"norm.weight": _plus_one}
_CONV: dict[str, Change] = {
    f"{name}.weight": _transposed for name in ("attn_qkv", "attn_output", "ffn_up", "ffn_down")
}


@dataclass(frozen=True)
class Kind:
    """One architecture.

    Attributes:
        name: llama.cpp's name.
        model_type: transformers' name.
        options: Options of the config.
        changes: The converter's changes to tensors, by a part of llama.cpp's name.
        keys: Further keys of the header, from the config.
    """

    name: str
    model_type: str
    options: dict[str, Any] = field(default_factory=lambda: _PLAIN)
    changes: dict[str, Change] = field(default_factory=dict)
    keys: Callable[[Any], dict[str, Any]] = lambda _: {}


def _key_length(config: Any) -> dict[str, Any]:
    return {"attention.key_length": config.head_dim, "attention.value_length": config.head_dim}


def _windowed(config: Any) -> dict[str, Any]:
    return _key_length(config) | {"attention.sliding_window": config.sliding_window}


def _experts(config: Any) -> dict[str, Any]:
    counts = {"expert_count": config.num_experts, "expert_used_count": config.num_experts_per_tok}
    return _key_length(config) | counts | {"expert_feed_forward_length": 32}


KINDS: dict[str, Kind] = {
    kind.name: kind
    for kind in (
        Kind("llama", "llama", _PLAIN | _ROTARY, _PERMUTED),
        Kind("qwen2", "qwen2", _PLAIN | _ROTARY),
        Kind("qwen3", "qwen3", _PLAIN | _HEAD_DIM | _ROTARY, keys=_key_length),
        Kind(
            "qwen3moe",
            "qwen3_moe",
            _PLAIN | _HEAD_DIM | _ROTARY | _MOE | {"norm_topk_prob": True},
            keys=_experts,
        ),
        Kind("gemma2", "gemma2", _PLAIN | _HEAD_DIM | {"sliding_window": 8}, _NORMS, _windowed),
        Kind(
            "gemma3", "gemma3_text", _PLAIN | _HEAD_DIM | {"sliding_window": 8}, _NORMS, _windowed
        ),
        Kind("phi3", "phi3", _PLAIN | _ROTARY),
        Kind("gpt2", "gpt2", _GPT2, _CONV),
        Kind("bloom", "bloom", _GPT2, {"attn_qkv": _ungrouped}),
        Kind("stablelm", "stablelm", _PLAIN),
        Kind("starcoder2", "starcoder2", _PLAIN | _ROTARY),
        Kind("nemotron", "nemotron", _PLAIN, _NORMS),
    )
}


def build(kind: str, *, seed: int = 0, **overrides: Any) -> PreTrainedModel:
    """Return a tiny random model of the architecture in float32."""
    chosen = KINDS[kind]
    config = AutoConfig.for_model(chosen.model_type, **chosen.options | overrides)
    model = AutoModelForCausalLM.from_config(config)
    families.enliven(model, seed)
    return model.eval()


def write(
    path: Path,
    model: PreTrainedModel,
    kind: str = "llama",
    *,
    stored: str = "F32",
    values: dict[str, Any] | None = None,
    extra: dict[str, Array] | None = None,
) -> Path:
    """Write a model as a GGUF file.

    Args:
        path: Path of the file.
        model: The model.
        kind: A key of `KINDS`, or any architecture's name.
        stored: Format of matrices; vectors stay in float32.
        values: Metadata that replaces or extends the architecture's (None removes a key).
        extra: Further tensors, by llama.cpp's names.
    """
    writer = GGUFWriter(path, kind)
    config = model.config
    for key, value in (_header(kind, config) | (values or {})).items():
        _add(writer, key, value)
    _add_tokenizer(writer)
    for name, array in (dict(tensors(kind, model)) | (extra or {})).items():
        _add_tensor(writer, name, np.ascontiguousarray(array), stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def tensors(kind: str, model: PreTrainedModel) -> Iterator[tuple[str, Array]]:
    """Yield llama.cpp's names and arrays of a model, with the converter's changes."""
    config, state = model.config, model.state_dict()
    name_of = partial(gguf.get_tensor_name_map(_architecture(kind), families.DEPTH).get_name)
    for name, tensor in state.items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        if name.endswith("experts.gate_up_proj"):
            gate, up = (
                tensor.numpy().reshape(tensor.shape[0], 2, -1, tensor.shape[2]).swapaxes(0, 1)
            )
            yield f"blk.{name.split('.')[2]}.ffn_gate_exps.weight", gate
            yield f"blk.{name.split('.')[2]}.ffn_up_exps.weight", up
            continue
        module, _, leaf = name.rpartition(".")
        if leaf not in ("weight", "bias"):
            module, leaf = name, "weight"
        target = name_of(module) or name_of(module.removeprefix("transformer."))
        assert target is not None, f"gguf has no name for {name}"
        array = tensor.numpy()
        for part, change in KINDS[kind].changes.items() if kind in KINDS else ():
            if part in f"{target}.{leaf}":
                array = change(array, config)
        yield f"{target}.{leaf}", array


def _architecture(kind: str) -> Any:
    return next(arch for arch, name in gguf.MODEL_ARCH_NAMES.items() if name == kind)


def _header(kind: str, config: Any) -> dict[str, Any]:
    rotary = getattr(config, "rope_parameters", None) or {}
    inner = getattr(config, "intermediate_size", None) or 4 * config.hidden_size
    keys: dict[str, Any] = {
        "block_count": config.num_hidden_layers,
        "embedding_length": config.hidden_size,
        "feed_forward_length": inner,
        "context_length": config.max_position_embeddings
        if hasattr(config, "max_position_embeddings")
        else 2048,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": getattr(config, "num_key_value_heads", None),
        "rope.freq_base": rotary.get("rope_theta"),
        "rope.dimension_count": getattr(config, "head_dim", None)
        or config.hidden_size // config.num_attention_heads,
        "attention.layer_norm_rms_epsilon": getattr(config, "rms_norm_eps", None),
        "attention.layer_norm_epsilon": next(
            (
                getattr(config, name)
                for name in ("layer_norm_epsilon", "layer_norm_eps", "norm_epsilon", "norm_eps")
                if hasattr(config, name)
            ),
            None,
        ),
        "vocab_size": config.vocab_size,
    }
    keys |= KINDS[kind].keys(config) if kind in KINDS else {}
    return {f"{kind}.{key}": value for key, value in keys.items()}


def _add(writer: GGUFWriter, key: str, value: Any) -> None:
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    elif value is not None:
        writer.add_array(key, value)


def vocabulary() -> tuple[list[str], list[str]]:
    """Return tokens and merges: three specials, all bytes, and pairs of letters up to `VOCAB`."""
    tokens = ["<unk>", "<s>", "</s>", *sorted(ByteLevel.alphabet())]
    pairs = [(a, b) for a in "etaoinsh" for b in "rdlnstaeiou" if a != b]
    merges = [f"{a} {b}" for a, b in pairs[: families.VOCAB - len(tokens)]]
    return [*tokens, *(m.replace(" ", "") for m in merges)], merges


def _add_tokenizer(writer: GGUFWriter) -> None:
    tokens, merges = vocabulary()
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(tokens)
    writer.add_token_types([3] * 3 + [1] * (len(tokens) - 3))
    writer.add_token_merges(merges)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(0)
    writer.add_chat_template(TEMPLATE)


def _add_tensor(writer: GGUFWriter, name: str, array: Array, stored: str) -> None:
    kind = GGMLQuantizationType[stored]
    if array.ndim < 2 or kind == GGMLQuantizationType.F32:
        writer.add_tensor(name, array.astype(np.float32))
        return
    quantised = gguf.quantize(array.astype(np.float32), kind)
    writer.add_tensor(name, quantised, raw_dtype=kind)
