"""GGUF files dequantised once: weights as safetensors, and the tokenizer, in the cache folder.

What is kept stands under the file's digest, its dtype and the versions that read it, so that a file
that changed is another one. A folder appears whole or not at all; the least recently used go where
all of them would take more than `limit`, and nothing is kept where it would fill the disk.
"""

import contextlib
import json
import logging
import math
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from uuid import uuid4

from lastword.errors import InputError
from lastword.weights.identity import cache_folder, file_digest, text_digest

if TYPE_CHECKING:
    import torch
    from torch import Tensor
    from transformers import PreTrainedModel

    from lastword.text.tokens import Tokenizer
    from lastword.weights.gguf import Header

LIMIT_GB = 8.0  # of all that is kept
LIMIT_VARIABLE = "LASTWORD_GGUF_CACHE"
_LEAST = 2**26  # bytes of weights: a smaller file is read as fast as what would be kept of it
_SPARE = 2**30  # bytes that stay free on the disk
_ABANDONED = 3600.0  # seconds after which a folder half written is nobody's
# Part of every name: raise it whenever other things are kept of the same file.
_READING = 2
_WEIGHTS, _ABOUT = "model.safetensors", "about.json"
_PLAIN = ("F32", "F16", "BF16")
_SAMPLE = " A\tsample,  with <bos> and <|im_start|>user of 12 345 \u00e4\u4e2d\n\nlines"
_SAID = ("chat_template", "special_tokens_map", "model_max_length", "padding_side", "add_bos_token")

_log = logging.getLogger("lastword")


@dataclass(frozen=True)
class Entry:
    """The folder that is kept of one file.

    Attributes:
        place: Its folder.
        file: The GGUF file's name.
        size: Bytes on disk.
        used: When it was last read or written, in seconds since 1970.
    """

    place: Path
    file: str
    size: int
    used: float


def limit() -> int:
    """The bytes that may be kept: `LASTWORD_GGUF_CACHE` in GB; 0 keeps nothing.

    Raises:
        InputError: The variable is no number.
    """
    value = os.environ.get(LIMIT_VARIABLE)
    with contextlib.suppress(ValueError):
        if (size := float(LIMIT_GB if value is None else value)) >= 0:
            return int(size * 1e9)
    raise InputError(f"{LIMIT_VARIABLE} is {value!r}: expected a number of GB, 0 to keep nothing")


def place(path: Path, header: "Header", dtype: "torch.dtype") -> Path | None:
    """Where a file's weights are kept; None of a file that is not quantised, or not worth it."""
    size = sum(math.prod(own.shape) for own in header.tensors.values()) * dtype.itemsize
    if header.quantisation in _PLAIN or not _LEAST <= size <= limit():
        return None
    made = "-".join([str(_READING), *(version(name) for name in ("gguf", "transformers"))])
    name = f"{file_digest(path)[:32]}-{str(dtype).removeprefix('torch.')}-{text_digest(made)[:8]}"
    return _root() / name


def _root() -> Path:
    return cache_folder() / "gguf"


def find(place: Path) -> bool:
    """True if something is kept there, which counts as used now."""
    if not (place / _WEIGHTS).is_file():
        return False
    with contextlib.suppress(OSError):  # a folder of others can be read all the same
        os.utime(place)
    return True


def read_tokenizer(place: Path) -> "Tokenizer | None":
    """The tokenizer that is kept there; None where it does not read back as the file's own was.

    Raises:
        OSError, ValueError, KeyError: What is there is damaged.
    """
    if not (words := place / "tokenizer.json").is_file():
        return None
    from lastword.model import gguf  # transformers comes with it

    tokenizer = gguf.read_tokenizer(place)
    if _about(place)["tokenizer"] == _said(tokenizer):
        return tokenizer
    with contextlib.suppress(OSError):  # a folder of others stays as it is
        words.unlink()
    return None


