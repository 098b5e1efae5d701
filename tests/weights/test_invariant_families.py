"""I(M) of every family: folder, memory and an independent slicing agree; so does the KV cache.

The cache is the independent witness for fused layouts: what a model stores as keys and values of
its first token (where rotation is the identity) is what its K and V rows give, in its own code.
"""

import math
from collections.abc import Callable
from statistics import fmean, pstdev
from typing import Any

import families
import pytest
import torch
from planted import EXACT
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from lastword.errors import CheckpointError, InvariantError
from lastword.theta import Theta
from lastword.weights.checkpoint import ModelCheckpoint
from lastword.weights.invariant import model_invariant, read_invariant
from lastword.weights.layouts import (
    Projection,
    Projections,
    find_projections,
    find_stack,
    text_part,
)

DEFINED = [f.name for f in families.FAMILIES.values() if f.invariant]
WIDTH = families.WIDTH

Parts = tuple[Tensor, Tensor, Tensor]


def spread(weight: Tensor) -> float:
    lengths = [math.sqrt(math.fsum(x**2 for x in row)) for row in weight.tolist()]
    return pstdev(lengths) / fmean(lengths)


def separate(block: Any) -> Parts:
    attention = block.self_attn if hasattr(block, "self_attn") else block.attn.attention
    output = next(o for n in ("o_proj", "out_proj", "dense") if (o := getattr(attention, n, None)))
    return attention.k_proj.weight, attention.v_proj.weight, output.weight


def conv(block: Any) -> Parts:
    return (
        block.attn.c_attn.weight[:, WIDTH : 2 * WIDTH].T,
        block.attn.c_attn.weight[:, 2 * WIDTH :].T,
        block.attn.c_proj.weight.T,
    )


def latent(block: Any) -> Parts:
    attention = block.self_attn
    values = attention.kv_b_proj.weight.unflatten(0, (4, 16))[:, 8:].flatten(0, 1)
    return attention.kv_a_proj_with_mqa.weight[:10], values, attention.o_proj.weight


def phi3(block: Any) -> Parts:
    fused = block.self_attn.qkv_proj.weight
    return fused[32:48], fused[48:64], block.self_attn.o_proj.weight


def interleaved(per_group: int) -> Callable[[Any], Parts]:
    def parts(block: Any) -> Parts:
        attention = getattr(block, "self_attention", None) or block.attention
        fused = attention.query_key_value.weight.unflatten(0, (-1, per_group, 8))
        k, v = fused[:, -2].flatten(0, 1), fused[:, -1].flatten(0, 1)
        return k, v, attention.dense.weight

    return parts


FUSED: dict[str, Callable[[Any], Parts]] = {
    "phi3": phi3,
    "phi3-longrope": phi3,
    "gpt2": conv,
    "deepseek_v2": latent,
    "deepseek_v3": latent,
    "gpt_neox": interleaved(3),
    "bloom": interleaved(3),
    "falcon": interleaved(6),
    "falcon-alibi": interleaved(3),
    "falcon-new": interleaved(4),
}


def independent(name: str, model: PreTrainedModel) -> float:
    """I(M) in plain Python from the modules, block numbers 1 and 3 of 6."""
    family = families.FAMILIES[name]
    blocks: Any = model.get_submodule(family.blocks)
    parts = FUSED.get(name, separate)
    (k, v_early, _), (_, v_middle, o) = parts(blocks[1]), parts(blocks[3])
    norm: Any = model.get_submodule(family.norm).weight if family.norm else torch.ones(1)
    phi_N = fmean(abs(w) for w in norm.tolist())
    return phi_N * spread(o) / (spread(k) * spread(v_early) / spread(v_middle))


@pytest.mark.parametrize("name", DEFINED)
def test_folder_memory_and_modules_agree(name, tmp_path):
    model = families.build(name)
    model.save_pretrained(tmp_path)
    memory = model_invariant(model, theta=Theta())
    folder = read_invariant(tmp_path, theta=Theta())
    assert memory.value == pytest.approx(independent(name, model), **EXACT)
    assert folder.value == pytest.approx(memory.value, **EXACT)
    assert (folder.blocks, folder.depth, folder.layout) == ((1, 3), 6, memory.layout)


def test_a_model_without_attention_is_refused():
    with pytest.raises(InvariantError, match="mamba"):
        model_invariant(families.build("mamba"), theta=Theta())


