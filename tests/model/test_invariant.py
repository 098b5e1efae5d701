"""I(M) of planted weights in closed form, of every family, and of unsupported weights."""

import json
import math
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

import planted
import pytest
import torch
from families import FAMILIES, WIDTH, build
from hypothesis import given
from hypothesis import strategies as st
from planted import EXACT, LAYOUTS
from torch import Tensor, nn
from transformers import PreTrainedModel

from lastword.errors import CheckpointError, InvariantError
from lastword.model.weights import layouts
from lastword.model.weights.checkpoint import ModelCheckpoint
from lastword.model.weights.dequantise import modules_of
from lastword.model.weights.invariant import model_invariant, rcv, read_invariant
from lastword.model.weights.layouts import FINAL_NORMS, Projection, Projections
from lastword.rule.theta import Theta

LLAMA = LAYOUTS["llama"]

norms = st.lists(st.integers(1, 1000), min_size=2, max_size=20)


def rows_with_norms(lengths: list[int]) -> torch.Tensor:
    """Return rows with these norms in random directions."""
    generator = torch.Generator().manual_seed(len(lengths))
    rows = torch.randn(len(lengths), 7, generator=generator, dtype=torch.float64)
    return rows / rows.norm(dim=1, keepdim=True) * torch.tensor(lengths).double()[:, None]


@given(norms, st.floats(1e-30, 1e30))
def test_rcv_is_the_population_sd_over_the_mean_at_every_scale(lengths, scale):
    expected = pytest.approx(pstdev(lengths) / fmean(lengths), rel=1e-9, abs=1e-12)
    assert (
        rcv(rows_with_norms(lengths)) == expected
        and rcv(rows_with_norms(lengths) * scale) == expected
    )
    matrix = torch.diag(torch.tensor(lengths).double())  # each norm is one entry, so exact
    assert rcv(matrix) >= 0 and (rcv(matrix) == 0) == (len(set(lengths)) == 1)


def test_rcv_of_zeros_is_undefined_and_of_many_rows_exact():
    assert math.isnan(rcv(torch.zeros(3, 4)))
    lengths = [1 + i % 7 for i in range(9001)]
    expected = pytest.approx(pstdev(lengths) / fmean(lengths), rel=1e-12)
    assert rcv(rows_with_norms(lengths)) == expected


@pytest.mark.parametrize("name", LAYOUTS)
def test_planted_weights_give_the_closed_form(name, tmp_path):
    layout = LAYOUTS[name]
    folder = planted.write(tmp_path, layout.config, layout.tensors())
    factors = read_invariant(folder, theta=Theta())
    assert factors.value == pytest.approx(layout.invariant, **EXACT)
    assert factors.phi_N == pytest.approx(1.25, **EXACT)
    assert factors.phi_K == pytest.approx(planted.planted_rcv("k", 1, layout.k_rows), **EXACT)
    assert factors.phi_O == pytest.approx(planted.planted_rcv("o", 2, planted.WIDTH), **EXACT)
    for block, value in ((1, factors.rcv_V_early), (2, factors.rcv_V_middle)):
        assert value == pytest.approx(planted.planted_rcv("v", block, layout.v_rows), **EXACT)
    assert (factors.depth, factors.blocks) == (planted.DEPTH, (1, 2))
    assert len(factors.tensors) <= 5 and layout.norm in factors.tensors


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_every_stored_dtype_is_read_and_gives_a_branch(dtype, tmp_path):
    folder = planted.write(tmp_path, LLAMA.config, LLAMA.tensors(dtype))
    factors = read_invariant(folder, theta=Theta())
    assert factors.value == pytest.approx(LLAMA.invariant, **EXACT)
    assert factors.branch(factors.value) == "early"
    assert factors.branch(factors.value - 1e-9) == "mix"
    record = json.loads(json.dumps(factors.to_dict()))
    assert record["invariant"] == factors.value and record["blocks"] == list(factors.blocks)


@pytest.mark.parametrize("name", [*FINAL_NORMS, None, "last_norm"])
def test_names_of_the_final_norm(name, tmp_path):
    tensors = LLAMA.tensors()
    norm = tensors.pop(LLAMA.norm)
    if name is not None:
        tensors[f"model.{name}.weight"] = norm
    folder = planted.write(tmp_path, LLAMA.config, tensors)
    if name == "last_norm":
        assert "model.last_norm" in planted.refusal(folder, InvariantError)
    else:
        expected = LLAMA.invariant / (1.25 if name is None else 1.0)  # an absent norm counts as 1
        assert planted.value(folder) == pytest.approx(expected, **EXACT)


def refusal(folder: Path, config: dict, tensors: dict[str, torch.Tensor]) -> str:
    return planted.refusal(planted.write(folder, config, tensors), InvariantError)


