"""The backend of a tracer: a language model in memory, its states and the readings of them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from transformers import PreTrainedModel

from lastword.model.backbone import Backbone, evaluating
from lastword.model.check_cache import check_once
from lastword.model.options import LoadOptions
from lastword.model.prefixes import Prefixes
from lastword.model.reading import Reading, States, dtype_name
from lastword.model.readout import Readout
from lastword.rule.theta import Theta
from lastword.rule.tile import TokenScorer
from lastword.text.forest import Branch

# Default memory for the states and activations of a batch.
BATCH_BYTES = 2**29
MOST_BATCH_TOKENS = 8192  # however much memory there is

Pooled = Float[np.ndarray, "texts depths width"]


@dataclass(frozen=True)
class Profile:
    """The sizes and names of a model.

    Attributes:
        context: Maximum number of input tokens; None without a limit.
    """

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
    """A transformers model as a source of states, on the road that the check at load chose.

    Args:
        model: The model.
        options: Options of running it.
        source: Its origin, for records.
        digest: Digest of the files and options of its load (`load_digest`); None for a model whose
            weights may have been changed in memory.

    Raises:
        ThetaError: The model is too shallow.
        UnsupportedModelError: The model cannot be read; see `check`.
    """

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
        caches = options.prefix_cache and checked.keeps
        prefixes = Prefixes(options.prefix_cache * 2**20) if caches else None
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
            dtype=backbone.dtype,
            device=backbone.device,
            attention=backbone.attention,
        )

    def states(
        self, branches: Sequence[Branch], depths: Sequence[int], padded_tokens: int
    ) -> States:
        """Compute the states of all branches at `depths`, as `Backbone.states` does."""
        return self.backbone.states(branches, depths, padded_tokens)

    def pooled(
        self, branches: Sequence[Branch], depths: Sequence[int], padded_tokens: int
    ) -> Pooled:
        """Compute the mean state of each branch at `depths`, as `Backbone.pooled` does."""
        return self.backbone.pooled(branches, depths, padded_tokens).numpy()

    def read(
        self,
        states: States,
        targets: Int[np.ndarray, " targets"],
        depths: Sequence[int],
        scorers: Sequence[TokenScorer] = (),
    ) -> Reading:
        """Read states with the head, as `Readout.read` does."""
        return self.readout.read(states, targets, depths, scorers)


def token_bytes(config: Any, dtype: torch.dtype) -> int:
    """Return bytes of a token in a batch: states at every depth, and one block's activations."""
    inner = getattr(config, "intermediate_size", None) or 4 * config.hidden_size
    inner = max(inner) if isinstance(inner, list | tuple) else inner  # Gemma 3n: a list over blocks
    activations = 4 * config.hidden_size + 3 * inner
    depth = config.num_hidden_layers
    return int(((depth + 1) * config.hidden_size + activations) * dtype.itemsize)


def default_batch_tokens(config: Any, dtype: torch.dtype, device: torch.device) -> int:
    """Return the number of distinct tokens whose states and activations fit the batch's memory."""
    memory = BATCH_BYTES
    # A share of all memory, not of the free memory: a resumed run must plan the same batches.
    if device.type == "cuda":
        memory = max(memory, torch.cuda.get_device_properties(device).total_memory // 16)
    return int(max(512, min(MOST_BATCH_TOKENS, memory // token_bytes(config, dtype))))
