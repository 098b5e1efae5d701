"""Digests of a model's files and load options, before anything is loaded."""

from collections.abc import Mapping
from pathlib import Path

from lastword.errors import ModelError
from lastword.files.strict_json import to_json
from lastword.model import embedded, named
from lastword.model.options import LoadOptions
from lastword.model.weights.identity import file_digest, folder_digests, is_adapter, text_digest


def load_digest(options: LoadOptions) -> str | None:
    """Return the digest of a model's files, or last downloaded commit, and options for records.

    None for an adapter, or for a model that was not downloaded yet.
    """
    files = _files(options)
    return None if files is None else text_digest(to_json(options.facts() | {"files": files}))


def digests(source: Mapping[str, object]) -> dict[str, str]:
    """Return digests of a local model's files by part; {} for a hub's, which has a commit."""
    if (digest := source.get("gguf_sha256")) is not None:
        return {"weights": str(digest)}
    place = str(source.get("path", source["model"]))
    name = place.removeprefix(embedded.EMBEDDED)
    folder = Path(place) if name == place else embedded.folder(name)
    base = folder_digests(Path(str(source["base"])).expanduser()) if "base" in source else {}
    parts = {f"base's {part}": digest for part, digest in base.items()}
    return folder_digests(folder.expanduser()) | parts


def require_there(options: LoadOptions) -> None:
    """Refuse a local or published model that is not here."""
    path = Path(options.name).expanduser()
    if options.name.startswith(named.PREFIX) and options.embedded is None:
        named.locate(options.name)
    by_path = options.name.startswith((".", "/", "~")) or path.suffix == ".gguf"
    if by_path and not path.exists():
        raise ModelError(f"no model at {path}: expected a GGUF file or a folder with config.json")


def _files(options: LoadOptions) -> dict[str, str] | str | None:
    if options.embedded is not None:
        return "carried"  # part of the package, whose version is compared too
    path = Path(options.name).expanduser()
    if options.name.startswith(named.PREFIX):
        path = named.entry(options.name).place or path
    elif options.gguf is not None:
        path /= options.gguf
    if path.is_file():
        return file_digest(path)
    if path.is_dir():
        whole = (path / "config.json").is_file() and not is_adapter(path)
        return folder_digests(path) if whole else None  # an adapter's base is elsewhere
    from lastword.model.weights import hub

    return hub.downloaded_commit(options.name, options.gguf or "config.json", options.revision)
