"""The memory of weights before loading, compared with the loaded weights."""

import formats
import pytest
import torch
from families import save

from lastword.errors import TooLargeError
from lastword.model import memory
from lastword.model.loading import load
from lastword.model.options import LoadOptions
from lastword.model.weights.checkpoint import open_local

CPU = torch.device("cpu")
SHAPES = {
    "llama": {"hidden_size": 128, "intermediate_size": 256, "head_dim": 32},
    "gpt_oss": {"hidden_size": 64, "intermediate_size": 64},
}


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
    ("family", "form", "dtype"),
    [
        ("llama", None, "float32"),
        ("llama", None, "bfloat16"),
        ("llama", "fp8", "bfloat16"),
        ("gpt_oss", "mxfp4", "float32"),
        ("llama", "int8", "float32"),
        ("llama", "nf4", "float32"),
    ],
)
def test_the_bytes_from_headers_agree_with_the_loaded_weights(family, form, dtype, tmp_path):
    pytest.importorskip("accelerate")
    if form in ("int8", "nf4"):
        pytest.importorskip("bitsandbytes")
    folder = tmp_path / "model"
    save(folder, family, **SHAPES[family])
    if form is not None:
        formats.write(form, folder, tmp_path / "stored", tmp_path / "twin")
        folder = tmp_path / "stored"
    dequantised = form in ("fp8", "mxfp4")
    checkpoint = open_local(folder)
    need = memory.weight_bytes(checkpoint, getattr(torch, dtype), dequantised)
    loaded = load(LoadOptions(str(folder), dtype=dtype))
    assert need == pytest.approx(size_of(loaded.model), rel=0.03)


def test_a_lower_limit_of_the_container_applies(tmp_path, monkeypatch):
    (tmp_path / "memory.max").write_text("3000000\n")
    (tmp_path / "memory.current").write_text("2000000\n")
    (tmp_path / "memory.stat").write_text("anon 1500000\ninactive_file 400000\n")
    monkeypatch.setattr(memory, "_CGROUP", tmp_path)
    assert memory.available(CPU) == 1_400_000
    memory.refuse_too_large("m", 1_300_000, CPU)
    with pytest.raises(TooLargeError, match=r"take 0\.0 GB on cpu, and 0\.0 GB are free"):
        memory.refuse_too_large("m", 1_500_000, CPU)
    (tmp_path / "memory.max").write_text("max\n")
    assert memory.available(CPU) == pytest.approx(memory._free_memory(), rel=0.2)
