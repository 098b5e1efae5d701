"""Quantisation of a checkpoint's weights: the packages that it needs, and its description.

The quantisers of transformers do the work.
"""

from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

import torch
from torch import nn
from transformers import BitsAndBytesConfig

from lastword.errors import ModelError
from lastword.model.options import Quantize
from lastword.model.parts import text_config
from lastword.model.weights.checkpoint import SafetensorsCheckpoint

# Packages that transformers needs to load each method: names of modules, and names for pip.
PACKAGES: dict[str, dict[str, str]] = {
    "fp8": {"accelerate": "accelerate"},
    "mxfp4": {"accelerate": "accelerate"},
    "bitsandbytes": {"accelerate": "accelerate", "bitsandbytes": "bitsandbytes"},
    "gptq": {"optimum": "optimum", "gptqmodel": "gptqmodel"},
    "awq": {"accelerate": "accelerate", "gptqmodel": "gptqmodel"},
    "compressed-tensors": {"compressed_tensors": "compressed-tensors"},
}
# Lowest CUDA compute capability of each method's kernels; transformers dequantises below it. It
# fetches the kernels with the package `kernels`. Without that, it dequantises MXFP4, but fails at
# the first product of FP8.
KERNELS = {"fp8": (8, 9), "mxfp4": (7, 5)}
# LLM.int8 selects its outlier columns over the whole batch. With 0 it selects none, so that no
# answer depends on the other items of its batch (method, section 2).
THRESHOLD = 0.0
_EIGHT_BITS = ("I8", "F8_E4M3", "F8_E5M2")


def stored_method(config: Any) -> str | None:
    """Return the `quant_method` of a config, or of its text model's; None if not quantised."""
    for part in (config, text_config(config)):
        options = getattr(part, "quantization_config", None)
        if options is not None:
            options = options if isinstance(options, Mapping) else options.to_dict()
            return str(options.get("quant_method") or "bitsandbytes")
    return None


def is_dequantised(method: str | None, device: torch.device) -> bool:
    """Return True if transformers dequantises such weights at load: its kernels need CUDA."""
    if method not in KERNELS:
        return False
    return device.type != "cuda" or torch.cuda.get_device_capability(device) < KERNELS[method]


def missing_packages(method: str, device: torch.device) -> list[str]:
    """List the packages to install for loading a method's weights on a device."""
    packages = PACKAGES.get(method, {})
    if method in KERNELS and not is_dequantised(method, device):
        packages = packages | {"kernels": "kernels"}
    return [pip for module, pip in packages.items() if find_spec(module) is None]


def require(name: str, method: str, device: torch.device) -> None:
    """Refuse a method if some of its packages are missing.

    Raises:
        ModelError: A package is missing; the message says how to install it.
    """
    if absent := missing_packages(method, device):
        extra = '"lastword[kernels]"' if "kernels" in absent else " ".join(absent)
        raise ModelError(
            f"{name} needs {' and '.join(absent)} to load {method} weights on {device.type}: "
            f"pip install {extra}"
        )


def require_scales(checkpoint: SafetensorsCheckpoint, method: str | None) -> None:
    """Refuse weights of 8 bits without their scales, which transformers would use unscaled.

    Raises:
        ModelError: A scale is missing, or the config names no method, or an unknown one.
    """
    from transformers.quantizers.auto import AUTO_QUANTIZATION_CONFIG_MAPPING

    if method not in (None, "bitsandbytes", *AUTO_QUANTIZATION_CONFIG_MAPPING):
        raise ModelError(
            f"the config of {checkpoint.label} says quant_method {method!r:.40}, unknown to "
            "transformers: correct it, or take the unquantised checkpoint"
        )
    if method not in (None, "bitsandbytes", "fp8"):
        return
    for name, info in checkpoint.tensors():
        module, _, leaf = name.rpartition(".")
        scales = {f"{name}_scale", f"{name}_scale_inv"}
        scales |= {f"{module}.{leaf}" for leaf in ("SCB", "scale", "qscale_weight")}
        scales &= checkpoint.names
        if leaf == "weight" and info.dtype in _EIGHT_BITS and not (method and scales):
            lack = "without its scale" if method else "and its config has no quantization_config"
            raise ModelError(
                f"{checkpoint.label} stores {name} as {info.dtype}, {lack}: get the whole "
                "checkpoint, or the unquantised one"
            )


def options_for(quantize: Quantize, dtype: torch.dtype) -> Any:
    """Return the `quantization_config` that quantises a plain checkpoint while it is loaded."""
    if quantize == "int8":
        return BitsAndBytesConfig(load_in_8bit=True, llm_int8_threshold=THRESHOLD)
    return BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=dtype
    )


def has_replaced_layers(model: nn.Module) -> bool:
    """Return True if bitsandbytes replaced any layer."""
    return any(type(m).__module__.startswith("bitsandbytes") for m in model.modules())


def drop_outliers(config: Any) -> None:
    """Set the outlier threshold of a checkpoint stored as LLM.int8 to `THRESHOLD`."""
    for part in (config, text_config(config)):
        options = getattr(part, "quantization_config", None)
        if isinstance(options, dict) and options.get("load_in_8bit"):
            part.quantization_config = options | {"llm_int8_threshold": THRESHOLD}


def describe(model: Any, stored: str | None) -> str | None:
    """Describe the loaded weights for the record, such as `int8 (bitsandbytes, threshold 0)`."""
    quantizer = getattr(model, "hf_quantizer", None)
    if quantizer is None or getattr(quantizer.quantization_config, "dequantize", False):
        return None if stored is None else f"{stored}, dequantised"
    config = quantizer.quantization_config
    if not hasattr(config, "load_in_8bit"):
        return stored
    if config.load_in_8bit:
        return f"int8 (bitsandbytes, threshold {config.llm_int8_threshold:g})"
    return f"{config.bnb_4bit_quant_type} (bitsandbytes)"
