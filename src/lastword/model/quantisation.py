"""Quantisation of a checkpoint's weights by the quantisers of transformers."""

from typing import Any

import torch
from transformers import BitsAndBytesConfig, PretrainedConfig, PreTrainedModel

from lastword.errors import ModelError
from lastword.model.options import Quantize
from lastword.model.parts import text_config
from lastword.model.weights.checkpoint import SafetensorsCheckpoint

# Lowest CUDA compute capability of each method's kernels; transformers dequantises below it. It
# fetches the kernels with the package `kernels`. Without that, it dequantises MXFP4, but fails at
# the first product of FP8.
KERNELS = {"fp8": (8, 9), "mxfp4": (7, 5)}
# LLM.int8 selects its outlier columns over the whole batch. With 0 it selects none, so that no
# answer depends on the other items of its batch (method, section 2).
THRESHOLD = 0.0


def _settings(config: PretrainedConfig) -> dict[str, Any] | None:
    for part in (config, text_config(config)):
        if (options := getattr(part, "quantization_config", None)) is not None:
            return options if isinstance(options, dict) else dict(options.to_dict())
    return None


def stored_method(config: PretrainedConfig) -> str | None:
    """Return the method of a checkpoint's stored quantisation; None if not quantised."""
    options = _settings(config)
    return None if options is None else str(options.get("quant_method") or "bitsandbytes")


def is_dequantised(method: str | None, device: torch.device) -> bool:
    """Return True if transformers dequantises such weights at load: its kernels need CUDA."""
    if method not in KERNELS:
        return False
    return device.type != "cuda" or torch.cuda.get_device_capability(device) < KERNELS[method]


def refuse_unscaled(checkpoint: SafetensorsCheckpoint) -> None:
    """Refuse weights of 8 bits if the config has no quantisation: they would be used unscaled."""
    for name, info in checkpoint.tensors():
        if name.endswith(".weight") and info.dtype in ("I8", "F8_E4M3", "F8_E5M2"):
            raise ModelError(
                f"{checkpoint.label} stores {name} as {info.dtype}, and its config has no "
                "quantization_config: get the whole checkpoint, or the unquantised one"
            )


def options_for(quantize: Quantize, dtype: torch.dtype) -> BitsAndBytesConfig:
    """Return the `quantization_config` that quantises a plain checkpoint while it is loaded."""
    if quantize == "int8":
        return BitsAndBytesConfig(load_in_8bit=True, llm_int8_threshold=THRESHOLD)
    nf4 = {"bnb_4bit_quant_type": "nf4", "bnb_4bit_compute_dtype": dtype}
    return BitsAndBytesConfig(load_in_4bit=True, **nf4)


def drop_outliers(config: PretrainedConfig) -> None:
    """Set the outlier threshold of a checkpoint stored as LLM.int8 to `THRESHOLD`."""
    options = _settings(config)
    if options is not None and options.get("load_in_8bit"):
        options["llm_int8_threshold"] = THRESHOLD


def describe(model: PreTrainedModel, stored: str | None) -> str | None:
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
