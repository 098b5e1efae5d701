"""Which model it is: the name that records and certificates give it, and a digest of its files."""

import hashlib
from collections.abc import Iterable
from pathlib import Path

# What makes a local model what it is.
_MODEL_FILES = ("*.safetensors", "*.bin", "config.json", "tokenizer*", "chat_template*")
_SLICES = 64


def model_name(source: str) -> str:
    """The hub's name of a model; of a local folder or GGUF file, its own name."""
    path = Path(source).expanduser()
    if path.is_dir():
        return path.resolve().name
    return path.stem if path.is_file() else source


def folder_digest(folder: Path) -> str | None:
    """Digest of a local model: weights trained further under the same name are another model.

    Of every file of weights, configuration and tokenizer, as `files_digest` has it, so that a large
    model costs no full read. None for what is no folder: the hub has revisions.
    """
    if not folder.is_dir():
        return None
    return files_digest(sorted({p for pattern in _MODEL_FILES for p in folder.glob(pattern)}))


def files_digest(paths: Iterable[Path]) -> str:
    """Digest of every file's name, size, and 4 KiB at 64 even places."""
    digest = hashlib.sha256()
    for path in paths:
        size = path.stat().st_size
        digest.update(f"{path.name} {size}\n".encode())
        with path.open("rb") as file:
            for place in sorted({size * i // _SLICES for i in range(_SLICES)}):
                file.seek(place)
                digest.update(file.read(4096))
    return digest.hexdigest()
