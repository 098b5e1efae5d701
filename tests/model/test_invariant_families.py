"""I(M) of every family: folder and memory agree, and the rows agree with the KV cache.

The cache is an independent check of fused layouts: the keys and values that the model's code
stores for its first token (where rotation is the identity) are what the K and V rows give.
"""

from typing import Any

import families
import pytest
import torch
from planted import EXACT
from torch import Tensor, nn
from transformers import PreTrainedModel

from lastword.errors import CheckpointError, InvariantError
from lastword.model.weights.checkpoint import ModelCheckpoint
from lastword.model.weights.dequantise import modules_of
from lastword.model.weights.invariant import model_invariant, read_invariant
from lastword.model.weights.layouts import (
    Projection,
    Projections,
    find_projections,
    find_stack,
    text_part,
)
from lastword.rule.theta import Theta

DEFINED = [name for name, f in families.FAMILIES.items() if f.invariant]


@pytest.mark.parametrize("name", DEFINED)
def test_folder_and_memory_agree(name, tmp_path):
    model = families.build(name)
    model.save_pretrained(tmp_path)
    memory = model_invariant(model, theta=Theta())
    folder = read_invariant(tmp_path, theta=Theta())
    assert folder.value == pytest.approx(memory.value, **EXACT)
    assert (folder.blocks, folder.depth, folder.layout) == ((1, 3), 6, memory.layout)


def test_the_invariant_in_memory_is_that_of_the_current_merged_weights():
    model = families.build("llama")
    before = model_invariant(model, theta=Theta())
    with torch.no_grad():
        model.model.norm.weight.mul_(2)
    after = model_invariant(model, theta=Theta())
    assert after.value == pytest.approx(2 * before.value, **EXACT)
    model.model.layers[1].self_attn.k_proj.lora_A = nn.Linear(families.WIDTH, 2, bias=False)
    with pytest.raises(InvariantError, match="merge it first"):
        model_invariant(model, theta=Theta())


def test_offloaded_weights_are_fetched_and_absent_ones_refused(tmp_path):
    accelerate = pytest.importorskip("accelerate")
    model = families.build("phi3")
    before = model_invariant(model, theta=Theta())
    accelerate.disk_offload(model, tmp_path)
    assert model.model.norm.weight.is_meta
    assert model_invariant(model, theta=Theta()) == before
    with torch.device("meta"):
        model = families.build("llama")
    with pytest.raises(CheckpointError, match="has no data"):
        model_invariant(model, theta=Theta())


# Fused layouts, except longrope, which scales its rotation, and MLA, which caches its latent.
WITNESSED = ["phi3", "gpt2", "gpt_neox", "bloom", "falcon", "falcon-alibi", "falcon-new"]


def attention_of(model: PreTrainedModel, block: int) -> Projections:
    config = text_part(model.config.to_dict())
    modules = modules_of(ModelCheckpoint(model).names)
    return find_projections(find_stack(modules, config), block, config)


def predicted(model: PreTrainedModel, part: Projection, inputs: dict[str, Tensor]) -> Tensor:
    """Return the output of the selected rows and their bias for the module's input."""
    module: Any = model.get_submodule(part.module)
    weight = module.weight.T if part.transposed else module.weight
    bias = torch.zeros(len(weight)) if module.bias is None else module.bias
    rows = torch.cat([weight, bias[:, None]], dim=1)
    assert part.sizes
    rows = part.select(rows.T if part.transposed else rows)
    return rows[:, :-1] @ inputs[part.module] + rows[:, -1]


def distinct_heads(cached: Tensor, count: int) -> Tensor:
    """Return the cached rows of distinct key-value heads; caches may repeat them per query."""
    heads = cached[0, :, 0]
    return heads[:: len(heads) * heads.shape[1] // count].flatten()


@pytest.mark.parametrize("name", WITNESSED)
def test_the_cache_agrees_with_the_selected_rows(name):
    model = families.build(name)
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
