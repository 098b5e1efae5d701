"""Shapes of the tiny families with widths that quantised formats can divide into blocks."""

from typing import Any

# Multiples of 64, for blocks of NF4 and tiles of 32 in bitsandbytes' CPU kernels.
_PLAIN: dict[str, Any] = {"hidden_size": 128, "intermediate_size": 128}
_HEADS = _PLAIN | {"head_dim": 32}
_LATENT = _PLAIN | {
    "q_lora_rank": 64,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 32,
    "v_head_dim": 32,
    "moe_intermediate_size": 32,
    "head_dim": 32,
}
_OTHERS: dict[str, dict[str, Any]] = {
    "bloom": {"hidden_size": 128},
    "deepseek_v2": _LATENT,
    "deepseek_v3": _LATENT,
    "gpt2": {"n_embd": 128},
    "gpt_neo": {"hidden_size": 128},
    "gpt_oss": {"hidden_size": 64, "intermediate_size": 64, "head_dim": 32},
    "llama4_text": _HEADS | {"intermediate_size_mlp": 128},
    "opt": {"hidden_size": 128, "word_embed_proj_dim": 128, "ffn_dim": 128},
    "qwen3_moe": _HEADS | {"moe_intermediate_size": 32},
}
_WITH_HEAD_SIZE = {
    "llama",
    "qwen3",
    "gemma2",
    "gemma3_text",
    "gemma3",
    "ministral3",
    "mistral3",
    "glm4",
}


def wide(name: str) -> dict[str, Any]:
    """Return overrides for `families.build` that make a family's model wide enough to quantise.

    Args:
        name: A key of `families.FAMILIES`.
    """
    return _OTHERS.get(name) or (_HEADS if name in _WITH_HEAD_SIZE else _PLAIN)
