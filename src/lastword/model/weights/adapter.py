"""An adapter's folder as PEFT writes it, checked before PEFT merges it (`model.loading`).

It has `adapter_config.json` and `adapter_model.safetensors`.
"""

from pathlib import Path

from lastword.errors import CheckpointError
from lastword.model.weights.checkpoint import Config, LocalFiles, SafetensorsCheckpoint, read_json

CONFIG = "adapter_config.json"
BASE = "base_model_name_or_path"  # in the config, beside `revision`
WEIGHTS = "adapter_model.safetensors"


def is_adapter(folder: Path) -> bool:
    """Return True if a folder has an adapter and no model."""
    return (folder / CONFIG).is_file() and not any(folder.glob("model*.safetensors*"))


def read_config(folder: Path) -> Config:
    """Return the config of the adapter in a folder.

    Raises:
        CheckpointError: It has no base model, or a revision that is not a text.
    """
    options: Config = read_json(LocalFiles(folder), CONFIG) or {}
    base, revision = options.get(BASE), options.get("revision")
    if not isinstance(base, str) or not isinstance(revision, str | None):
        raise _incomplete(folder)
    return options


def open_weights(folder: Path) -> SafetensorsCheckpoint:
    """Return the adapter's tensors, without pickles.

    Raises:
        CheckpointError: There is no safetensors file.
    """
    files = LocalFiles(folder)
    if files.read(WEIGHTS, 0, 8) is None:
        raise _incomplete(folder)
    return SafetensorsCheckpoint(files, {}, WEIGHTS)


def _incomplete(folder: Path) -> CheckpointError:
    return CheckpointError(
        f"{folder} needs {WEIGHTS} and, in {CONFIG}, {BASE}: get it whole, or merge it and save "
        "the model"
    )