def keep(place: Path | None, file: str, model: "PreTrainedModel", tokenizer: "Tokenizer") -> None:
    """Keep what was read of a file; where the disk has no room for it, or refuses, nothing.

    Args:
        place: Where, as `place` says; nothing is kept where it is None.
        file: The file's name, for the list.
        model: Dequantised.
        tokenizer: The file's.
    """
    if place is None:
        return
    tensors = _distinct(model)
    size = sum(tensor.nbytes for tensor in tensors.values())
    try:
        _root().mkdir(parents=True, exist_ok=True)
        if shutil.disk_usage(_root()).free < size + _SPARE:
            return
        _make_room(size)
        with _whole(place) as draft:
            _write(draft, file, tensors, tokenizer)
            if model.generation_config is not None:
                model.generation_config.save_pretrained(str(draft))
    except OSError as error:
        _log.warning("%s is not kept dequantised: %s", file, error.strerror or error)
        return
    words = (file, size / 1e9, place.parent)
    _log.warning("%s is kept dequantised (%.1f GB in %s)", *words)


def _distinct(model: "PreTrainedModel") -> "dict[str, Tensor]":
    """The weights by name, each that several names share once."""
    tensors: dict[tuple[int, tuple[int, ...]], tuple[str, Tensor]] = {}
    for name, tensor in model.state_dict().items():
        tensors.setdefault((tensor.data_ptr(), tuple(tensor.shape)), (name, tensor))
    return {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.values()}


@contextmanager
def _whole(place: Path) -> Iterator[Path]:
    """A folder to fill, which stands at `place` once the block ends; another's is left there."""
    draft = place.with_name(f".{place.name}.{uuid4().hex[:8]}.tmp")
    draft.mkdir()
    try:
        yield draft
        if not place.exists():
            with contextlib.suppress(FileExistsError):  # a process that read the same file
                draft.rename(place)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _write(draft: Path, file: str, tensors: "dict[str, Tensor]", tokenizer: "Tokenizer") -> None:
    from safetensors.torch import save_file

    save_file(tensors, draft / _WEIGHTS, metadata={"format": "pt"})
    about = {"file": file, "tokenizer": _said(tokenizer)}
    (draft / _ABOUT).write_text(json.dumps(about), encoding="utf-8")
    cast(Any, tokenizer).save_pretrained(str(draft))
    with open(draft / _WEIGHTS, "rb") as weights:
        os.fsync(weights.fileno())


def _said(tokenizer: "Tokenizer") -> Any:
    """Return what has to be the same of two tokenizers that are one, as JSON has it."""
    whole: Any = tokenizer
    facts = [
        len(whole),
        whole(_SAMPLE).input_ids,
        whole(_SAMPLE, add_special_tokens=False).input_ids,
        *(getattr(whole, name, None) for name in _SAID),
    ]
    return json.loads(json.dumps(facts))


def entries() -> list[Entry]:
    """List what is kept, the most recently used first."""
    kept = []
    for place in _root().glob("[!.]*"):
        with contextlib.suppress(OSError, ValueError, KeyError):  # another process clears it
            kept.append(Entry(place, _about(place)["file"], _size(place), place.stat().st_mtime))
    return sorted(kept, key=lambda entry: -entry.used)


def _about(place: Path) -> dict[str, Any]:
    about: dict[str, Any] = json.loads((place / _ABOUT).read_text(encoding="utf-8"))
    return about


def _size(place: Path) -> int:
    return sum(own.stat().st_size for own in place.iterdir())


def _make_room(size: int) -> None:
    """Drop the least recently used until there is room for so many bytes, and what was left."""
    for draft in _root().glob(".*.tmp"):
        if time.time() - draft.stat().st_mtime > _ABANDONED:
            drop(draft)
    kept = entries()
    while kept and sum(entry.size for entry in kept) + size > limit():
        drop(kept.pop().place)


def drop(place: Path) -> None:
    """Remove what is kept there; a process that reads it goes on."""
    with contextlib.suppress(FileNotFoundError):
        gone = place.with_name(f".{uuid4().hex[:8]}.tmp")
        place.rename(gone)  # at once, so that nobody finds half of it
        shutil.rmtree(gone, ignore_errors=True)
