"""Checkpoints in quantised formats, and their dense twins.

This code is independent of transformers and bitsandbytes. Each writer follows the definition of
its format, and the twin has the values that the stored bytes represent.
"""

import json
import shutil
from collections.abc import Callable
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


# A format's tensors for a weight, by name, and the values that they represent.
Coded = tuple[dict[str, Tensor], Tensor]


def _fp8(name: str, value: Tensor, block: int = 16) -> Coded:
    """Float8 with one scale per block (DeepSeek's `weight_scale_inv`)."""
    rows, columns = value.shape
    tiles = value.reshape(rows // block, block, columns // block, block)
    scale = tiles.abs().amax(dim=(1, 3)) / 448.0
    codes = (tiles / scale[:, None, :, None]).to(torch.float8_e4m3fn)
    dense = (codes.float() * scale[:, None, :, None]).reshape(rows, columns)
    return {name: codes.reshape(rows, columns), f"{name}_scale_inv": scale}, dense


def _mxfp4(name: str, value: Tensor) -> Coded:
    """4-bit floats in blocks of 32, each scaled by a power of two."""
    rows = value.transpose(1, 2)
    blocks = rows.reshape(*rows.shape[:2], -1, 32)
    exponent = (blocks.abs().amax(-1) / 6.0).log2().ceil().clamp(-126, 126)
    codes = (blocks / exponent.exp2()[..., None]).unsqueeze(-1).sub(FP4).abs().argmin(-1)
    packed = (codes[..., 0::2] | codes[..., 1::2] << 4).to(torch.uint8)
    scales = (exponent + 127).to(torch.uint8)
    values = (FP4[codes] * exponent.exp2()[..., None]).flatten(2)
    return {f"{name}_blocks": packed, f"{name}_scales": scales}, values.transpose(1, 2)


def _nf4(name: str, value: Tensor, block: int = 64) -> Coded:
    """bitsandbytes' NF4: two codes per byte, the high half first."""
    blocks = value.reshape(-1, block)
    absmax = blocks.abs().amax(1)
    codes = (blocks / absmax[:, None]).unsqueeze(-1).sub(NF4).abs().argmin(-1).flatten()
    state = {"quant_type": "nf4", "blocksize": block, "dtype": "float32"}
    text = json.dumps(state | {"shape": list(value.shape)}).encode()
    written = {
        name: (codes[0::2] << 4 | codes[1::2]).to(torch.uint8)[:, None],
        f"{name}.absmax": absmax,
        f"{name}.quant_map": NF4.clone(),
        f"{name}.quant_state.bitsandbytes__nf4": torch.tensor(list(text)).to(torch.uint8),
    }
    return written, (NF4[codes].reshape(-1, block) * absmax[:, None]).reshape(value.shape)


def _int8(name: str, value: Tensor) -> Coded:
    """LLM.int8: one scale per row, with its outlier threshold."""
    scale, module = value.abs().amax(1), name.removesuffix(".weight")
    codes = (127 * value / scale[:, None]).round().to(torch.int8)
    form = torch.tensor(0, dtype=torch.uint8)
    written = {name: codes, f"{module}.SCB": scale, f"{module}.weight_format": form}
    return written, codes.float() * scale[:, None] / 127


_BLOCKS = {"weight_block_size": [16, 16], "modules_to_not_convert": ["lm_head", "gate"]}
_BITS4 = {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4", "bnb_4bit_compute_dtype": "float32"}
_FORMS: dict[str, tuple[Callable[[str, Tensor], Coded], dict[str, Any]]] = {
    "fp8": (_fp8, {"quant_method": "fp8", "activation_scheme": "dynamic"} | _BLOCKS),
    "mxfp4": (_mxfp4, {"quant_method": "mxfp4"}),
    "nf4": (_nf4, {"quant_method": "bitsandbytes"} | _BITS4),
    "int8": (
        _int8,
        {"quant_method": "bitsandbytes", "load_in_8bit": True, "llm_int8_threshold": 6.0},
    ),
}


def write(form: str, source: Path, stored: Path, twin: Path) -> None:
    """Write the linear weights in a format (MXFP4: the experts of GPT-OSS), and the dense twin."""
    encode, options = _FORMS[form]
    plain: dict[str, Tensor] = load_file(source / WEIGHTS)
    coded: dict[str, Tensor] = {}
    dense: dict[str, Tensor] = {}
    for name, value in [*plain.items()]:
        linear = ".layers." in name and value.ndim == 2 and not name.endswith(".gate.weight")
        expert = name.endswith(("experts.gate_up_proj", "experts.down_proj"))
        if expert if form == "mxfp4" else linear:
            written, dense[name] = encode(name, plain.pop(name).float())
            coded |= written
    _write(source, stored, plain | coded, options)
    _write(source, twin, plain | dense)


def write_copy(source: Path, folder: Path) -> None:
    """Write a copy that a test may change."""
    _write(source, folder, load_file(source / WEIGHTS))


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
