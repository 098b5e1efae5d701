"""One digest of a model's files and load options, known before anything is loaded."""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lastword.errors import ModelError
from lastword.files.strict_json import to_json
from lastword.model import embedded
from lastword.model.options import LoadOptions


def load_digest(options: LoadOptions) -> str | None:
    """Return the digest of a model's files and of the options that records depend on.

    Two starts with one digest load the same model. For a model of the hub the commit that was
    downloaded last counts; the hub is not asked for a newer one.

    Returns:
        None if only loading can tell: a model that was not downloaded yet, or an adapter.
    """
    files = _files(options)
    if files is None:
        return None
    facts = options.facts() | {"files": files}
    return hashlib.sha256(to_json(facts).encode()).hexdigest()


def digests(source: Mapping[str, Any]) -> dict[str, str]:
    """Return what tells a model's files apart, by part; none of the hub's, whose commit does."""
    from lastword.model.weights.identity import folder_digests

    if (whole := source.get("gguf_sha256")) is not None:
        return {"weights": str(whole)}
    place = str(source.get("path", source["model"]))
    carried = place.startswith(embedded.EMBEDDED)
    folder = embedded.folder(place.removeprefix(embedded.EMBEDDED)) if carried else Path(place)
    base = folder_digests(Path(source.get("base", "")).expanduser()) if "base" in source else None
    parts = folder_digests(folder.expanduser()) or {}
    return parts | {f"base's {part}": digest for part, digest in (base or {}).items()}


def require_there(options: LoadOptions) -> None:
    """Refuse a model that is named by its path and is not there, before anything else is read.

    Raises:
        InputError: An unknown name that begins with `lastword/`.
        ModelError: No such folder or file, or a model that lastword can fetch was not fetched.
    """
    from lastword.model import named

    path = Path(options.name).expanduser()
    if options.name.startswith(named.OWN) and options.embedded is None:
        named.locate(options.name)
    by_path = options.name.startswith((".", "/", "~")) or path.suffix == ".gguf"
    if by_path and not path.exists():
        raise ModelError(f"no model at {path}: expected a GGUF file or a folder with config.json")


def _files(options: LoadOptions) -> str | None:
    if options.embedded is not None:
        return "carried"  # by the package, whose version is compared too
    from lastword.model import named
    from lastword.model.weights.identity import files_digest, folder_digest

    path = Path(options.name).expanduser()
    if options.name.startswith(named.OWN):
        model = named.published(options.name)
        file = None if model is None else named.find(model)
        return None if file is None or file.is_dir() else files_digest([file])
    if path.is_dir():
        if options.gguf is not None:
            return files_digest([path / options.gguf])
        return folder_digest(path) if (path / "config.json").is_file() else None
    return files_digest([path]) if path.is_file() else _commit(options)


def _commit(options: LoadOptions) -> str | None:
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    file = options.gguf or "config.json"
    try:
        cached = try_to_load_from_cache(options.name, file, revision=options.revision)
    except HFValidationError:
        return None
    if not isinstance(cached, str):
        return None
    parts = Path(cached).parts
    return parts[parts.index("snapshots") + 1]
