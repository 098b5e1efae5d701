"""Sources of a tracer's states: a small protocol, and the model in this process.

    Local    a transformers model here
    Vllm     a model that vLLM has in a separate process (`engines.vllm.backend`)

A tracer plans and decides; it asks its backend for states and for what is read of them, and for
nothing else of the model. Whatever does need the model itself asks for `local`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float, Int
from transformers import PreTrainedModel

from lastword.model.backbone import Backbone, evaluating
from lastword.model.check import check
from lastword.model.options import LoadOptions
from lastword.model.prefixes import Prefixes
from lastword.model.reading import Reading, States
from lastword.model.readout import Readout
from lastword.rule.theta import Theta
from lastword.rule.tile import TokenScorer
from lastword.text.branch import Branch

T = TypeVar("T")
# Memory that one batch's states and activations may take where no budget in tokens is given.
BATCH_BYTES = 2**29
MOST_BATCH_TOKENS = 8192  # however much memory there is

Pooled = Float[np.ndarray, "texts depths width"]


@dataclass(frozen=True)
class Profile:
    """The sizes and names of a model, wherever it computes.

    Attributes:
        context: Most tokens that are fed; None without a limit.
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
        """Return the dtype's name."""
        return str(self.dtype).removeprefix("torch.")


@runtime_checkable
class Backend(Protocol):
    """A source of states, and of what is read of them.

    Attributes:
        source: What a run records of where the model came from.
        checked: What the check at load saw, a dataclass.
        batch_tokens: Most distinct tokens of one batch, as memory allows.
        vocabularies: Whether token scorers of methods can look at whole vocabularies.
    """

    source: dict[str, Any]
    checked: Any
    batch_tokens: int
    vocabularies: bool

    @property
    def profile(self) -> Profile:
        """Return the model's profile."""

    def states(
        self, branches: Sequence[Branch], depths: Sequence[int], padded_tokens: int
    ) -> States:
        """Compute the states of all branches at `depths`, as `Backbone.states` does."""

    def pooled(
        self, branches: Sequence[Branch], depths: Sequence[int], padded_tokens: int
    ) -> Pooled:
        """Compute the mean state of each branch at `depths`, as `Backbone.pooled` does."""

    def read(
        self,
        states: States,
        targets: Int[np.ndarray, " targets"],
        depths: Sequence[int],
        scorers: Sequence[TokenScorer] = (),
    ) -> Reading:
        """Read states with the head, as `Readout.read` does."""

    def transact(self, compute: Callable[[], T]) -> T:
        """Give what `compute` gives, which takes a group's states and reads them.

        A backend that keeps the states of one group alone lets no other group in between.
        """

    def local(self, purpose: str) -> "Local":
        """Give the model in this process.

        Raises:
            ElsewhereError: It is in another process.
        """

    def close(self) -> None:
        """End what was started for the model."""


class Local:
    """A transformers model in this process, on the road that the check at load chose.

    Raises:
        ThetaError: The model is too shallow.
        UnsupportedModelError: The model cannot be read; see `check`.
    """

    vocabularies = True

    def __init__(
        self, model: PreTrainedModel, options: LoadOptions, source: dict[str, Any] | None = None
    ) -> None:
        backbone = Backbone(model)
        (options.theta or Theta()).window(backbone.depth)  # refuses a model that is too shallow
        self.readout = Readout(model, backbone.parts, options.head_dtype)
        # The check runs the model itself, and shrinks its windows.
        with backbone.lock, evaluating(model):
            checked = check(backbone, self.readout, options.attention)
        keeps = options.prefix_cache and checked.keeps
        prefixes = Prefixes(options.prefix_cache * 2**20) if keeps else None
        self.backbone = backbone.on(checked.road, checked.attention, prefixes)
        self.checked = checked
        self.source = source or {"model": options.name}
        self.batch_tokens = default_batch_tokens(backbone.config, model.dtype, backbone.device)

    @property
    def profile(self) -> Profile:
        """Return the model's profile, as it is now."""
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

    def transact(self, compute: Callable[[], T]) -> T:
        """Give what `compute` gives: others may compute meanwhile, with other states."""
        return compute()

    def local(self, purpose: str) -> "Local":
        """Give the model in this process: this one."""
        return self

    def close(self) -> None:
        """End nothing: nothing was started."""


def token_bytes(config: Any, dtype: torch.dtype) -> int:
    """Return bytes of a token in a batch: states at every depth, one block's activations."""
    inner = getattr(config, "intermediate_size", None) or 4 * config.hidden_size
    inner = max(inner) if isinstance(inner, list | tuple) else inner  # one a block (Gemma 3n)
    activations = 4 * config.hidden_size + 3 * inner
    depth = config.num_hidden_layers
    return int(((depth + 1) * config.hidden_size + activations) * dtype.itemsize)


def default_batch_tokens(config: Any, dtype: torch.dtype, device: torch.device) -> int:
    """Count the distinct tokens of a batch whose states and activations fit `BATCH_BYTES`.

    On a GPU they may take a sixteenth of the device: of all of it and not of what is free, for a
    restarted run must plan as it did before.
    """
    memory = BATCH_BYTES
    if device.type == "cuda":
        memory = max(memory, torch.cuda.get_device_properties(device).total_memory // 16)
    return int(max(512, min(MOST_BATCH_TOKENS, memory // token_bytes(config, dtype))))
