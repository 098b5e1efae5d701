"""The backend of a tracer: a language model in memory, its states and the readings of them."""

from dataclasses import dataclass
from typing import Any

import torch
from transformers import PreTrainedModel

from lastword.model.backbone import Backbone, evaluating
from lastword.model.check import check_once
from lastword.model.options import LoadOptions
from lastword.model.prefixes import Prefixes
from lastword.model.readout import Readout, dtype_name
from lastword.rule.theta import Theta

# Default memory for the states and activations of a batch.
BATCH_BYTES = 2**29
PREFIX_CACHE = 256  # MiB
MOST_BATCH_TOKENS = 8192  # however much memory there is


@dataclass(frozen=True)
class Profile:
    """The sizes and names of a model; `context` is its maximum number of input tokens."""

    model_type: str
    depth: int
    width: int
    vocabulary: int
    context: int | None
    dtype: torch.dtype
    device: torch.device
    attention: str

    @property
    def precision(self) -> str:
        """The dtype's name."""
        return dtype_name(self.dtype)


class LanguageModel:
    """A transformers model as a source of states, on the road that the check at load chose."""

    def __init__(
        self,
        model: PreTrainedModel,
        options: LoadOptions,
        source: dict[str, Any] | None = None,
        digest: str | None = None,
    ) -> None:
        backbone = Backbone(model)
        (options.theta or Theta()).window(backbone.depth)  # raises for a model that is too shallow
        self.readout = Readout(model, backbone.parts, options.head_dtype)
        # The check also calls the model directly, and changes its sliding windows meanwhile.
        with backbone.lock, evaluating(model):
            checked = check_once(backbone, self.readout, options, digest)
        size = PREFIX_CACHE if options.prefix_cache is None else options.prefix_cache
        prefixes = Prefixes(size * 2**20) if size and checked.keeps else None
        self.backbone = backbone.on(checked.road, prefixes)
        self.checked = checked
        self.source = source or {"model": options.name}
        self.batch_tokens = default_batch_tokens(backbone.config, model.dtype, backbone.device)

    @property
    def profile(self) -> Profile:
        """The model's current profile."""
        backbone = self.backbone
        return Profile(
            model_type=backbone.config.model_type,
            depth=backbone.depth,
            width=backbone.config.hidden_size,
            vocabulary=self.readout.vocabulary,
            context=backbone.context,
            dtype=backbone.model.dtype,
            device=backbone.device,
            attention=backbone.attention,
        )


def token_bytes(config: Any, dtype: torch.dtype) -> int:
    """Return bytes of a token in a batch: states at every depth, and one block's activations."""
    width = config.hidden_size
    inner = getattr(config, "intermediate_size", None) or 4 * width
    inner = max(inner) if isinstance(inner, list | tuple) else inner  # Gemma 3n: a list over blocks
    return int(((config.num_hidden_layers + 5) * width + 3 * inner) * dtype.itemsize)


def default_batch_tokens(config: Any, dtype: torch.dtype, device: torch.device) -> int:
    """Return the number of distinct tokens whose states and activations fit the batch's memory."""
    memory = BATCH_BYTES
    # A share of all memory, not of the free memory: a resumed run must plan the same batches.
    if device.type == "cuda":
        memory = max(memory, torch.cuda.get_device_properties(device).total_memory // 16)
    return int(max(512, min(MOST_BATCH_TOKENS, memory // token_bytes(config, dtype))))
