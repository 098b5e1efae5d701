"""Tiny random models of all supported families, and a tokenizer double.

Each model has 6 blocks, width 32 and a vocabulary of 331. Norm weights, biases, sinks and routers
are random too, so that depths and candidates differ.

Families without a packed row, and why (transformers 5.23):

    gpt_neo          local attention is a window inside the buffer of the attention's bias
    bloom, falcon-alibi
                     ALiBi comes from the 2-D mask
    llama4_text      chunked attention has no window
    lfm2, mamba      convolutions and state spaces mix the branches
"""

import math
import random
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from torch import nn
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    Mistral3ForConditionalGeneration,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

from lastword import Item

VOCAB = 331
WIDTH = 32
DEPTH = 6
CONTEXT = 192


class Family(NamedTuple):
    """One tiny architecture, and its expected properties."""

    options: dict[str, Any]  # of the config
    blocks: str = "model.layers"
    packs: bool = True  # the prefix forest can be run as one packed row
    invariant: bool = True  # I(M) is defined (every block read has K, V and O)
    model_type: str = ""  # if it is not the name in the tests


IDS = {"vocab_size": VOCAB, "bos_token_id": 1, "eos_token_id": 2}
_TRUNK = IDS | {"hidden_size": WIDTH, "num_hidden_layers": DEPTH}
_HEADS = _TRUNK | {"num_attention_heads": 4, "max_position_embeddings": CONTEXT, "pad_token_id": 0}
_OPT = _HEADS | {"ffn_dim": 48}
_BLOOM = {"hidden_size": WIDTH, "n_layer": DEPTH, "n_head": 4}
COMMON = _HEADS | {"intermediate_size": 48, "num_key_value_heads": 2}
_HEAD_DIM = COMMON | {"head_dim": 8}
_FULL_HEADS = COMMON | {"num_key_value_heads": 4}
_PATTERN = ["sliding_attention", "full_attention"] * (DEPTH // 2)
_MOE = {"moe_intermediate_size": 16, "num_experts_per_tok": 2}
_LATENT = {"q_lora_rank": 12, "kv_lora_rank": 10, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4}
_ROUTED = {"n_routed_experts": 4, "n_shared_experts": 1, "n_group": 1, "topk_group": 1}
_MLA = _FULL_HEADS | _LATENT | _ROUTED | _MOE | {"v_head_dim": 8, "first_k_dense_replace": 2}
_GPT2 = IDS | {"n_embd": WIDTH, "n_layer": DEPTH, "n_head": 4, "n_positions": CONTEXT}
_VISION = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 8}
_VISION |= {"num_attention_heads": 2, "image_size": 28, "patch_size": 14}
LONGROPE_BOUNDARY = DYNAMIC_BOUNDARY = 32
_FACTORS = {"short_factor": [1.0, 1.1, 1.2, 1.3], "long_factor": [1.5, 2.5, 4.0, 6.0]}
_PLAIN_ROPE = {"rope_type": "default", "rope_theta": 10000.0}
_ORIGINAL = {"original_max_position_embeddings": LONGROPE_BOUNDARY}
_LONGROPE = {"rope_parameters": _PLAIN_ROPE | _FACTORS | _ORIGINAL | {"rope_type": "longrope"}}
_LONGROPE |= _ORIGINAL
_DYNAMIC: Any = {"rope_parameters": _PLAIN_ROPE | {"rope_type": "dynamic", "factor": 4.0}}
_DYNAMIC |= {"max_position_embeddings": DYNAMIC_BOUNDARY}
_YARN = _PLAIN_ROPE | {"rope_type": "yarn", "factor": 12.0, "llama_4_scaling_beta": 0.4}
_YARN |= {"original_max_position_embeddings": 16}
_SLIDING = {"sliding_window": 7, "layer_types": _PATTERN}
_CAPPED = {"final_logit_softcapping": 5.0, "attn_logit_softcapping": 20.0}
_GEMMA = _HEAD_DIM | _SLIDING | {"query_pre_attn_scalar": 8}
_UNSLID = {"sliding_window": None}
_IMAGE = {f"{name}_token_index": VOCAB - n for n, name in enumerate(("image", "boi", "eoi"), 1)}
_GEMMA3 = {"vision_config": _VISION | {"model_type": "siglip_vision_model"}} | _IMAGE
_MISTRAL = _HEAD_DIM | _UNSLID | {"model_type": "mistral"}
_MISTRAL3 = {"vision_config": _VISION | {"model_type": "pixtral"}, "image_token_index": VOCAB - 1}
_EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}
_NEO: Any = {"num_layers": DEPTH, "num_heads": 4, "hidden_size": WIDTH, "window_size": 7}
_NEO |= {"attention_types": [[["global", "local"], DEPTH // 2]], "max_position_embeddings": CONTEXT}
_MULTIPLIED = {"embedding_multiplier": 2.0, "residual_multiplier": 0.7, "attention_multiplier": 0.4}
_ROTATED, _ALIBI = {"alibi": False}, {"alibi": True, "multi_query": False}
_OLD = {"new_decoder_architecture": False}
_NEW = {"new_decoder_architecture": True, "num_kv_heads": 2}
_CHUNKED = _EXPERTS | {"attention_chunk_size": 8, "intermediate_size_mlp": 48, "moe_layers": [1]}
_CONVS = {"layer_types": ["conv", "full_attention"] * (DEPTH // 2), "conv_L_cache": 3}
# Paths of blocks.
_AT_H, _INSIDE, _DECODER = "transformer.h", "model.language_model.layers", "model.decoder.layers"

FAMILIES: dict[str, Family] = {
    "llama": Family(_HEAD_DIM),
    "llama-dynamic": Family(COMMON | _DYNAMIC, model_type="llama"),
    "llama-tied": Family(COMMON | {"tie_word_embeddings": True}, model_type="llama"),
    "mistral": Family(COMMON | _UNSLID),
    "mistral-sliding": Family(COMMON | {"sliding_window": 7}, model_type="mistral"),
    "mixtral": Family(COMMON | {"num_local_experts": 4}),
    "qwen2": Family(COMMON),
    "qwen3": Family(_HEAD_DIM),
    "qwen3_moe": Family(_HEAD_DIM | _MOE | {"num_experts": 4}),
    "gemma2": Family(_GEMMA | _CAPPED),
    "gemma3_text": Family(_GEMMA),
    "gemma3": Family(_GEMMA3 | {"text_config": _GEMMA, "mm_tokens_per_image": 4}, _INSIDE),
    "gpt_oss": Family(_HEAD_DIM | _SLIDING | _EXPERTS | {"rope_parameters": _PLAIN_ROPE}),
    "phi3": Family(COMMON | _UNSLID),
    "phi3-longrope": Family(COMMON | _UNSLID | _LONGROPE, model_type="phi3"),
    "ministral3": Family(_HEAD_DIM | {"rope_parameters": _YARN}),
    "mistral3": Family(_MISTRAL3 | {"text_config": _MISTRAL}, _INSIDE),
    "deepseek_v2": Family(_MLA),
    "deepseek_v3": Family(_MLA),
    "gpt2": Family(_GPT2, _AT_H),
    "gpt_neox": Family(COMMON | {"rotary_pct": 0.25}, "gpt_neox.layers"),
    "gpt_neo": Family(IDS | _NEO, _AT_H, packs=False),
    "opt": Family(_OPT | {"word_embed_proj_dim": WIDTH}, _DECODER),
    "opt-projected": Family(
        _OPT | {"word_embed_proj_dim": 20, "do_layer_norm_before": False},
        _DECODER,
        model_type="opt",
    ),
    "bloom": Family(IDS | _BLOOM, _AT_H, packs=False),
    "falcon": Family(COMMON | _ROTATED | _OLD | {"multi_query": True}, _AT_H, packs=False),
    "falcon-alibi": Family(COMMON | _ALIBI | _OLD, _AT_H, packs=False, model_type="falcon"),
    "falcon-new": Family(COMMON | _ROTATED | _NEW, _AT_H, packs=False, model_type="falcon"),
    "cohere": Family(COMMON | {"logit_scale": 0.25}),
    "granite": Family(COMMON | _MULTIPLIED | {"logits_scaling": 3.0}),
    "olmo2": Family(COMMON),
    "stablelm": Family(COMMON),
    "smollm3": Family(COMMON | {"no_rope_layer_interval": 3}),
    "phi": Family(COMMON),
    "glm4": Family(_HEAD_DIM),
    "llama4_text": Family(_HEAD_DIM | _CHUNKED | {"num_experts_per_tok": 1}, packs=False),
    "lfm2": Family(COMMON | _CONVS, packs=False, invariant=False),
    "mamba": Family(_TRUNK | {"state_size": 4}, "backbone.layers", packs=False, invariant=False),
}
PACKED = tuple(name for name, family in FAMILIES.items() if family.packs)


def type_of(name: str) -> str:
    """Return transformers' model type of a family."""
    return FAMILIES[name].model_type or name


def config_of(name: str, **overrides: Any) -> Any:
    """Return the config of a tiny model; overrides apply to the text part of a wrapper."""
    options = FAMILIES[name].options
    if "text_config" in options:
        overrides = {"text_config": options["text_config"] | overrides}
    return AutoConfig.for_model(type_of(name), **options | overrides)


def build(
    name: str, *, seed: int = 0, dtype: torch.dtype = torch.float32, **overrides: Any
) -> PreTrainedModel:
    """Return a tiny random model of the family in eval mode.

    Weights are drawn in float32 first, so dtypes share a model. Overrides replace options of the
    (text) config.
    """
    torch.manual_seed(seed)
    own: Any = {"mistral3": Mistral3ForConditionalGeneration._from_config}
    make = own.get(name, AutoModelForCausalLM.from_config)
    model: PreTrainedModel = make(config_of(name, **overrides))
    enliven(model, seed)
    return model.to(dtype).eval()


def enliven(model: nn.Module, seed: int) -> None:
    """Draw every parameter again, large enough that each block changes the logits."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        with torch.no_grad():
            if "norm" in name.lower() or "ln_" in name:  # Gemma applies 1 + w: both are near one
                parameter.add_(0.3 * noise)
            elif parameter.ndim == 1 or name.endswith(("A_log", "bias")):
                parameter.add_(0.2 * noise)
            elif "embed" in name or "wte" in name or "wpe" in name or "lm_head" in name:
                parameter.copy_(0.4 * noise)
            else:
                parameter.copy_(1.4 * noise / math.sqrt(parameter.shape[-1]))


@cache
def tokenizer(vocab: int = VOCAB) -> PreTrainedTokenizerFast:
    """Return a double: words `w3 w17 ...` are one token each, and `<s>` is added in front."""
    words = {"<pad>": 0, "<s>": 1, "</s>": 2} | {f"w{i}": i for i in range(3, vocab)}
    raw = Tokenizer(models.WordLevel(words, unk_token="<pad>"))
    raw.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    raw.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return PreTrainedTokenizerFast(
        tokenizer_object=raw, bos_token="<s>", eos_token="</s>", pad_token="<pad>"
    )


def talker(template: str | None) -> PreTrainedTokenizerFast:
    """Return a new tokenizer with this chat template, not the shared one."""
    double = PreTrainedTokenizerFast(tokenizer_object=tokenizer().backend_tokenizer)
    double.chat_template = template
    return double


def save(folder: Path, name: str = "llama", **overrides: Any) -> Path:
    """Save a tiny model and the tokenizer double as a checkpoint."""
    build(name, **overrides).save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return folder


def text_of(ids: list[int] | tuple[int, ...]) -> str:
    """Return the text that the double encodes as these ids, without its `<s>`."""
    return " ".join(f"w{i}" for i in ids)


def random_items(
    seed: int,
    count: int,
    *,
    candidates: tuple[int, int] = (2, 5),
    prompt: tuple[int, int] = (2, 12),
) -> list[Item]:
    """Return items of the double's words with a common preamble, some with equal beginnings.

    Candidates, and prompt words after the preamble of three, have a minimum and maximum number.
    """
    draw = random.Random(seed)

    def words(length: int) -> list[int]:
        return [draw.randrange(3, VOCAB - 8) for _ in range(length)]

    preamble, items = words(3), []
    for place in range(count):
        beginning = words(1)
        ends: list[list[int]] = []
        for _ in range(draw.randint(*candidates)):
            shared = beginning if draw.random() < 0.4 else []
            ends.append(shared + words(draw.randint(1, 3)))
        text = text_of(preamble + words(draw.randint(*prompt)))
        items.append(Item(text, tuple(text_of(e) for e in ends), id=str(place)))
    return items
