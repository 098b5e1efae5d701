"""The tracer of the last command, taken again where everything that made it is what it was."""

import os
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lastword.model.options import LoadOptions
    from lastword.tracer import Tracer


@dataclass
class Shelf:
    """Room for one tracer.

    Attributes:
        key: What made it.
        tracer: It; None before the first.
    """

    key: Any = None
    tracer: "Tracer | None" = None


_shelf: Shelf | None = None


def keep() -> None:
    """Keep the last tracer from now on: this process is a warm one."""
    global _shelf
    _shelf = Shelf()


def drop() -> None:
    """Keep nothing of the last command."""
    if _shelf is not None:
        keep()


def opened(options: "LoadOptions", open_: "Callable[[LoadOptions], Tracer]") -> "Tracer":
    """The tracer of some options: the last one, where this process keeps it, or a new one."""
    if _shelf is None or (Path(options.name) / "adapter_config.json").exists():
        return open_(options)  # an adapter's base lies elsewhere
    key = (pickle.dumps(options), _files(options.name))
    if _shelf.tracer is None or _shelf.key != key:
        _shelf.tracer = None  # its memory is free before the next one's is due
        _shelf.tracer, _shelf.key = open_(options), key
    return _shelf.tracer


def _files(model: str) -> list[tuple[str, int, int, int]]:
    """Name, size, time and inode of every file of a local model; none of a name on the hub."""
    root = Path(model)
    paths = sorted(root.rglob("*")) if root.is_dir() else [root] if root.is_file() else []
    states = ((os.fspath(path), path.stat()) for path in paths)
    return [(path, s.st_size, s.st_mtime_ns, s.st_ino) for path, s in states]
