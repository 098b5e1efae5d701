"""Card: what makes a folder of records a dataset that `datasets.load_dataset(folder, name)` reads.

`README.md` in the root of the cells has a configuration for each of them; huggingface_hub reads and
writes it. What somebody adds to the card stays: the configurations alone are ours.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from lastword.errors import RecordError
from lastword.files.folder import Folder, failures, reason, write_whole

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
