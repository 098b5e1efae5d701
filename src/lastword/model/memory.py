"""The memory of a model's weights, from its checkpoint's header, before it is loaded."""

import contextlib
import math
import re
from pathlib import Path

import torch

from lastword.errors import TooLargeError
from lastword.model.weights.checkpoint import SafetensorsCheckpoint, TensorInfo

_SCALES = ("_scale_inv", "_scale", "_scales")  # suffixes of the scales of FP8 and MXFP4
_FLOATS = frozenset({"F64", "F32", "F16", "BF16"})
_CGROUP = Path("/sys/fs/cgroup")


def weight_bytes(
    checkpoint: SafetensorsCheckpoint, dtype: torch.dtype, dequantised: bool = False
) -> int:
    """Return the bytes of a checkpoint's weights, if those that are not quantised get a dtype."""

    def size_of(name: str, info: TensorInfo) -> int:
        count = math.prod(info.shape)
        if dequantised and name.endswith(_SCALES):
            return 0
        if dequantised and name.endswith("_blocks"):
            return 2 * count * dtype.itemsize  # two values per byte
        plain = info.dtype in _FLOATS or (dequantised and info.dtype.startswith("F8"))
        return count * dtype.itemsize if plain else info.stop - info.start

    return sum(size_of(name, info) for name, info in checkpoint.tensors())


def refuse_too_large(name: str, need: int, device: torch.device) -> None:
    """Refuse weights that do not fit the free memory of their device."""
    free = available(device)
    if free is not None and need > free:
        raise TooLargeError(
            f"the weights of {name} take {need / 1e9:.1f} GB on {device}, and {free / 1e9:.1f} GB "
            "are free: try quantize=nf4, dtype=bfloat16, or device_map=auto to spread them (in a "
            "command --dtype, and --load for the others)"
        )


def available(device: torch.device) -> int | None:
    """Return the free bytes of a device; None if the system does not report them."""
    if device.type == "cpu":
        return min((n for n in (_free_memory(), _free_cgroup()) if n is not None), default=None)
    if device.type == "mps":
        return int(torch.mps.recommended_max_memory() - torch.mps.current_allocated_memory())
    return int(torch.get_device_module(device).mem_get_info(device)[0])


def _free_memory() -> int | None:
    with contextlib.suppress(OSError):
        found = re.search(r"^MemAvailable: +(\d+)", Path("/proc/meminfo").read_text(), re.M)
        return int(found[1]) * 1024 if found else None
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
