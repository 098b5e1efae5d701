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
        hub: NAME:CONFIGURATION of the set on the Hugging Face hub; None if there is none.
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
            table = _read_hub(self.hub)
        return Rows(table.rows[: self.take], table.source)

    def _from_path(self, data: Path) -> Rows:
        if not data.exists():
            raise InputError(f"no file or folder {data}; give --data an existing one")
        paths = [data] if data.is_file() else [data / name for name in self.files]
        path = next(filter(Path.is_file, paths), None)
        if path is None:
            raise InputError(f"{data} holds none of {', '.join(self.files)}; give --data the file")
        return Rows(read_objects(path), path.name)


def _read_hub(name: str) -> Rows:
    """Return the rows of NAME:CONFIGURATION on the hub, which has one split."""
    try:
        from datasets import load_dataset
    except ImportError as error:
        raise InputError(f'`datasets` reads {name}: pip install "lastword[lab]"') from error
    try:
        (split,) = load_dataset(*name.split(":")).values()
    # `datasets` raises many kinds of errors here (offline, unknown set, broken cache).
    except Exception as error:
        fault = one_line(error)[:200]
        raise InputError(
            f"cannot load {name}: {fault}; check the network or give --data a local file"
        ) from error
    return Rows([dict(row) for row in split], f"hf:{name}")


def text_field(row: Row, name: str, place: int) -> str:
    """Return a text of a row without outer whitespace, which may reveal labels."""
    value = row.get(name)
    if not isinstance(value, str):
        fault = f"has {', '.join(row)}" if name not in row else f"is {type(value).__name__}"
        raise InputError(f'row {place}: expected a text field "{name}", the row {fault}')
    return value.strip()
