"""Identity of a model: its name in records and certificates, and digests of its files.

Every byte is read: weights trained further under the same name, or shuffled, are another model. A
file's digest is kept in the cache folder by its path, size, inode and times, so that it is paid for
once: 0.85 CPU seconds a GB where the processor has instructions for SHA-256.
"""

import contextlib
import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from lastword.files.writing import open_whole

if TYPE_CHECKING:
    from torch import Tensor

# What makes a local model what it is, by the word that a refusal has for it.
_PARTS = {
    "weights": ("*.safetensors", "*.bin"),
    "config": ("config.json", "adapter_config.json", "*.py"),
    "tokenizer": (
        *("tokenizer*", "vocab*", "merges.txt", "*.model"),
        *("special_tokens_map.json", "added_tokens.json", "chat_template*"),
    ),
}
_READERS = 4


def model_name(source: str) -> str:
    """Return the hub's name of a model; of a local folder or GGUF file, its name."""
    path = Path(source).expanduser()
    if path.is_dir():
        return path.resolve().name
    return path.stem if path.is_file() else source


def folder_digests(folder: Path) -> dict[str, str] | None:
    """Return a local model's digests by part: `weights`, `config`, `tokenizer`, as far as there.

    None for what is no folder: the hub has revisions.
    """
    if not folder.is_dir():
        return None
    files = {part: {p for n in names for p in folder.glob(n)} for part, names in _PARTS.items()}
    return {part: files_digest(sorted(paths)) for part, paths in files.items() if paths}


def tensors_digest(tensors: Mapping[str, "Tensor"]) -> str:
    """Return the digest of tensors in memory: names, types, shapes and every byte."""
    import torch

    digest = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        plain = tensor.detach().cpu().contiguous().flatten()
        digest.update(plain.view(torch.uint8).numpy().data)
    return digest.hexdigest()


def folder_digest(folder: Path) -> str | None:
    """Return one digest over all parts of a local model; None for what is no folder."""
    parts = folder_digests(folder)
    return None if parts is None else text_digest(json.dumps(parts, sort_keys=True))


def files_digest(paths: Iterable[Path]) -> str:
    """Return the digest of every file's name and content."""
    named = list(paths)
    with ThreadPoolExecutor(_READERS) as pool:  # hashing leaves the interpreter's lock
        digests = pool.map(file_digest, named)
        lines = [f"{path.name} {digest}\n" for path, digest in zip(named, digests, strict=True)]
    return text_digest("".join(lines))


def cache_folder() -> Path:
    """Return where files are kept: `LASTWORD_CACHE`, else a folder in the user's cache."""
    if variable := os.environ.get("LASTWORD_CACHE"):
        return Path(variable)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "lastword"


def file_digest(path: Path) -> str:
    """Return SHA-256 of a file, read once and then kept."""
    mark = _mark(path)
    stored = cache_folder() / "digests" / text_digest(mark)
    with contextlib.suppress(OSError, ValueError):
        text = stored.read_text(encoding="ascii")
        if len(text) == hashlib.sha256().digest_size * 2:
            return text
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if _mark(path) == mark:  # nobody wrote meanwhile
        with contextlib.suppress(OSError):  # a folder that cannot be written keeps nothing
            stored.parent.mkdir(parents=True, exist_ok=True)
            with open_whole(stored) as out:
                out.write(digest.encode())
    return digest


def text_digest(text: str) -> str:
    """Return SHA-256 of a text."""
    return hashlib.sha256(text.encode()).hexdigest()


def _mark(path: Path) -> str:
    """Return what changes with a file; the time of its last change cannot be set back."""
    stat = path.stat()
    times = f"{stat.st_mtime_ns} {stat.st_ctime_ns}"
    return f"{path.resolve()} {stat.st_size} {stat.st_dev} {stat.st_ino} {times}"
