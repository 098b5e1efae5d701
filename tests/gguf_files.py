"""Small GGUF files of many architectures, as llama.cpp's converter writes them.

The package gguf gives the names of tensors. The converter's changes to tensors are repeated here in
numpy, independent of the code that reads them. The vocabulary is bytes and pairs of letters.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

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
_HEAD_DIM = _PLAIN | {"head_dim": 16}
_ROTARY = _PLAIN | {"rope_parameters": {"rope_type": "default", "rope_theta": 50000.0}}
_MOE = {"moe_intermediate_size": 32, "num_experts": 4, "num_experts_per_tok": 2}
_GPT2 = families.IDS | {"n_embd": families.WIDTH, "n_layer": families.DEPTH, "n_head": 4}


def _rotary_rows(array: Array, heads: int) -> Array:
    """Interleave the two halves of each head, as llama.cpp's converter does."""
    half = array.shape[0] // heads // 2
    swapped = array.reshape(heads, 2, half, *array.shape[1:]).swapaxes(1, 2)
    return swapped.reshape(array.shape)


def _ungrouped(array: Array, config: Any) -> Array:
    """Reorder q, k, v per head to all q, all k, all v."""
    heads = config.num_attention_heads
    grouped = array.reshape(heads, 3, -1, *array.shape[1:])
    return grouped.swapaxes(0, 1).reshape(array.shape)


_PERMUTED: dict[str, Change] = {
    "attn_q": lambda array, config: _rotary_rows(array, config.num_attention_heads),
    "attn_k": lambda array, config: _rotary_rows(array, config.num_key_value_heads),
}
_NORMS: dict[str, Change] = {"norm.weight": lambda array, _: array + 1}
_CONV: dict[str, Change] = {
    f"{name}.weight": lambda array, _: array.T
    for name in ("attn_qkv", "attn_output", "ffn_up", "ffn_down")
}


class Kind(NamedTuple):
    """One architecture: transformers' name, and the converter's changes to tensors by name."""

    model_type: str
    options: dict[str, Any] = _PLAIN
    changes: dict[str, Change] = {}  # noqa: RUF012 - never changed


KINDS = {
    "llama": Kind("llama", _ROTARY, _PERMUTED),
    "qwen2": Kind("qwen2", _ROTARY),
    "qwen3": Kind("qwen3", _HEAD_DIM | _ROTARY),
    "qwen3moe": Kind("qwen3_moe", _HEAD_DIM | _ROTARY | _MOE | {"norm_topk_prob": True}),
    "gemma2": Kind("gemma2", _HEAD_DIM | {"sliding_window": 8}, _NORMS),
    "gemma3": Kind("gemma3_text", _HEAD_DIM | {"sliding_window": 8}, _NORMS),
    "phi3": Kind("phi3", _ROTARY),
    "gpt2": Kind("gpt2", _GPT2, _CONV),
    "bloom": Kind("bloom", _GPT2, {"attn_qkv": _ungrouped}),
    "stablelm": Kind("stablelm"),
    "starcoder2": Kind("starcoder2", _ROTARY),
    "nemotron": Kind("nemotron", _PLAIN, _NORMS),
}


def build(kind: str, *, seed: int = 0, **overrides: Any) -> PreTrainedModel:
    """Return a tiny random model of the architecture in float32."""
    chosen = KINDS[kind]
    config = AutoConfig.for_model(chosen.model_type, **chosen.options | overrides)
    model: PreTrainedModel = AutoModelForCausalLM.from_config(config)
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
    """Write a model as a GGUF file; vectors stay in float32.

    `values` replace or extend the metadata (None removes a key), and `extra` the tensors.
    """
    writer = GGUFWriter(path, kind)
    config = model.config
    for key, value in (_header(kind, config) | (values or {})).items():
        _add(writer, key, value)
    _add_tokenizer(writer)
    for name, array in (dict(tensors(kind, model)) | (extra or {})).items():
        array = np.ascontiguousarray(array, dtype=np.float32)
        if array.ndim < 2 or stored == "F32":
            writer.add_tensor(name, array)
        else:
            form = GGMLQuantizationType[stored]
            writer.add_tensor(name, gguf.quantize(array, form), raw_dtype=form)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def tensors(kind: str, model: PreTrainedModel) -> Iterator[tuple[str, Array]]:
    """Yield llama.cpp's names and arrays of a model, with the converter's changes."""
    config, state = model.config, model.state_dict()
    architecture = next(arch for arch, name in gguf.MODEL_ARCH_NAMES.items() if name == kind)
    name_of = gguf.get_tensor_name_map(architecture, families.DEPTH).get_name
    for name, tensor in state.items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        if name.endswith("experts.gate_up_proj"):
            parts = tensor.numpy().reshape(tensor.shape[0], 2, -1, tensor.shape[2]).swapaxes(0, 1)
            for part, array in zip(("gate", "up"), parts, strict=True):
                yield f"blk.{name.split('.')[2]}.ffn_{part}_exps.weight", array
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


_EPSILONS = ("layer_norm_epsilon", "layer_norm_eps", "norm_epsilon", "norm_eps")


def _header(kind: str, config: Any) -> dict[str, Any]:
    """Return the keys of the architecture; None for those that its config lacks."""

    def of(*names: str) -> Any:
        return next((getattr(config, name) for name in names if hasattr(config, name)), None)

    head, rotary = of("head_dim"), of("rope_parameters") or {}
    experts = of("num_experts")
    keys = {
        "block_count": config.num_hidden_layers,
        "embedding_length": config.hidden_size,
        "feed_forward_length": of("intermediate_size") or 4 * config.hidden_size,
        "context_length": of("max_position_embeddings") or 2048,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": of("num_key_value_heads"),
        "rope.freq_base": rotary.get("rope_theta"),
        "rope.dimension_count": head or config.hidden_size // config.num_attention_heads,
        "attention.layer_norm_rms_epsilon": of("rms_norm_eps"),
        "attention.layer_norm_epsilon": of(*_EPSILONS),
        "vocab_size": config.vocab_size,
        "attention.key_length": head,
        "attention.value_length": head,
        "attention.sliding_window": of("sliding_window") if kind.startswith("gemma") else None,
        "expert_count": experts,
        "expert_used_count": None if experts is None else config.num_experts_per_tok,
        "expert_feed_forward_length": None if experts is None else config.moe_intermediate_size,
    }
    return {f"{kind}.{key}": value for key, value in keys.items()}


def _add(writer: GGUFWriter, key: str, value: Any) -> None:
    adders: Any = {int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}
    if value is not None:
        adders[type(value)](key, value)


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
