"""Checkpoints with planted row norms, one per attention layout, written row by row.

A planted row of norm 5k contains 3k and 4k: whole numbers, exact in every dtype, with an exact
norm. The norms of every projection of every block differ, so reading a wrong block, projection or
row gives another number.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from lastword.errors import CheckpointError
from lastword.model.weights.invariant import read_invariant
from lastword.rule.theta import Theta

DEPTH, HEADS, KV, SIZE, WIDTH = 5, 4, 2, 2, 8
EARLY, MIDDLE = 1, 2  # floor(0.2 * 5), floor(0.5 * 5)
RANK, ROPE, NOPE, VALUE = 6, 2, 3, 2
NORM = [1.5, -0.25, 2.0, 0.75, 1.0, -3.0, 0.5, 1.0]  # mean |w| = 1.25, mean |1 + w| = 1.9375

EXACT = {"rel": 1e-9, "abs": 0.0}

Rows = list[list[float]]


def factors_of(role: str, block: int, count: int) -> list[int]:
    """Return k of every row of a projection: 1 to 5, different per block and role."""
    start = "qkvo".index(role) + 3 * block
    return [1 + (i * i * (block + 2) + start * (i % 3 + 1)) % 5 for i in range(count)]


def rows_of(role: str, block: int, count: int, columns: int = WIDTH) -> Rows:
    rows = [[0.0] * columns for _ in range(count)]
    for i, k in enumerate(factors_of(role, block, count)):
        rows[i][i % columns], rows[i][(i + 1) % columns] = 3.0 * k, 4.0 * k
    return rows


def planted_rcv(role: str, block: int, count: int) -> float:
    norms = [5 * k for k in factors_of(role, block, count)]
    return pstdev(norms) / fmean(norms)


def transposed(rows: Rows) -> Rows:
    return [list(column) for column in zip(*rows, strict=True)]


def heads_of(rows: Rows, size: int = SIZE) -> list[Rows]:
    return [rows[i : i + size] for i in range(0, len(rows), size)]


@dataclass(frozen=True)
class Layout:
    """A family's layout of attention weights.

    Attributes:
        config: The config.json.
        place: Maps a block to the names and rows of its tensors.
        blocks: Prefix of a block's number.
        norm: Name of the final norm's tensor.
        kv_heads: Number of key-value heads.
        k_rows: Rows of W_K.
        v_rows: Rows of W_V.
        decoys: Further tensors, of stacks that must not be read.
    """

    config: dict[str, Any]
    place: Callable[[int], dict[str, Rows]]
    blocks: str = "model.layers."
    norm: str = "model.norm.weight"
    k_rows: int = KV * SIZE
    v_rows: int = KV * SIZE
    decoys: dict[str, Any] = field(default_factory=dict)

    def tensors(self, dtype: torch.dtype = torch.float32) -> dict[str, torch.Tensor]:
        named = {
            f"{self.blocks}{block}.{name}": rows
            for block in range(DEPTH)
            for name, rows in self.place(block).items()
        }
        tensors = {n: torch.tensor(r, dtype=dtype) for n, r in (named | self.decoys).items()}
        return tensors | {self.norm: torch.tensor(NORM, dtype=dtype)}

    @property
    def invariant(self) -> float:
        phi_K = planted_rcv("k", EARLY, self.k_rows)
        phi_V = planted_rcv("v", EARLY, self.v_rows) / planted_rcv("v", MIDDLE, self.v_rows)
        return 1.25 * planted_rcv("o", MIDDLE, WIDTH) / (phi_K * phi_V)


def write(
    folder: Path, config: dict[str, Any], tensors: dict[str, torch.Tensor], shards: int = 1
) -> Path:
    """Write a checkpoint folder, with tensors distributed over the shards."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    if shards == 1:
        save_file(tensors, folder / "model.safetensors")
        return folder
    names = sorted(tensors)
    files: dict[str, str] = {}
    for shard in range(shards):
        file = f"model-{shard + 1:05d}-of-{shards:05d}.safetensors"
        content = {n: tensors[n] for n in names[shard::shards]}
        save_file(content, folder / file)
        files |= dict.fromkeys(content, file)
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {}, "weight_map": files})
    )
    return folder