HYBRID = ["linear_attention" if i == 1 else "full_attention" for i in range(5)]
SECOND = {n.replace("model.layers", "second.layers"): t for n, t in LLAMA.tensors().items()}


@pytest.mark.parametrize(
    ("layout", "changes", "more", "words"),
    [
        ("llama", {"layer_types": HYBRID}, {}, ["block 1", "invariant=VALUE"]),
        ("phi3", {"model_type": "newcomer"}, {}, ["newcomer", "qkv_proj", "invariant=VALUE"]),
        ("phi3", {"num_key_value_heads": 1}, {}, ["16 rows", "1 x 12"]),
        ("gpt_neox", {"num_attention_heads": None}, {}, ["num_attention_heads"]),
        ("llama", {"num_hidden_layers": 9}, {}, ["9 text blocks"]),
        ("llama", {}, SECOND, ["in model.layers.", "in second.layers."]),
    ],
)
def test_unknown_layouts_are_refused(layout, changes, more, words, tmp_path):
    config = {k: v for k, v in (LAYOUTS[layout].config | changes).items() if v is not None}
    message = refusal(tmp_path, config, LAYOUTS[layout].tensors() | more)
    assert all(word in message for word in words)


ROW = torch.rand(8)
EQUAL = torch.eye(4, 8) * 0.3
ROUNDED = torch.stack([ROW[torch.randperm(8)] for _ in range(4)])  # equal norms up to rounding


@pytest.mark.parametrize(
    ("block", "role", "value", "words"),
    [
        *(
            (block, role, EQUAL, "divides by zero")
            for block, role in ((1, "k"), (1, "v"), (2, "v"))
        ),
        (1, "k", ROUNDED, "divides by zero"),
        *((2, "o", torch.full((8, 8), x), "") for x in (math.nan, math.inf, 0.0)),
    ],
)
def test_a_tensor_with_an_undefined_rcv_is_named(block, role, value, words, tmp_path):
    name = f"model.layers.{block}.self_attn.{role}_proj.weight"
    message = refusal(tmp_path, LLAMA.config, LLAMA.tensors() | {name: value})
    assert name in message and words in message


def test_a_missing_checkpoint_is_an_error():
    with pytest.raises(CheckpointError, match="no checkpoint"):
        read_invariant("/nowhere/at/all", theta=Theta())


# --- every family ---

DEFINED = [name for name, f in FAMILIES.items() if f.invariant]


@pytest.mark.parametrize("name", DEFINED)
def test_folder_and_memory_agree(name, tmp_path):
    model = build(name)
    model.save_pretrained(tmp_path)
    memory = model_invariant(model, theta=Theta())
    folder = read_invariant(tmp_path, theta=Theta())
    assert folder.value == pytest.approx(memory.value, **EXACT)
    assert (folder.blocks, folder.depth, folder.layout) == ((1, 3), 6, memory.layout)


def test_the_invariant_in_memory_is_that_of_the_current_merged_weights():
    model = build("llama")
    before = model_invariant(model, theta=Theta())
    with torch.no_grad():
        model.model.norm.weight.mul_(2)
    after = model_invariant(model, theta=Theta())
    assert after.value == pytest.approx(2 * before.value, **EXACT)
    model.model.layers[1].self_attn.k_proj.lora_A = nn.Linear(WIDTH, 2, bias=False)
    with pytest.raises(InvariantError, match="merge it first"):
        model_invariant(model, theta=Theta())


def test_offloaded_weights_are_fetched_and_absent_ones_refused(tmp_path):
    accelerate = pytest.importorskip("accelerate")
    model = build("phi3")
    before = model_invariant(model, theta=Theta())
    accelerate.disk_offload(model, tmp_path)
    assert model.model.norm.weight.is_meta
    assert model_invariant(model, theta=Theta()) == before
    with torch.device("meta"):
        model = build("llama")
    with pytest.raises(CheckpointError, match="has no data"):
        model_invariant(model, theta=Theta())


# The cache is an independent check of fused layouts: the keys and values that the model's code
# stores for its first token (where rotation is the identity) are what the K and V rows give. All
# fused layouts, except longrope, which scales its rotation, and MLA, which caches its latent.
WITNESSED = ["phi3", "gpt2", "gpt_neox", "bloom", "falcon", "falcon-alibi", "falcon-new"]


def attention_of(model: PreTrainedModel, block: int) -> Projections:
    config = layouts.text_part(model.config.to_dict())
    modules = modules_of(ModelCheckpoint(model).names)
    return layouts.find_projections(layouts.find_stack(modules, config), block, config)


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
    model = build(name)
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
