"""Locations of K, V, O and the final norm in a checkpoint, found by name or by a table.

Separate projections (`k_proj`, `v_proj`, and one of four names for the output) and MLA's factors
are found by their names. The name of a fused projection does not show the order of its rows, so
those families are in `FUSED`, and other ones are refused.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from jaxtyping import Float
from torch import Tensor, nn

from lastword.errors import InvariantError

Config = Mapping[str, Any]

# Keys of the text model's config in a wrapper's.
TEXT_CONFIGS = ("text_config", "llm_config", "language_config", "thinker_config")
ATTENTIONS = ("self_attn", "self_attention", "attn", "attention", "attn.attention")
OUTPUTS = ("o_proj", "out_proj", "dense", "c_proj")
# Names of the norm between the last block and the head.
FINAL_NORMS = (
    "norm",
    "final_layernorm",
    "final_layer_norm",
    "ln_f",
    "norm_f",
    "final_norm",
    "ln_out",
    "embedding_norm",  # LFM2: the final norm, despite its name
    "layer_norm",
)
# Modules of some trunks after the final norm, before the head (OPT-350m's output projection).
AFTER_NORM = ("project_out",)
# Norms outside the blocks that come before the first one.
FIRST_NORMS = ("word_embeddings_layernorm", "embed_norm", "embedding_layernorm")
# Model types whose norm stores w and applies 1 + w.
OFFSET_NORMS = frozenset(
    "gemma gemma2 gemma3 gemma3_text minimax_m3_vl_text nemotron qwen3_5_moe_text qwen3_5_text "
    "qwen3_next recurrent_gemma step3p5 vaultgemma".split()
)
HEADS = ("num_attention_heads", "n_head", "num_heads", "n_heads")
KV_HEADS = ("num_key_value_heads", "num_kv_heads", "n_head_kv")
_WIDTH = ("hidden_size", "n_embd", "d_model")
_DEPTH = ("num_hidden_layers", "n_layer", "num_layers", "n_layers")
_BLOCK = re.compile(r"^(?P<stack>(?:.*?\.)?(?:layers|h|blocks)\.)(?P<block>\d+)\.(?P<module>.+)$")
# Words in the path of a stack that is not the text decoder's.
_OTHER_STACKS = frozenset(
    "vision visual image audio speech vit projector connector resampler perceiver mtp".split()
)
GIVE = "give its value: invariant=VALUE (in a command --load invariant=VALUE)"


@dataclass(frozen=True)
class Projection:
    """One projection of one block: a module's rows, or one part of every group of them."""

    module: str
    groups: int = 1
    sizes: tuple[int, ...] = ()  # rows of each part of a group; () if all are the projection's
    part: int = 0
    transposed: bool = False  # stored [in, out] (GPT-2's Conv1D)

    def select(self, stored: Float[Tensor, "_ _"]) -> Float[Tensor, "selected columns"]:
        """Return the projection's rows of the stored matrix."""
        matrix = stored.T if self.transposed else stored
        group = sum(self.sizes)
        if not group:
            return matrix
        if len(matrix) != self.groups * group:
            raise InvariantError(
                f"{self.module} has {len(matrix)} rows where its layout has {self.groups} x "
                f"{group}: config and weights disagree; {GIVE}"
            )
        start = sum(self.sizes[: self.part])
        grouped = matrix.reshape(self.groups, group, -1)
        return grouped[:, start : start + self.sizes[self.part]].reshape(-1, matrix.shape[1])


class Projections(NamedTuple):
    """K, V and O of one block, and the layout's name."""

    layout: str
    key: Projection
    value: Projection
    output: Projection


class Stack(NamedTuple):
    """The text decoder's list of blocks within a checkpoint."""

    path: str  # before a block's number, such as `model.layers.`
    depth: int
    modules: dict[int, set[str]]  # paths within each block
    norm: str | None  # path of the final norm, if there is one with a weight


class Fused(NamedTuple):
    """A family's fused projection: paths in a block, and the rows of (q, k, v) in each group."""

    qkv: str
    output: str
    rows: Callable[[Config], tuple[int, tuple[int, int, int]]]
    transposed: bool = False


def first_module(trunk: nn.Module, names: tuple[str, ...]) -> nn.Module | None:
    """Return the trunk's module with the first of these names that it has; else None."""
    modules = (getattr(trunk, name, None) for name in names)
    return next((module for module in modules if isinstance(module, nn.Module)), None)


def text_part(config: Config) -> Config:
    """Return the text model's part of a config, which may be the config itself."""
    for key in TEXT_CONFIGS:
        inner = config.get(key)
        if isinstance(inner, Mapping):
            return text_part({"model_type": config.get("model_type"), **inner})
    return config


def find_stack(modules: Iterable[str], config: Config) -> Stack:
    """Return the text decoder's blocks, the one list of modules with the config's number."""
    stacks: dict[str, dict[int, set[str]]] = {}
    for match in filter(None, map(_BLOCK.match, modules)):
        if not _OTHER_STACKS & set(re.split(r"[._]", match["stack"])):
            blocks = stacks.setdefault(match["stack"], {})
            blocks.setdefault(int(match["block"]), set()).add(match["module"])
    depth = _number(config, _DEPTH)  # a config may give any number, or omit its type's default
    drafts = _number(config, ("num_nextn_predict_layers",)) or 0  # blocks that draft later tokens
    complete = {}
    for path, blocks in stacks.items():
        count = depth or len(blocks)
        if 0 < count <= len(blocks) <= count + drafts and blocks.keys() >= {*range(count)}:
            complete[path] = count
    if len(complete) != 1:
        lists = sorted(f"{len(blocks)} in {path}" for path, blocks in stacks.items()) or ["none"]
        raise InvariantError(
            f"the config has {depth or 'some'} text blocks, and the checkpoint "
            f"{', '.join(lists)}: correct the config, or {GIVE}"
        )
    path, count = complete.popitem()
    return Stack(path, count, stacks[path], _final_norm(path, modules))