def test_memory_reads_the_edited_weights():
    model = families.build("llama")
    before = model_invariant(model, theta=Theta())
    with torch.no_grad():
        model.model.norm.weight.mul_(2)
    after = model_invariant(model, theta=Theta())
    assert after.value == pytest.approx(2 * before.value, **EXACT)


def test_an_adapter_is_to_be_merged_first():
    model = families.build("llama")
    attention = model.model.layers[1].self_attn
    attention.k_proj.lora_A = nn.Linear(WIDTH, 2, bias=False)
    with pytest.raises(InvariantError, match="merge it first"):
        model_invariant(model, theta=Theta())


def test_offloaded_weights_are_fetched(tmp_path):
    accelerate = pytest.importorskip("accelerate")
    model = families.build("phi3")
    before = model_invariant(model, theta=Theta())
    accelerate.disk_offload(model, tmp_path)
    assert model.model.norm.weight.is_meta
    assert model_invariant(model, theta=Theta()) == before


def test_weights_that_were_never_loaded_are_refused():
    with torch.device("meta"):
        model = families.build("llama")
    with pytest.raises(CheckpointError, match="has no data"):
        model_invariant(model, theta=Theta())


_SMALL = {"vocab_size": 64, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
_GPT = _SMALL | {"n_embd": 32, "n_layer": 4, "n_head": 4, "n_positions": 16}
MORE: dict[str, tuple[str, dict]] = {
    "gpt_bigcode": ("gpt_bigcode", _GPT | {"multi_query": True}),
    "gpt_bigcode-heads": ("gpt_bigcode", _GPT | {"multi_query": False}),
    "mpt": ("mpt", _SMALL | {"d_model": 32, "n_layers": 4, "n_heads": 4, "max_seq_len": 16}),
}
# Longrope scales its rotation, and MLA caches its latent: neither cache holds the rows' own values.
UNWITNESSED = ("phi3-longrope", "deepseek_v2", "deepseek_v3")
WITNESSED = [*(name for name in FUSED if name not in UNWITNESSED), *MORE]


def model_of(name: str) -> PreTrainedModel:
    if name not in MORE:
        return families.build(name)
    model_type, options = MORE[name]
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(model_type, **options))
    families.enliven(model, 0)
    return model.eval()


def attention_of(model: PreTrainedModel, block: int) -> Projections:
    config = text_part(model.config.to_dict())
    names = ModelCheckpoint(model).names
    modules = frozenset(n.removesuffix(".weight") for n in names if n.endswith(".weight"))
    return find_projections(find_stack(modules, config), block, config)


def predicted(model: PreTrainedModel, part: Projection, inputs: dict[str, Tensor]) -> Tensor:
    """What the selected rows and their bias give for the module's own input."""
    module: Any = model.get_submodule(part.module)
    weight = module.weight.T if part.transposed else module.weight
    bias = torch.zeros(len(weight)) if module.bias is None else module.bias
    rows = torch.cat([weight, bias[:, None]], dim=1)
    assert part.split is not None
    rows = part.split.select(rows, part.module)
    return rows[:, :-1] @ inputs[part.module] + rows[:, -1]


def distinct_heads(cached: Tensor, count: int) -> Tensor:
    """Cached rows of the distinct key-value heads; a cache may repeat each for its queries."""
    heads = cached[0, :, 0]
    return heads[:: len(heads) * heads.shape[1] // count].flatten()


@pytest.mark.parametrize("name", WITNESSED)
def test_the_cache_holds_what_the_rows_give(name):
    model = model_of(name)
    attention = attention_of(model, 1)
    inputs: dict[str, Tensor] = {}
    for part in (attention.key, attention.value):
        model.get_submodule(part.module).register_forward_pre_hook(
            lambda _, args, path=part.module: inputs.update({path: args[0].flatten()})
        )
    with torch.no_grad():
        cache = model(torch.tensor([[5]]), use_cache=True).past_key_values
        value = predicted(model, attention.value, inputs)
        keys, values = cache.layers[1].keys, cache.layers[1].values
        torch.testing.assert_close(distinct_heads(values, len(value)), value, rtol=1e-5, atol=1e-5)
        key = predicted(model, attention.key, inputs)
        torch.testing.assert_close(distinct_heads(keys, len(key)), key, rtol=1e-5, atol=1e-5)
