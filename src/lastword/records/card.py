"""Card: what makes a folder of records a dataset that `datasets.load_dataset(folder, name)` reads.

`README.md` in the root of the cells has a configuration for each of them; huggingface_hub reads and
writes it. What somebody adds to the card stays: the configurations alone are ours.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import chain
from typing import TYPE_CHECKING

from lastword.errors import RecordError
from lastword.files import locking
from lastword.files.folder import Folder, failures, inside, reason, write_whole
from lastword.records.disk import reported
from lastword.records.info import find_cells
from lastword.records.parts import part_folders, part_paths, read_places

if TYPE_CHECKING:
    from huggingface_hub import DatasetCard

FILE = "README.md"

_NEW = """---
tags:
- lastword
---
# Records of lastword

One row is one item that a model answered, before and after correction; one configuration is one
model on one benchmark.

```python
from datasets import load_dataset

records = load_dataset("this folder", "its model--its benchmark", split="train")
```

Each folder has a `run.json` with the settings of its run. `lastword.load_records` gives the same
rows with arrays, and `lastword report` makes tables and figures of them.
"""


def read(root: Folder) -> "DatasetCard":
    """The card of a folder, or a new one.

    Raises:
        RecordError: Its README is no card.
    """
    import yaml
    from huggingface_hub import DatasetCard

    path = root / FILE
    try:
        return DatasetCard(path.read_text(encoding="utf-8") if path.exists() else _NEW)
    except failures(ValueError, yaml.YAMLError) as error:
        raise RecordError(f"{path} is no dataset card ({reason(error)}); move it away") from error


def write(root: Folder, configs: Mapping[str, Sequence[str]]) -> None:
    """Write a folder's card with these configurations.

    Args:
        root: The folder.
        configs: By name, the Parquet files, as paths or patterns from the folder.

    Raises:
        RecordError: The README that is there is no card.
        OSError: The disk is full or refuses.
    """
    card = read(root)
    card.data["configs"] = [
        {"config_name": name, "data_files": [{"split": "train", "path": list(files)}]}
        for name, files in configs.items()
    ]
    write_whole(root / FILE, str(card).encode())


@contextmanager
def listed(root: Folder) -> Iterator[None]:
    """Records that the block writes under `root` stand on its card after it, also if it fails.

    Raises:
        RecordError: The README that is there is no card, said before the block; or a full disk.
    """
    read(root)
    try:
        yield
    except BaseException:
        with suppress(RecordError):  # the first error is told
            _list(root)
        raise
    _list(root)


def _list(root: Folder) -> None:
    """Write the card: each cell whose records are there, and each of its parts once."""
    with reported(root), locking.lock(root / ".card-lock"):  # nobody writes an older list
        cells = {inside(root, c).replace("/", "--"): _listing(root, c) for c in find_cells(root)}
        write(root, {name: files for name, files in cells.items() if files})


def _listing(root: Folder, cell: Folder) -> list[str]:
    """List the parts of a cell, as one pattern where they all lie in its own folder."""
    files: dict[int, Folder] = {}
    for group, path in chain.from_iterable(part_paths(f).items() for f in part_folders(cell)):
        # Several places may hold a group: the part that got furthest.
        files[group] = max(files[group], path, key=_size) if group in files else path
    if files and all(path.parent == cell for path in files.values()):
        return [f"{inside(root, cell)}/part-*.parquet"]
    return [inside(root, files[group]) for group in sorted(files)]


def _size(part: Folder) -> int:
    return len(read_places(part))