def _final_norm(stack: str, modules: Iterable[str]) -> str | None:
    root = re.sub(r"(layers|h|blocks)\.$", "", stack)
    beside = [m.removeprefix(root) for m in modules if m.startswith(root)]
    if norm := next((name for name in FINAL_NORMS if name in beside), None):
        return root + norm
    unknown = [m for m in beside if "." not in m and "norm" in m and m not in FIRST_NORMS]
    if unknown:
        raise InvariantError(f"cannot tell whether {root}{unknown[0]} is the final norm; {GIVE}")
    return None


def find_projections(stack: Stack, block: int, config: Config) -> Projections:
    """Return K, V and O of a block, which Mamba, hybrids and unknown fused layouts lack."""
    inside, prefix = stack.modules[block], f"{stack.path}{block}."
    outputs = [] if _is_linear(config, block) else [f"{a}.{o}" for a in ATTENTIONS for o in OUTPUTS]
    for output in (output for output in outputs if output in inside):
        attention, o = output.rpartition(".")[0], Projection(prefix + output)
        if {f"{attention}.k_proj", f"{attention}.v_proj"} <= inside:
            k, v = (Projection(f"{prefix}{attention}.{n}_proj") for n in "kv")
            return Projections("separate", k, v, o)
        if {f"{attention}.kv_a_proj_with_mqa", f"{attention}.kv_b_proj"} <= inside:
            return Projections("latent", *_latent(f"{prefix}{attention}.", config), o)
    fused = FUSED.get(str(config.get("model_type")))
    if fused is not None and {fused.qkv, fused.output} <= inside:
        groups, sizes = fused.rows(config)
        transposed, path = fused.transposed, prefix + fused.qkv
        k, v = (Projection(path, groups, sizes, part, transposed) for part in (1, 2))
        name = "fused-rowwise" if groups == 1 else "fused-grouped"
        return Projections(name, k, v, Projection(prefix + fused.output, transposed=transposed))
    known = ", ".join(sorted(m for m in inside if "attn" in m or "attention" in m)[:4])
    raise InvariantError(
        f"block {block} of model type {config.get('model_type')} has no K, V and O projections in "
        f"a known layout ({known or 'no attention'}), so I(M) is undefined; {GIVE}"
    )


def _latent(attention: str, config: Config) -> tuple[Projection, Projection]:
    """Return MLA's low-rank factors: latent rows for K, value rows for V (method, section 7)."""
    # `kv_a_proj_with_mqa` has the `kv_lora_rank` rows of the latent, then the `qk_rope_head_dim`
    # rows of the rotary key that all heads share. The rotary rows are not a low-rank factor, so
    # they are not part of K. `kv_b_proj` has, per head, the rows of keys and then of values.
    latent = (_need(config, ("kv_lora_rank",)), _need(config, ("qk_rope_head_dim",)))
    sizes = (_need(config, ("qk_nope_head_dim",)), _need(config, ("v_head_dim",)))
    value = Projection(f"{attention}kv_b_proj", _need(config, HEADS), sizes, 1)
    return Projection(f"{attention}kv_a_proj_with_mqa", 1, latent), value


def _is_linear(config: Config, block: int) -> bool:
    types = config.get("layer_types")
    kind = types[block] if isinstance(types, list | tuple) and block < len(types) else ""
    return any(word in str(kind) for word in ("linear", "mamba", "conv", "recurrent"))


def _number(config: Config, keys: tuple[str, ...]) -> int | None:
    return next((v for v in map(config.get, keys) if type(v) is int), None)


def _need(config: Config, keys: tuple[str, ...]) -> int:
    if (value := _number(config, keys)) is None:
        raise InvariantError(
            f"the config of model type {config.get('model_type')} gives no {' or '.join(keys)}, "
            f"which its layout needs; {GIVE}"
        )
    return value


def _head_size(config: Config) -> int:
    return _number(config, ("head_dim",)) or _need(config, _WIDTH) // _need(config, HEADS)


def _rowwise(config: Config, kv_heads: int | None = None) -> tuple[int, tuple[int, int, int]]:
    heads, size = _need(config, HEADS), _head_size(config)
    kv = size * (kv_heads or _number(config, KV_HEADS) or heads)
    return 1, (heads * size, kv, kv)


def _per_head(config: Config) -> tuple[int, tuple[int, int, int]]:
    size = _head_size(config)
    return _need(config, HEADS), (size, size, size)


def _multi_query(config: Config) -> tuple[int, tuple[int, int, int]]:
    """Return the groups of Falcon: by k/v heads, with one k and v, or by head."""
    heads, size = _need(config, HEADS), _head_size(config)
    if config.get("new_decoder_architecture", False):
        groups = _number(config, KV_HEADS) or heads
        return groups, (heads // groups * size, size, size)
    return _rowwise(config, 1) if config.get("multi_query", True) else _per_head(config)


FUSED: dict[str, Fused] = {
    "bloom": Fused("self_attention.query_key_value", "self_attention.dense", _per_head),
    "falcon": Fused("self_attention.query_key_value", "self_attention.dense", _multi_query),
    "gpt2": Fused("attn.c_attn", "attn.c_proj", _rowwise, transposed=True),
    "gpt_neox": Fused("attention.query_key_value", "attention.dense", _per_head),
    "phi3": Fused("self_attn.qkv_proj", "self_attn.o_proj", _rowwise),
}
