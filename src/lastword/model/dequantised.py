"""Dequantised GGUF files, as checkpoints in the cache folder that transformers loads.

Each stands under the file's digest, its dtype and the versions that read it, so that a file that
changed is another one. A folder appears whole or not at all; the least recently used go where all
of them would take more than `limit`, and nothing is kept where it would fill the disk.
"""

import contextlib
import logging
import math
import os
import shutil
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from safetensors import SafetensorError

from lastword.errors import InputError
from lastword.model.weights.identity import cache_folder, file_digest, text_digest

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

    from lastword.model.weights.gguf import Header

LIMIT_GB = 8.0  # of all that is kept
LIMIT_VARIABLE = "LASTWORD_GGUF_CACHE"
_LEAST = 2**26  # bytes of weights: a smaller file is read as fast as what would be kept of it
_SPARE = 2**30  # bytes that stay free on the disk
# Part of every name: raise it whenever other things are kept of the same file.
_READING = 3

_log = logging.getLogger("lastword")


def limit() -> int:
    """Return the bytes that may be kept: `LASTWORD_GGUF_CACHE` in GB; 0 keeps nothing.

    Raises:
        InputError: The variable is no number.
    """
    value = os.environ.get(LIMIT_VARIABLE)
    with contextlib.suppress(ValueError):
        if (size := float(LIMIT_GB if value is None else value)) >= 0:
            return int(size * 1e9)
    raise InputError(f"{LIMIT_VARIABLE} is {value!r}: expected a number of GB, 0 to keep nothing")


def place(path: Path, header: "Header", dtype: "torch.dtype") -> Path | None:
    """Return where a file's model is kept; None of a file that is not worth it."""
    size = sum(math.prod(tensor.shape) for tensor in header.tensors.values()) * dtype.itemsize
    if not _LEAST <= size <= limit():
        return None
    versions = "-".join([str(_READING), *(version(name) for name in ("gguf", "transformers"))])
    name = (
        f"{file_digest(path)[:32]}-{str(dtype).removeprefix('torch.')}-{text_digest(versions)[:8]}"
    )
    return _root() / name


def _root() -> Path:
    return cache_folder() / "gguf"


def keep(place: Path, file: str, model: "PreTrainedModel") -> None:
    """Keep what was read of a file; where the disk has no room for it, or refuses, nothing."""
    size = sum(tensor.nbytes for tensor in model.parameters())
    try:
        _root().mkdir(parents=True, exist_ok=True)
        if shutil.disk_usage(_root()).free < size + _SPARE:
            return
        _make_room(size)
        with TemporaryDirectory(dir=_root(), prefix=".", ignore_cleanup_errors=True) as draft:
            model.save_pretrained(draft)
            for weights in Path(draft).glob("*.safetensors"):
                with weights.open("rb") as written:  # on the disk before it has its name
                    os.fsync(written.fileno())
            if not place.exists():  # by a process that read the same file
                Path(draft).rename(place)
    except (OSError, SafetensorError) as error:
        _log.warning("%s is not kept dequantised: %s", file, error)
        return
    _log.warning("%s is kept dequantised (%.1f GB in %s)", file, size / 1e9, place.parent)


def _make_room(size: int) -> None:
    """Drop the least recently used, drafts that were left too, until so many bytes have room."""
    folders = sorted(_root().iterdir(), key=lambda folder: -folder.stat().st_mtime)
    used = [sum(path.stat().st_size for path in folder.iterdir()) for folder in folders]
    while folders and sum(used) + size > limit():
        used.pop()
        shutil.rmtree(folders.pop(), ignore_errors=True)
