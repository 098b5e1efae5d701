"""Cache of dequantised GGUF files, as checkpoints that transformers loads.

The name of an entry has the file's digest, the dtype and the versions of the packages that read it,
so a changed file gets a new entry. A folder appears complete or not at all. The least recently used
folders are removed beyond `limit`, and nothing is stored on a full disk.
"""

import contextlib
import logging
import math
import os
import shutil
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from safetensors import SafetensorError
from transformers import PreTrainedModel

from lastword.errors import InputError
from lastword.model.reading import dtype_name
from lastword.model.weights.gguf import Header
from lastword.model.weights.identity import cache_folder, file_digest, text_digest

LIMIT_GB = 8.0  # of all entries
LIMIT_VARIABLE = "LASTWORD_GGUF_CACHE"
_LEAST = 2**26  # bytes of weights; smaller GGUF files load as fast as their copy would
_SPARE = 2**30  # bytes that stay free on the disk
_FORMAT = 3  # part of every name; raise it if the contents of entries change

_log = logging.getLogger("lastword")


def limit() -> int:
    """Return the maximum size of the cache in bytes: `LASTWORD_GGUF_CACHE` in GB, 0 for none.

    Raises:
        InputError: The variable is not a number.
    """
    value = os.environ.get(LIMIT_VARIABLE)
    with contextlib.suppress(ValueError):
        if (size := float(LIMIT_GB if value is None else value)) >= 0:
            return int(size * 1e9)
    raise InputError(f"{LIMIT_VARIABLE} is {value!r}: expected GB, or 0 for no cache")


def place(path: Path, header: Header, dtype: torch.dtype) -> Path | None:
    """Return the entry of a file's model; None if the model is too small or too large for one."""
    size = sum(math.prod(tensor.shape) for tensor in header.tensors.values()) * dtype.itemsize
    if not _LEAST <= size <= limit():
        return None
    versions = "-".join([str(_FORMAT), version("gguf"), version("transformers")])
    parts = file_digest(path)[:32], dtype_name(dtype), text_digest(versions)[:8]
    return _root() / "-".join(parts)


def _root() -> Path:
    return cache_folder() / "gguf"


def keep(place: Path, file: str, model: PreTrainedModel) -> None:
    """Store the model of a file, unless the disk is full or refuses."""
    size = sum(tensor.nbytes for tensor in model.parameters())
    try:
        _root().mkdir(parents=True, exist_ok=True)
        if shutil.disk_usage(_root()).free < size + _SPARE:
            return
        _make_room(size)
        with TemporaryDirectory(dir=_root(), prefix=".", ignore_cleanup_errors=True) as draft:
            model.save_pretrained(draft)
            for weights in Path(draft).glob("*.safetensors"):
                with weights.open("rb") as written:  # written to disk before the rename
                    os.fsync(written.fileno())
            if not place.exists():  # another process may have read the same file
                Path(draft).rename(place)
    except (OSError, SafetensorError) as error:
        _log.warning("%s is not kept dequantised: %s", file, error)
        return
    _log.warning("%s is kept dequantised (%.1f GB in %s)", file, size / 1e9, place.parent)


def _make_room(size: int) -> None:
    """Remove the least recently used entries, and old drafts, until `size` bytes have room."""
    folders = sorted(_root().iterdir(), key=lambda folder: -folder.stat().st_mtime)
    used = [sum(path.stat().st_size for path in folder.iterdir()) for folder in folders]
    while folders and sum(used) + size > limit():
        used.pop()
        shutil.rmtree(folders.pop(), ignore_errors=True)
