"""Forecast of a model's needs from its config and header: memory, disk, parameters, packages."""

import math
import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig

from lastword.errors import TraceError
from lastword.model import embedded, gguf, memory, quantisation
from lastword.model.loading import device_of, dtype_of, parts_of, stored_dtype
from lastword.model.options import LoadOptions
from lastword.model.parts import text_config
from lastword.model.weights import hub
from lastword.model.weights.checkpoint import Checkpoint, SafetensorsCheckpoint, open_local
from lastword.model.weights.gguf import GgufCheckpoint

_EMBEDDING = re.compile(r"(embed_tokens|wte|embed_in|lm_head)\.weight$")


@dataclass(frozen=True)
class Forecast:
    """Needs of a model before it is loaded; None if its header is unknown.

    Attributes:
        need: Bytes of memory.
        disk: Bytes of the files with its weights.
        blocks: Parameters used per token, without embeddings and head.
        head: Parameters of the output head.
        depth: L.
        device: The device that it would run on.
        missing: Reasons why it cannot be loaded yet, in words.
    """

    need: memory.Footprint | None = None
    disk: int | None = None
    blocks: int | None = None
    head: int = 0
    depth: int = 0
    device: torch.device = torch.device("cpu")
    missing: tuple[str, ...] = ()

    @property
    def lacks_memory(self) -> bool:
        """True if it does not fit the free memory of its device."""
        free = memory.available(self.device)
        return self.need is not None and free is not None and self.need.total > free

    def operations(self, tokens: int, reads: int) -> float | None:
        """Return the floating-point operations of reading every depth.

        Args:
            tokens: Distinct tokens of the forward pass.
            reads: Positions that are read.
        """
        if self.blocks is None:
            return None
        return 2.0 * (self.blocks * tokens + self.head * (self.depth + 1) * reads)


def forecast(options: LoadOptions) -> Forecast:
    """Return the forecast of a model; errors are in `missing`."""
    try:
        device = device_of(options.device)
        checkpoint = _open(options)
    except TraceError as error:
        return Forecast(missing=(str(error),))
    if isinstance(checkpoint, GgufCheckpoint):
        return _of_gguf(checkpoint, options, device)
    return _of_checkpoint(checkpoint, options, device)


def _open(options: LoadOptions) -> Checkpoint | GgufCheckpoint:
    if options.embedded is not None:
        return open_local(embedded.folder(options.embedded))
    if (file := gguf.find(options)) is not None:
        return gguf.open_checkpoint(file)
    base, _ = parts_of(options)
    if Path(base.name).is_dir():
        return open_local(Path(base.name))
    return hub.open_model(base.name, base.revision)


def _of_gguf(checkpoint: GgufCheckpoint, options: LoadOptions, device: torch.device) -> Forecast:
    header = checkpoint.header
    dtype = dtype_of(options, gguf.dtype_of(header), device)
    weights = memory.weights_of(checkpoint, memory.Storage(dtype)) or 0
    counts = {name: math.prod(tensor.shape) for name, tensor in header.tensors.items()}
    return Forecast(
        need=memory.Footprint(weights, 0, 0),
        disk=sum(tensor.stop - tensor.start for tensor in header.tensors.values()),
        blocks=sum(count for name, count in counts.items() if name.startswith("blk.")),
        head=counts.get("token_embd.weight", 0),
        depth=int(header.values.get(f"{header.architecture}.block_count", 0)),
        device=device,
    )


def _of_checkpoint(checkpoint: Checkpoint, options: LoadOptions, device: torch.device) -> Forecast:
    config = AutoConfig.for_model(**checkpoint.config)
    text, method = text_config(config), quantisation.stored_method(config)
    dtype = dtype_of(options, stored_dtype(config), device)
    dense = quantisation.is_dequantised(method, device)
    storage = memory.Storage(dtype, options.quantize, dense)
    quantiser = "bitsandbytes" if options.quantize else method
    packages = [] if quantiser is None else quantisation.missing_packages(quantiser, device)
    tensors = checkpoint.tensors() if isinstance(checkpoint, SafetensorsCheckpoint) else ()
    disk, blocks = 0, 0.0
    share = _active_share(text)
    for name, info in tensors:
        disk += info.stop - info.start
        if name.endswith(memory.SCALES) or _EMBEDDING.search(name):
            continue
        count = math.prod(info.shape) * (2 if name.endswith("_blocks") else 1)  # two per byte
        blocks += count * (share if ".experts." in name else 1.0)
    return Forecast(
        need=memory.footprint(checkpoint, config, storage, device),
        disk=disk or None,
        blocks=int(blocks) or None,
        head=text.vocab_size * text.hidden_size,
        depth=text.num_hidden_layers,
        device=device,
        missing=tuple(f"pip install {name}" for name in packages),
    )


def _active_share(text: Any) -> float:
    """Return the share of a mixture's experts that each token uses; 1 without experts."""
    names = ("num_local_experts", "num_experts", "n_routed_experts")
    experts = next((n for name in names if (n := getattr(text, name, None))), 1)
    return min(1.0, (getattr(text, "num_experts_per_tok", None) or experts) / experts)


def product_speed(device: torch.device, dtype: torch.dtype = torch.float32) -> float:
    """Measure floating-point operations per second of a large matrix product."""
    size = 1024 if device.type == "cpu" else 8192
    a = torch.ones(size, size, dtype=dtype, device=device)
    best = math.inf
    for _ in range(3):
        start = time.perf_counter()
        float((a @ a)[0, 0])  # reading a value waits for the device
        best = min(best, time.perf_counter() - start)
    return 2.0 * size**3 / best