def value(source: Path | str) -> float:
    return read_invariant(source, theta=Theta()).value


def refusal(source: Path | str, error: type[Exception] = CheckpointError, **options: Any) -> str:
    """Return the one-line error of reading I(M)."""
    with pytest.raises(error) as caught:
        read_invariant(source, theta=Theta(), **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def _qkvo(block: int, kv_heads: int) -> tuple[Rows, Rows, Rows, Rows]:
    k, v = (rows_of(role, block, kv_heads * SIZE) for role in "kv")
    return rows_of("q", block, HEADS * SIZE), k, v, rows_of("o", block, WIDTH)


def separate(prefix: str, output: str, kv_heads: int = KV) -> Callable[[int], dict[str, Rows]]:
    def place(block: int) -> dict[str, Rows]:
        q, k, v, o = _qkvo(block, kv_heads)
        named = {"q_proj": q, "k_proj": k, "v_proj": v, output: o}
        return {f"{prefix}.{name}.weight": rows for name, rows in named.items()}

    return place


def rowwise(qkv: str, output: str, kv_heads: int) -> Callable[[int], dict[str, Rows]]:
    def place(block: int) -> dict[str, Rows]:
        q, k, v, o = _qkvo(block, kv_heads)
        return {f"{qkv}.weight": q + k + v, f"{output}.weight": o}

    return place


def grouped(qkv: str, output: str, kv_heads: int) -> Callable[[int], dict[str, Rows]]:
    """Fuse, per key-value head, the queries that use it, its key and its value."""

    def place(block: int) -> dict[str, Rows]:
        q, k, v, o = _qkvo(block, kv_heads)
        share = HEADS // kv_heads
        fused: Rows = []
        for group, (key, value) in enumerate(zip(heads_of(k), heads_of(v), strict=True)):
            for query in heads_of(q)[group * share : (group + 1) * share]:
                fused += query
            fused += key + value
        return {f"{qkv}.weight": fused, f"{output}.weight": o}

    return place


def _gpt2(block: int) -> dict[str, Rows]:
    q, k, v, o = _qkvo(block, HEADS)
    return {"attn.c_attn.weight": transposed(q + k + v), "attn.c_proj.weight": transposed(o)}


def _latent(block: int) -> dict[str, Rows]:
    values = heads_of(rows_of("v", block, HEADS * VALUE, RANK), VALUE)
    keys = heads_of(rows_of("q", block, HEADS * NOPE, RANK), NOPE)
    up: Rows = []
    for key, value in zip(keys, values, strict=True):
        up += key + value
    latent, rope = rows_of("k", block, RANK), [[100.0] * WIDTH] * ROPE
    return {
        "self_attn.kv_a_proj_with_mqa.weight": latent + rope,
        "self_attn.kv_b_proj.weight": up,
        "self_attn.o_proj.weight": rows_of("o", block, WIDTH),
    }


_PLAIN = {
    "num_hidden_layers": DEPTH,
    "hidden_size": WIDTH,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV,
}
_MHA = {"num_hidden_layers": DEPTH, "hidden_size": WIDTH, "num_attention_heads": HEADS}
_GPT = {"n_layer": DEPTH, "n_embd": WIDTH, "n_head": HEADS}
_ALL_HEADS = {"k_rows": HEADS * SIZE, "v_rows": HEADS * SIZE}
_ONE_HEAD = {"k_rows": SIZE, "v_rows": SIZE}
_VISION = {
    f"vision_tower.vision_model.encoder.layers.{block}.self_attn.{name}.weight": [[1.0, 2.0]] * 3
    for block in range(DEPTH)
    for name in ("q_proj", "k_proj", "v_proj", "out_proj")
}
_FALCON = ("self_attention.query_key_value", "self_attention.dense")
_NEOX = ("attention.query_key_value", "attention.dense")
_AT_H = {"blocks": "transformer.h.", "norm": "transformer.ln_f.weight"}


def _wrapper(stem: str, outer: str, inner: str, config: dict[str, Any]) -> Layout:
    """Return a text model next to a vision tower."""
    return Layout(
        {"model_type": outer, "text_config": config | {"model_type": inner}},
        separate("self_attn", "o_proj"),
        blocks=f"{stem}.layers.",
        norm=f"{stem}.norm.weight",
        decoys=_VISION,
    )


LAYOUTS: dict[str, Layout] = {
    "llama": Layout(_PLAIN | {"model_type": "llama"}, separate("self_attn", "o_proj")),
    "phi": Layout(
        _PLAIN | {"model_type": "phi"},
        separate("self_attn", "dense"),
        norm="model.final_layernorm.weight",
    ),
    "opt": Layout(
        _MHA | {"model_type": "opt"},
        separate("self_attn", "out_proj", HEADS),
        blocks="model.decoder.layers.",
        norm="model.decoder.final_layer_norm.weight",
        **_ALL_HEADS,
    ),
    "gpt_neo": Layout(
        {"model_type": "gpt_neo", "num_layers": DEPTH, "hidden_size": WIDTH, "num_heads": HEADS},
        separate("attn.attention", "out_proj", HEADS),
        **_AT_H,
        **_ALL_HEADS,
    ),
    "wrapper-inside": _wrapper("language_model.model", "gemma3", "gemma3_text", _PLAIN),
    "wrapper-outside": _wrapper("model.language_model", "mistral3", "ministral3", _PLAIN),
    # LLaVA 1.5's text_config omits values equal to the default.
    "wrapper-silent": _wrapper("language_model.model", "llava", "llama", {}),
    "phi3": Layout(
        _PLAIN | {"model_type": "phi3"}, rowwise("self_attn.qkv_proj", "self_attn.o_proj", KV)
    ),
    "gpt2": Layout(_GPT | {"model_type": "gpt2"}, _gpt2, **_AT_H, **_ALL_HEADS),
    "gpt2-bare": Layout(
        _GPT | {"model_type": "gpt2"}, _gpt2, blocks="h.", norm="ln_f.weight", **_ALL_HEADS
    ),
    "gpt_neox": Layout(
        _MHA | {"model_type": "gpt_neox"},
        grouped(*_NEOX, HEADS),
        blocks="gpt_neox.layers.",
        norm="gpt_neox.final_layer_norm.weight",
        **_ALL_HEADS,
    ),
    "bloom": Layout(
        {"model_type": "bloom", "n_layer": DEPTH, "hidden_size": WIDTH, "n_head": HEADS},
        grouped(*_FALCON, HEADS),
        **_AT_H,
        **_ALL_HEADS,
        decoys={"transformer.word_embeddings_layernorm.weight": [9.0] * WIDTH},
    ),
    "falcon-7b": Layout(
        _MHA | {"model_type": "falcon", "multi_query": True},
        rowwise(*_FALCON, 1),
        **_AT_H,
        **_ONE_HEAD,
    ),
    "falcon-40b": Layout(
        _MHA | {"model_type": "falcon", "new_decoder_architecture": True, "num_kv_heads": KV},
        grouped(*_FALCON, KV),
        **_AT_H,
    ),
    "falcon-rw": Layout(
        _MHA | {"model_type": "falcon", "multi_query": False},
        grouped(*_FALCON, HEADS),
        **_AT_H,
        **_ALL_HEADS,
    ),
    "deepseek_v3": Layout(
        _MHA
        | {
            "model_type": "deepseek_v3",
            "num_nextn_predict_layers": 1,
            "kv_lora_rank": RANK,
            "qk_rope_head_dim": ROPE,
            "qk_nope_head_dim": NOPE,
            "v_head_dim": VALUE,
        },
        _latent,
        k_rows=RANK,
        v_rows=HEADS * VALUE,
        # The multi-token-prediction block that follows the last one in the hub's files.
        decoys={f"model.layers.{DEPTH}.self_attn.o_proj.weight": [[1.0, 2.0]]},
    ),
}
