"""A checkpoint by name or folder -> a transformers model and its tokenizer."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    AutoTokenizer,
    PreTrainedModel,
)
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from tracelm.errors import ModelError
from tracelm.tokens import Tokenizer


@dataclass(frozen=True)
class Loaded:
    """A model in memory, and what a run records of where it came from."""

    model: PreTrainedModel
    tokenizer: Tokenizer
    source: dict[str, Any]


def load(
    name: str,
    *,
    revision: str | None = None,
    device: str = "auto",
    dtype: str = "auto",
    attention: str = "auto",
    trust_remote_code: bool = False,
) -> Loaded:
    """Load a checkpoint from the hub or a local folder.

    Args:
        name: Hub name or folder.
        revision: Branch, tag or commit on the hub.
        device: `auto` takes the GPU where there is one.
        dtype: `auto` takes the checkpoint's; float16 on the CPU becomes float32.
        attention: `auto` takes transformers' choice.
        trust_remote_code: Run code that the checkpoint brings along.

    Raises:
        ModelError: Missing, unreadable, or of a type that transformers does not know.
    """
    options = {"revision": revision, "trust_remote_code": trust_remote_code}
    name = _expanded(name)
    place = _device(device)
    try:
        config = AutoConfig.from_pretrained(name, **options)
        kind = _dtype(dtype, config, place)
        model = _auto(config).from_pretrained(
            name,
            dtype=kind,
            **({} if attention == "auto" else {"attn_implementation": attention}),
            **options,
        )
        tokenizer = AutoTokenizer.from_pretrained(name, **options)
    except (OSError, ValueError, KeyError, ImportError, RuntimeError) as error:
        raise ModelError(f"cannot load {name}: {_first_line(error)}") from error
    source = {
        "model": name,
        "revision": getattr(model.config, "_commit_hash", None) or revision,
        "dtype": str(model.dtype).removeprefix("torch."),
        "device": str(place),
    }
    return Loaded(model.to(place), tokenizer, source)


def load_tokenizer(
    name: str, *, revision: str | None = None, trust_remote_code: bool = False
) -> Tokenizer:
    """The tokenizer of a checkpoint, without its weights.

    Args:
        name: Hub name or folder.
        revision: Branch, tag or commit on the hub.
        trust_remote_code: Run code that the checkpoint brings along.

    Raises:
        ModelError: Missing or unreadable.
    """
    name = _expanded(name)
    try:
        tokenizer: Tokenizer = AutoTokenizer.from_pretrained(
            name, revision=revision, trust_remote_code=trust_remote_code
        )
    except (OSError, ValueError, KeyError, ImportError, RuntimeError) as error:
        raise ModelError(f"cannot load the tokenizer of {name}: {_first_line(error)}") from error
    return tokenizer


def _expanded(name: str) -> str:
    """A folder's path in full, refused where it holds no model; a hub name as it is."""
    if not name.startswith((".", "/", "~")):
        return name
    name = str(Path(name).expanduser())
    if not Path(name, "config.json").is_file():
        raise ModelError(f"no model at {name}: expected a folder with config.json")
    return name


def _auto(config: Any) -> Any:
    """A multimodal wrapper has no causal class of its own; its text model answers all the same."""
    if config.model_type in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES and not hasattr(
        config, "text_config"
    ):
        return AutoModelForCausalLM
    return AutoModelForImageTextToText if hasattr(config, "text_config") else AutoModelForCausalLM


def _device(name: str) -> torch.device:
    if name != "auto":
        try:
            return torch.device(name)
        except RuntimeError as error:
            raise ModelError(f"unknown device {name}: {_first_line(error)}") from error
    accelerator = torch.accelerator.current_accelerator()
    return accelerator if accelerator is not None else torch.device("cpu")


def _dtype(name: str, config: Any, device: torch.device) -> torch.dtype:
    if name != "auto":
        kind = getattr(torch, name, None)
        if kind not in (torch.float32, torch.bfloat16, torch.float16):
            raise ModelError(f"unknown dtype {name}: expected auto, float32, bfloat16 or float16")
        return cast(torch.dtype, kind)
    stored = getattr(config.get_text_config(decoder=True), "dtype", None) or torch.float32
    kind = getattr(torch, stored) if isinstance(stored, str) else stored
    # The CPU multiplies float16 slowly and rounds more than it needs to.
    return torch.float32 if device.type == "cpu" and kind == torch.float16 else kind


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
