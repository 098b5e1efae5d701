"""Identity of a model: its name in records and certificates, and digests of its files.

Every byte is read, because weights that were trained further or shuffled are another model. A
file's digest, which takes 0.85 CPU seconds per GB, is cached by its path, size, inode and times.
"""

import contextlib
import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from lastword.files.writing import write_text

if TYPE_CHECKING:
    from torch import Tensor

ADAPTER = "adapter_config.json"
# Patterns of a local model's files, by the part's name in messages. Weights in *.bin are read only
# if there are no safetensors.
_PARTS = {
    "weights": ("*.safetensors",),
    "config": ("config.json", ADAPTER, "*.py"),
    "tokenizer": (
        "tokenizer* vocab* merges.txt *.model special_tokens_map.json added_tokens.json "
        "chat_template*"
    ).split(),
}


def model_name(source: str) -> str:
    """Return the hub's name of a model, or the name of a local folder or GGUF file."""
    path = Path(source).expanduser()
    if path.is_dir():
        return path.resolve().name
    return path.stem if path.is_file() else source


def folder_digests(folder: Path) -> dict[str, str]:
    """Return digests of every file's name and content, by `_PARTS`; {} if it is no folder."""
    digests = {}
    for part, names in _PARTS.items():
        paths = {path for name in names for path in folder.glob(name) if path.is_file()}
        if part == "weights":
            paths = paths or {*folder.glob("*.bin")}
        if paths:
            lines = (f"{path.name} {file_digest(path)}\n" for path in sorted(paths))
            digests[part] = text_digest("".join(lines))
    return digests


def is_adapter(folder: Path) -> bool:
    """Return True if a folder has an adapter and no model."""
    return (folder / ADAPTER).is_file() and not any(folder.glob("model*.safetensors*"))


def tensors_digest(tensors: Mapping[str, "Tensor"]) -> str:
    """Return the digest of tensors in memory: names, types, shapes and every byte."""
    import torch

    digest = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        plain = tensor.detach().cpu().contiguous().flatten()
        digest.update(plain.view(torch.uint8).numpy().data)
    return digest.hexdigest()


def cache_folder() -> Path:
    """Return the cache folder: `LASTWORD_CACHE`, else a folder in the user's cache."""
    if variable := os.environ.get("LASTWORD_CACHE"):
        return Path(variable)
    with contextlib.suppress(RuntimeError):
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "lastword"
    return Path(os.devnull)  # for a user without a home folder: nothing can be stored there


def store(path: Path, text: str) -> None:
    """Write a file of the cache, unless the disk refuses: the cache may be read-only."""
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, text)


def file_digest(path: Path) -> str:
    """Return SHA-256 of a file, from the cache if the file did not change."""
    mark = _mark(path)
    stored = cache_folder() / "digests" / text_digest(mark)
    with contextlib.suppress(OSError, ValueError):
        text = stored.read_text(encoding="ascii")
        if len(text) == hashlib.sha256().digest_size * 2:
            return text
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if _mark(path) == mark:  # the file did not change while it was read
        store(stored, digest)
    return digest


def text_digest(text: str) -> str:
    """Return SHA-256 of a text."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _mark(path: Path) -> str:
    """Return a text that changes with a file; users cannot set its change time back."""
    stat = path.stat()
    times = f"{stat.st_mtime_ns} {stat.st_ctime_ns}"
    return f"{path.resolve()} {stat.st_size} {stat.st_dev} {stat.st_ino} {times}"
