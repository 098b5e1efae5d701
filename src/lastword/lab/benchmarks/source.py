"""Reads the rows of a benchmark from a file, a folder of files, or the hub.

Missing or malformed rows raise `InputError`.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lastword.errors import InputError, one_line
from lastword.files.rows import read_objects

Row = dict[str, Any]


@dataclass(frozen=True)
class Rows:
    """Rows as their authors published them, with their source."""

    rows: list[Row]
    source: str


@dataclass(frozen=True)
class Source:
    """The places where a data set may be.

    Attributes:
        files: Paths in a data folder; the first that exists is read.
        hub: The Hugging Face set as `read_hub` takes it; None if there is none.
        take: Number of first rows that belong to the benchmark; None for all.
    """

    files: tuple[str, ...]
    hub: str | None = None
    take: int | None = None

    def read(self, data: Path | None) -> Rows:
        """Return the rows of a file or folder, or those of the hub if no path is given."""
        if data is not None:
            table = self._from_path(data)
        elif self.hub is None:
            raise InputError(f"this set is read from a file: give --data, with {self.files[0]}")
        else:
            table = read_hub(self.hub, "check the network or give --data a local file")
        return Rows(table.rows[: self.take], table.source)

    def _from_path(self, data: Path) -> Rows:
        if not data.exists():
            raise InputError(f"no file or folder {data}; give --data an existing one")
        paths = [data] if data.is_file() else [data / name for name in self.files]
        path = next(filter(Path.is_file, paths), None)
        if path is None:
            raise InputError(f"{data} holds none of {', '.join(self.files)}; give --data the file")
        return Rows(read_objects(path), path.name)


def read_hub(name: str, advice: str) -> Rows:
    """Return the rows of a set on the hub, or in a folder that `datasets` reads.

    Args:
        name: NAME:CONFIGURATION@SPLIT; both are optional if there is only one.
        advice: What to do if it cannot be loaded.
    """
    try:
        from datasets import load_dataset
    except ImportError as error:
        raise InputError(f'`datasets` reads {name}: pip install "lastword[lab]"') from error
    location, _, split = name.partition("@")
    path, _, configuration = location.partition(":")
    try:
        loaded = load_dataset(path, configuration or None, split=split or None)
    # `datasets` raises many kinds of errors here (offline, unknown set, broken cache).
    except Exception as error:
        raise InputError(f"cannot load {name}: {one_line(error)[:200]}; {advice}") from error
    if isinstance(loaded, dict):
        if len(loaded) != 1:
            raise InputError(f"{name} has splits {', '.join(loaded)}: choose one, {name}@SPLIT")
        (loaded,) = loaded.values()
    return Rows([dict(row) for row in loaded], f"hf:{name}")


def text_field(row: Row, name: str, place: int) -> str:
    """Return a text of a row without outer whitespace, which may reveal labels (section 10)."""
    value = row.get(name)
    if not isinstance(value, str):
        fault = f"has {', '.join(row)}" if name not in row else f"is {type(value).__name__}"
        raise InputError(f'row {place}: expected a text field "{name}", the row {fault}')
    return value.strip()
