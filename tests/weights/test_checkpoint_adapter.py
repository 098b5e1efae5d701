"""A LoRA adapter's folder: what is read is the merged weights, which are the planted ones."""

import json
from pathlib import Path
from typing import Any

import planted
import pytest
import torch
from planted import EXACT, LAYOUTS, refusal, value
from safetensors.torch import save_file

from lastword.weights import adapter as adapter_folder

LLAMA = LAYOUTS["llama"]
RANK = 4
OPTIONS = {"peft_type": "LORA", "r": RANK, "lora_alpha": 8}
KEY = "model.layers.1.self_attn.k_proj"


def factors(shape: tuple[int, int], seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A and B of small whole numbers, so that merging is exact."""
    generator = torch.Generator().manual_seed(seed)
    down = torch.randint(-2, 3, (RANK, shape[1]), generator=generator).float()
    return down, torch.randint(-2, 3, (shape[0], RANK), generator=generator).float()


def write(
    folder: Path,
    layout: planted.Layout,
    scales: dict[str, float],
    transposed: bool = False,
    **options: Any,
) -> Path:
    """Base and adapter whose merge is the planted checkpoint.

    Args:
        folder: Where `base` and `adapter` are written.
        layout: The planted layout.
        scales: Endings of the adapted modules, and the scale that the options give each.
        transposed: Whether the base stores [in, out].
        options: Of the adapter's config, beside `OPTIONS`.
    """
    tensors, adapter = layout.tensors(), {}
    for seed, name in enumerate(sorted(tensors)):
        module = name.removesuffix(".weight")
        for ending, scale in scales.items():
            if module.endswith(ending):
                rows, columns = tensors[name].shape
                shape = (columns, rows) if transposed else (rows, columns)
                down, up = factors(shape, seed)
                change = scale * (up @ down)
                tensors[name] = tensors[name] - (change.T if transposed else change)
                adapter[f"base_model.model.{module}.lora_A.weight"] = down
                adapter[f"base_model.model.{module}.lora_B.weight"] = up
    base = planted.write(folder / "base", layout.config, tensors)
    options = OPTIONS | {"base_model_name_or_path": str(base)} | options
    (folder / "adapter").mkdir()
    (folder / "adapter" / "adapter_config.json").write_text(json.dumps(options))
    save_file(adapter, folder / "adapter" / "adapter_model.safetensors")
    return folder / "adapter"


@pytest.mark.parametrize(
    ("options", "scales"),
    [
        ({}, {"k_proj": 2.0, "v_proj": 2.0, "o_proj": 2.0}),
        ({"use_rslora": True}, {"k_proj": 4.0, "o_proj": 4.0}),
        ({"alpha_pattern": {"o_proj": 1, "layers.1.self_attn.k_proj": 16}},
         {"0.self_attn.k_proj": 2.0, "1.self_attn.k_proj": 4.0, "o_proj": 0.25}),
    ],
)  # fmt: skip
def test_merged_weights_are_read(options, scales, tmp_path):
    adapter = write(tmp_path, LLAMA, scales, **options)
    assert value(adapter) == pytest.approx(LLAMA.invariant, **EXACT)
    assert value(tmp_path / "base") != pytest.approx(LLAMA.invariant, rel=1e-3)


def test_a_fused_and_transposed_base(tmp_path):
    layout = LAYOUTS["gpt2"]
    scales = {"c_attn": 2.0, "c_proj": 2.0}
    adapter = write(tmp_path, layout, scales, transposed=True, fan_in_fan_out=True)
    assert value(adapter) == pytest.approx(layout.invariant, **EXACT)


def test_a_norm_that_was_trained_whole(tmp_path):
    adapter = write(tmp_path, LLAMA, {})
    norm = {f"base_model.model.{LLAMA.norm}": 3 * torch.tensor(planted.NORM)}
    save_file(norm, adapter / "adapter_model.safetensors")
    assert value(adapter) == pytest.approx(3 * LLAMA.invariant, **EXACT)


def test_a_quantised_base_is_merged_dense(tmp_path):
    adapter = write(tmp_path, LLAMA, {"1.self_attn.k_proj": 2.0})
    tensors = LLAMA.tensors()
    down, up = factors((4, 8), sorted(tensors).index(f"{KEY}.weight"))
    tensors[f"{KEY}.weight"] = (tensors[f"{KEY}.weight"] - 2 * (up @ down)).to(torch.int8)
    tensors[f"{KEY}.SCB"] = torch.full((4,), 127.0)
    planted.write(tmp_path / "base", LLAMA.config, tensors)
    assert value(adapter) == pytest.approx(LLAMA.invariant, **EXACT)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"use_dora": True}, "is a DoRA adapter"),
        ({"peft_type": "IA3"}, "is a IA3 adapter"),
        ({"base_model_name_or_path": None}, "needs adapter_model.safetensors"),
        ({"base_model_name_or_path": "/nowhere"}, "/nowhere is no checkpoint folder"),
    ],
)
def test_other_adapters_are_refused(options, words, tmp_path):
    assert words in refusal(write(tmp_path, LLAMA, {"k_proj": 2.0}, **options))


def test_a_pattern_without_an_end_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(adapter_folder, "_SECONDS", 1.0)
    patterns = {"k_proj": 4, "(.*.*)*Z": 8}
    told = refusal(write(tmp_path, LLAMA, {"k_proj": 2.0}, alpha_pattern=patterns))
    assert "has the pattern '(.*.*)*Z' in adapter_config.json, which takes more than 1 s" in told


def test_weights_that_are_of_no_module_or_not_there_are_refused(tmp_path):
    adapter = write(tmp_path, LLAMA, {})
    down, up = factors((4, 8), 0)
    odd = "base_model.model.model.layers.1.attn.key.lora_{}.weight"
    save_file({odd.format("A"): down, odd.format("B"): up}, adapter / "adapter_model.safetensors")
    assert "adapts model.layers.1.attn.key, which" in refusal(adapter)
    (adapter / "adapter_model.safetensors").unlink()
    assert "needs adapter_model.safetensors" in refusal(adapter)
