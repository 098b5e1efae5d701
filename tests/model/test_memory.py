"""The estimate of memory before loading, compared with the memory of loading and running."""

import json
import subprocess
import sys
from pathlib import Path

import formats
import pytest
import torch
from families import build, save
from transformers import AutoConfig

from lastword.errors import TooLargeError
from lastword.model import memory
from lastword.model.loading import load
from lastword.model.memory import Footprint, Storage
from lastword.model.options import LoadOptions
from lastword.model.weights.checkpoint import open_local

BENCHMARK = Path(__file__).resolve().parents[2] / "experiments" / "memory.py"
CPU = torch.device("cpu")
SHAPES = {
    "llama": {"hidden_size": 128, "intermediate_size": 256, "head_dim": 32},
    "gpt_oss": {"hidden_size": 64, "intermediate_size": 64},
    "qwen3_moe": {"hidden_size": 128, "head_dim": 32, "moe_intermediate_size": 64},
}


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.parametrize("shape", ["vocabulary", "deep", "experts"])
def test_the_estimate_is_within_a_tenth_of_the_peak(shape):
    if not Path("/proc/self/clear_refs").exists():
        pytest.skip("the peak is read from Linux's /proc")
    run = subprocess.run([sys.executable, BENCHMARK, shape], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert 0.9 < json.loads(run.stdout)["ratio"] < 1.1


def estimate(folder: Path, storage: Storage) -> Footprint:
    config = AutoConfig.from_pretrained(folder)
    footprint = memory.footprint(open_local(folder), config, storage, CPU, 64)
    assert footprint is not None
    return footprint


def size_of(model: torch.nn.Module) -> int:
    """Return the bytes of a model's parameters and of bitsandbytes' scales."""
    total = 0
    for parameter in model.parameters():
        total += parameter.numel() * parameter.element_size()
        for name in ("absmax", "SCB"):
            scales = getattr(getattr(parameter, "quant_state", parameter), name, None)
            total += 0 if scales is None else scales.numel() * 4
    return total


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
@pytest.mark.parametrize(
    ("family", "form", "dtype", "quantize"),
    [
        ("llama", None, "float32", None),
        ("llama", None, "bfloat16", None),
        ("llama", "fp8", "bfloat16", None),
        ("gpt_oss", "mxfp4", "float32", None),
        ("llama", "int8", "float32", None),
        ("llama", "nf4", "float32", None),
        ("llama", None, "float32", "int8"),
        ("llama", None, "float32", "nf4"),
        ("qwen3_moe", None, "float32", "int8"),
    ],
)
def test_the_estimate_from_headers_agrees_with_the_loaded_weights(
    family, form, dtype, quantize, tmp_path
):
    pytest.importorskip("accelerate")
    if form in ("int8", "nf4") or quantize:
        pytest.importorskip("bitsandbytes")
    folder = tmp_path / "model"
    save(folder, family, **SHAPES[family])
    if form is not None:
        getattr(formats, f"write_{form}")(folder, tmp_path / "stored", tmp_path / "twin")
        folder = tmp_path / "stored"
    storage = Storage(getattr(torch, dtype), quantize, dequantised=form in ("fp8", "mxfp4"))
    loaded = load(LoadOptions(str(folder), dtype=dtype, quantize=quantize))
    assert estimate(folder, storage).weights == pytest.approx(size_of(loaded.model), rel=0.03)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_the_head_counts_twice_on_the_cpu(dtype, tmp_path):
    build("llama").save_pretrained(tmp_path)
    assert estimate(tmp_path, Storage(dtype)).head == 331 * 32 * 4
    config = AutoConfig.from_pretrained(tmp_path)
    elsewhere = memory.footprint(open_local(tmp_path), config, Storage(dtype), torch.device("meta"))
    assert elsewhere is not None and elsewhere.head == 0


def test_pickles_have_no_estimate(tmp_path):
    build("llama").save_pretrained(tmp_path)
    torch.save(formats.load_file(tmp_path / formats.WEIGHTS), tmp_path / "pytorch_model.bin")
    (tmp_path / formats.WEIGHTS).unlink()
    config = AutoConfig.from_pretrained(tmp_path)
    assert memory.footprint(open_local(tmp_path), config, Storage(torch.float32), CPU) is None


def test_a_model_larger_than_the_memory_is_refused(monkeypatch):
    monkeypatch.setattr(memory, "available", lambda _: 70_000_000_000)
    large = Footprint(weights=140_000_000_000, head=0, batch=1_000_000_000)
    with pytest.raises(TooLargeError, match=r"takes about 141\.0 GB .* 70\.0 GB are free"):
        memory.refuse_too_large("m", large, CPU)


def test_a_lower_limit_of_the_container_applies(tmp_path, monkeypatch):
    (tmp_path / "memory.max").write_text("3000000\n")
    (tmp_path / "memory.current").write_text("2000000\n")
    (tmp_path / "memory.stat").write_text("anon 1500000\ninactive_file 400000\n")
    monkeypatch.setattr(memory, "_CGROUP", tmp_path)
    assert memory.available(CPU) == 1_400_000
    (tmp_path / "memory.max").write_text("max\n")
    assert memory.available(CPU) == pytest.approx(memory._free_memory(), rel=0.2)
