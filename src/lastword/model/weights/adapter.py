"""An adapter's folder as PEFT writes it, checked before PEFT merges it (`model.loading`).

It has `adapter_config.json` and `adapter_model.safetensors`.
"""

from pathlib import Path

from lastword.errors import CheckpointError
from lastword.model.weights.checkpoint import Config, LocalFiles, SafetensorsCheckpoint, read_json
from lastword.model.weights.identity import ADAPTER

BASE = "base_model_name_or_path"  # in the config, beside `revision`
WEIGHTS = "adapter_model.safetensors"


def read_config(folder: Path) -> Config:
    """Return the config of the adapter in a folder.

    Raises:
        CheckpointError: It has no base model, or a revision that is not a text.
    """
    options: Config = read_json(LocalFiles(folder), ADAPTER) or {}
    base, revision = options.get(BASE), options.get("revision")
    if not isinstance(base, str) or not isinstance(revision, str | None):
        raise _incomplete(folder)
    return options


def open_weights(folder: Path) -> SafetensorsCheckpoint:
    """Return the adapter's tensors, without pickles.

    Raises:
        CheckpointError: There is no safetensors file, or its config does not fit the tensors.
    """
    files, options = LocalFiles(folder), read_config(folder)
    if files.read(WEIGHTS, 0, 8) is None:
        raise _incomplete(folder)
    adapter = SafetensorsCheckpoint(files, {}, WEIGHTS)
    # PEFT allocates the sizes in the config before it reads the tensors.
    if options.get("num_virtual_tokens") is not None:
        kind = str(options.get("peft_type"))[:40]
        raise CheckpointError(f"{adapter.label} is a {kind} adapter, which cannot be merged")
    limit = max((size for _, info in adapter.tensors() for size in info.shape), default=0)
    pattern = options.get("rank_pattern") or {}
    ranks = [options.get("r", 0), *(pattern.values() if isinstance(pattern, dict) else [pattern])]
    if strange := [rank for rank in ranks if not isinstance(rank, int) or not 0 <= rank <= limit]:
        raise CheckpointError(
            f"{adapter.label} has the rank {strange[0]!r:.40} in {ADAPTER}, and no tensor with "
            f"more than {limit} rows: get it again"
        )
    return adapter


def _incomplete(folder: Path) -> CheckpointError:
    return CheckpointError(
        f"{folder} needs {WEIGHTS} and, in {ADAPTER}, {BASE}: get it whole, or merge it and save "
        "the model"
    )
