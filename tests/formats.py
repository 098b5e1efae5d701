"""Checkpoints in quantised formats, and their dense twins.

This code is independent of transformers and bitsandbytes. Each writer follows the definition of
its format, and the twin has the values that the stored bytes represent.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

WEIGHTS = "model.safetensors"

# E2M1: sign, two bits of exponent, one of mantissa.
FP4 = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
FP4 = torch.cat([FP4, -FP4])
# NF4: quantiles of a normal distribution, as listed by its authors.
NF4 = torch.tensor(
    [float(quantile) for quantile in """
    -1.0 -0.6961928009986877 -0.5250730514526367 -0.39491748809814453 -0.28444138169288635
    -0.18477343022823334 -0.09105003625154495 0.0 0.07958029955625534 0.16093020141124725
    0.24611230194568634 0.33791524171829224 0.44070982933044434 0.5626170039176941
    0.7229568362236023 1.0""".split()]
)  # fmt: skip


def write_fp8(source: Path, stored: Path, twin: Path, block: int = 16) -> None:
    """Write linear weights as float8 with one scale per block (DeepSeek's `weight_scale_inv`)."""
    tensors, dense = load_file(source / WEIGHTS), {}
    written: dict[str, Tensor] = {}
    for name, value in tensors.items():
        if not _is_linear(name, value):
            written[name] = dense[name] = value
            continue
        rows, columns = value.shape
        tiles = value.float().reshape(rows // block, block, columns // block, block)
        scale = tiles.abs().amax(dim=(1, 3)) / 448.0
        codes = (tiles / scale[:, None, :, None]).to(torch.float8_e4m3fn)
        written[name] = codes.reshape(rows, columns)
        written[f"{name}_scale_inv"] = scale
        dense[name] = (codes.float() * scale[:, None, :, None]).reshape(rows, columns)
    options: dict[str, Any] = {"quant_method": "fp8", "weight_block_size": [block, block]}
    options["activation_scheme"] = "dynamic"
    options["modules_to_not_convert"] = ["lm_head", "gate"]
    _write(source, stored, written, options)
    _write(source, twin, dense)


def write_mxfp4(source: Path, stored: Path, twin: Path) -> None:
    """Write experts of GPT-OSS as 4-bit floats in blocks of 32, each scaled by a power of two."""
    tensors, dense = load_file(source / WEIGHTS), {}
    written: dict[str, Tensor] = {}
    for name, value in tensors.items():
        if not name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            written[name] = dense[name] = value
            continue
        rows = value.float().transpose(1, 2)
        blocks = rows.reshape(*rows.shape[:2], -1, 32)
        exponent = (blocks.abs().amax(-1) / 6.0).log2().ceil().clamp(-126, 126)
        codes = (blocks / exponent.exp2()[..., None]).unsqueeze(-1).sub(FP4).abs().argmin(-1)
        written[f"{name}_blocks"] = (codes[..., 0::2] | codes[..., 1::2] << 4).to(torch.uint8)
        written[f"{name}_scales"] = (exponent + 127).to(torch.uint8)
        values = (FP4[codes] * exponent.exp2()[..., None]).flatten(2)
        dense[name] = values.transpose(1, 2).contiguous()
    _write(source, stored, written, {"quant_method": "mxfp4"})
    _write(source, twin, dense)


def write_nf4(source: Path, stored: Path, twin: Path, block: int = 64) -> None:
    """Write linear weights as bitsandbytes' NF4: two codes per byte, the high half first."""
    tensors, dense = load_file(source / WEIGHTS), {}
    written: dict[str, Tensor] = {}
    for name, value in tensors.items():
        if not _is_linear(name, value):
            written[name] = dense[name] = value
            continue
        blocks = value.float().reshape(-1, block)
        absmax = blocks.abs().amax(1)
        codes = (blocks / absmax[:, None]).unsqueeze(-1).sub(NF4).abs().argmin(-1).flatten()
        state = {"quant_type": "nf4", "blocksize": block, "dtype": "float32"}
        text = json.dumps(state | {"shape": list(value.shape)}).encode()
        written[name] = (codes[0::2] << 4 | codes[1::2]).to(torch.uint8)[:, None]
        written[f"{name}.absmax"] = absmax
        written[f"{name}.quant_map"] = NF4.clone()
        written[f"{name}.quant_state.bitsandbytes__nf4"] = torch.tensor(list(text)).to(torch.uint8)
        dense[name] = (NF4[codes].reshape(-1, block) * absmax[:, None]).reshape(value.shape)
    options = {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}
    options["bnb_4bit_compute_dtype"] = "float32"
    _write(source, stored, written, options | {"quant_method": "bitsandbytes"})
    _write(source, twin, dense)


def write_int8(source: Path, stored: Path, twin: Path) -> None:
    """Write linear weights as LLM.int8: one scale per row, with its outlier threshold."""
    tensors, dense = load_file(source / WEIGHTS), {}
    written: dict[str, Tensor] = {}
    for name, value in tensors.items():
        if not _is_linear(name, value):
            written[name] = dense[name] = value
            continue
        value = value.float()
        scale = value.abs().amax(1)
        codes = (127 * value / scale[:, None]).round().to(torch.int8)
        module = name.removesuffix(".weight")
        written[name] = codes
        written[f"{module}.SCB"] = scale
        written[f"{module}.weight_format"] = torch.tensor(0, dtype=torch.uint8)
        dense[name] = codes.float() * scale[:, None] / 127
    options = {"load_in_8bit": True, "quant_method": "bitsandbytes", "llm_int8_threshold": 6.0}
    _write(source, stored, written, options)
    _write(source, twin, dense)


def write_copy(source: Path, folder: Path) -> None:
    """Write a copy that a test may change."""
    _write(source, folder, load_file(source / WEIGHTS))


def _is_linear(name: str, value: Tensor) -> bool:
    return ".layers." in name and value.ndim == 2 and not name.endswith(".gate.weight")


def _write(
    source: Path, folder: Path, tensors: dict[str, Tensor], options: dict[str, Any] | None = None
) -> None:
    shutil.copytree(source, folder, ignore=shutil.ignore_patterns("*.safetensors"))
    contiguous = {name: value.contiguous() for name, value in tensors.items()}
    save_file(contiguous, folder / WEIGHTS, metadata={"format": "pt"})
    if options is not None:
        path = folder / "config.json"
        config = json.loads(path.read_text()) | {"quantization_config": options}
        path.write_text(json.dumps(config))
