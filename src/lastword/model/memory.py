"""The memory that a model will need, from its checkpoint's header, before it is loaded.

It is the sum of the weights in their dtype after loading, the copy of the head for the CPU's
kernels, and one batch with its states, activations, and the logits of one tile.
"""

import math
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from lastword.errors import TooLargeError
from lastword.model.backend import default_batch_tokens, token_bytes
from lastword.model.options import Quantize
from lastword.model.parts import text_config
from lastword.model.reading import TILE_LOGITS, TILE_LOGITS_CUDA
from lastword.model.weights.checkpoint import Checkpoint, SafetensorsCheckpoint, TensorInfo
from lastword.rule.theta import Theta

TILE_COPIES = 4  # arrays of a tile's size, besides the logits at the scorer's depths
SCALES = ("_scale_inv", "_scale", "_scales")  # suffixes of the scales of FP8 and MXFP4
_FLOATS = frozenset({"F64", "F32", "F16", "BF16"})
_FLOAT8 = frozenset({"F8_E4M3", "F8_E5M2"})
# Names of linear layers in the blocks, which bitsandbytes quantises; it does not quantise experts.
_LINEAR = re.compile(r"\D+\.\d+\.((?!experts\.).)*(?<!norm)\.weight$")
_BYTES = {"int8": 1.0, "nf4": 0.5 + 4 / 64}  # per value; nf4 has a float32 per block of 64
_CGROUP = Path("/sys/fs/cgroup")


@dataclass(frozen=True)
class Footprint:
    """Bytes that a model needs.

    Attributes:
        weights: Its tensors in memory.
        head: The copy of the head in float32 for the CPU's kernels.
        batch: States, activations and logits of one batch.
    """

    weights: int
    head: int
    batch: int

    @property
    def total(self) -> int:
        """The sum."""
        return self.weights + self.head + self.batch


@dataclass(frozen=True)
class Storage:
    """The storage of a checkpoint's tensors after loading.

    Attributes:
        dtype: Data type of tensors that are not quantised.
        dequantised: True if stored FP8 and MXFP4 become `dtype`.
    """

    dtype: torch.dtype
    quantize: Quantize | None = None
    dequantised: bool = False


def footprint(
    checkpoint: Checkpoint,
    config: Any,
    storage: Storage,
    device: torch.device,
    batch_tokens: int | None = None,
) -> Footprint | None:
    """Estimate the memory of a checkpoint on a device; return None if its header is unknown."""
    weights = weights_of(checkpoint, storage)
    if weights is None:
        return None
    text = text_config(config)
    head = text.vocab_size * text.hidden_size * 4 if device.type == "cpu" else 0
    tokens = batch_tokens or default_batch_tokens(text, storage.dtype, device)
    depth, theta = text.num_hidden_layers, Theta()
    copies = TILE_COPIES + len({*theta.anchor_depths(depth), *theta.feature_depths(depth)})
    limit = TILE_LOGITS_CUDA if device.type == "cuda" else TILE_LOGITS
    # In float32; a tile has at most 1,024 rows (`reading.tile_rows`), and no more than the batch.
    tile = copies * 4 * min(limit, min(1024, tokens) * text.vocab_size)
    return Footprint(weights, head, tokens * token_bytes(text, storage.dtype) + tile)


def weights_of(checkpoint: Checkpoint, storage: Storage) -> int | None:
    """Return the bytes of a checkpoint's loaded weights; None if its header is unknown."""
    if isinstance(checkpoint, SafetensorsCheckpoint):
        return sum(_bytes(name, info, storage) for name, info in checkpoint.tensors())
    return None


def _bytes(name: str, info: TensorInfo, storage: Storage) -> int:
    size, count = info.stop - info.start, math.prod(info.shape)
    if storage.dequantised:
        if name.endswith(SCALES):
            return 0
        if name.endswith("_blocks"):
            return 2 * count * storage.dtype.itemsize  # two values per byte
        if info.dtype in _FLOAT8:
            return count * storage.dtype.itemsize
    if info.dtype not in _FLOATS:
        return size
    if storage.quantize is not None and len(info.shape) == 2 and _LINEAR.fullmatch(name):
        return int(count * _BYTES[storage.quantize])
    return count * storage.dtype.itemsize


def available(device: torch.device) -> int | None:
    """Return the free bytes of a device; None if the system does not report them."""
    if device.type == "cpu":
        return min((n for n in (_free_memory(), _free_cgroup()) if n is not None), default=None)
    if device.type == "mps":
        return int(torch.mps.recommended_max_memory() - torch.mps.current_allocated_memory())
    return int(torch.get_device_module(device).mem_get_info(device)[0])


def _free_memory() -> int | None:
    """Return the memory available without swapping; if unknown, all of the machine's."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        (free,) = (line.split()[1] for line in lines if line.startswith("MemAvailable:"))
        return int(free) * 1024
    except (OSError, ValueError):
        pass
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError, AttributeError):
        return None


def _free_cgroup() -> int | None:
    """Return the memory left under a container's limit; cached files do not count as used."""
    try:
        limit = int((_CGROUP / "memory.max").read_text())
        used = int((_CGROUP / "memory.current").read_text())
        stat = dict(line.split() for line in (_CGROUP / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):  # no such file, or the limit is `max`
        return None
    return limit - used + int(stat.get("inactive_file", 0))


def refuse_too_large(name: str, need: Footprint, device: torch.device) -> None:
    """Refuse a model that does not fit the free memory of its device.

    Raises:
        TooLargeError: It does not fit; the message says how to reduce its size.
    """
    free = available(device)
    if free is not None and need.total > free:
        raise TooLargeError(
            f"{name} takes about {gigabytes([need.total])} GB on {device} (weights "
            f"{gigabytes([need.weights])}, head and batch "
            f"{gigabytes([need.head, need.batch])}) and {gigabytes([free])} GB are free: try "
            "quantize=nf4, dtype=bfloat16, a smaller batch_tokens, or device_map=auto to spread it "
            "(in a command --dtype, and --load for the others)"
        )


def gigabytes(parts: Iterable[int]) -> str:
    """Return the sum of bytes in gigabytes, with one decimal."""
    return f"{sum(parts) / 1e9:.1f}"
