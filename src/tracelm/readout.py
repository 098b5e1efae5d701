"""Readout: states at any depth -> log-probabilities of predicted tokens, by the model's own head.

The logits come from the model's own code: a shell of the model, whose trunk hands back the state
that it was given, runs the model's forward. Soft-caps, scales and biases are the model's own.
"""

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import PreTrainedModel

from tracelm.backbone import States
from tracelm.errors import NonFiniteError
from tracelm.families import Parts
from tracelm.forest import Reads
from tracelm.scorer import Scorer

HeadDtype = Literal["float32", "model"]

# Logits of one tile: all the scorer's depths at once still fit a fast part of memory.
TILE_LOGITS = 2**23


class Readout:
    """The model's final norm and output head, as one function of states.

    Args:
        model: The language model.
        parts: Its trunk, blocks and norm.
        head_dtype: `float32` accumulates and returns logits in float32; `model` rounds them to the
            model's dtype, for speed.
    """

    def __init__(
        self, model: PreTrainedModel, parts: Parts, head_dtype: HeadDtype = "float32"
    ) -> None:
        """Make the shell; the model itself is left as it is."""
        self.parts = parts
        self._trunk = _Returned()
        self._shell = _shell(model, parts.trunk, self._trunk)
        head = model.get_output_embeddings()
        self.vocabulary = int(head.weight.shape[0])
        if head_dtype == "float32" and head.weight.dtype in (torch.float16, torch.bfloat16):
            name = next(n for n, m in model.named_modules(remove_duplicate=False) if m is head)
            self._shell = _replaced(
                self._shell, name, _Float32Head(head.weight, getattr(head, "bias", None))
            )

    @torch.inference_mode()
    def logits(self, hidden: Float[Tensor, "rows width"]) -> Float[Tensor, "rows vocab"]:
        """W_U N(h), with everything that the model does between its last block and its logits."""
        normed = hidden if self.parts.norm is None else self.parts.norm(hidden[None])[0]
        if self.parts.after_norm is not None:
            normed = self.parts.after_norm(normed)
        logits: Tensor = self._shell(
            input_ids=None, inputs_embeds=normed[None], use_cache=False
        ).logits
        return logits[0].float()


@dataclass(frozen=True)
class Reading:
    """What was read for a set of predicted tokens.

    Attributes:
        log_probs: For each depth, log p of each predicted token in nats [targets].
        t: log-softmax of z_T at each predicted token [targets]; None where T was not read.
    """

    log_probs: dict[int, Float[np.ndarray, " targets"]]
    t: Float[np.ndarray, " targets"] | None


@torch.inference_mode()
def read(
    readout: Readout,
    states: States,
    targets: Int[np.ndarray, " targets"],
    depths: Sequence[int],
    scorer: Scorer | None = None,
) -> Reading:
    """Log-probabilities of some predicted tokens at some depths, and T where a scorer is given.

    Logits exist for one tile of rows at a time; T shares those of its own depths.

    Args:
        readout: The head.
        states: The batch.
        targets: Which of the batch's predicted tokens to read.
        depths: Depths to read; with a scorer its own depths are among them.
        scorer: T, or None.

    Raises:
        NonFiniteError: Logits that are NaN or infinite; names the depth.
    """
    device = next(iter(states.hidden.values())).device
    log_probs = torch.empty(len(depths), len(targets), device=device)
    t = torch.empty(len(targets), device=device) if scorer else None
    for tile in _tiles(states.reads, targets, readout.vocabulary):
        rows, row, token, place = (torch.from_numpy(x).to(device) for x in tile)
        kept: dict[int, Tensor] = {}
        for i, depth in enumerate(depths):
            logits = readout.logits(states.hidden[depth].index_select(0, rows))
            normed = F.log_softmax(logits, dim=-1)
            log_probs[i, place] = normed[row, token]
            if scorer and depth in scorer.depths:
                kept[depth] = logits
        if scorer and t is not None:
            t[place] = scorer.log_probs(kept, row, token)
    values = log_probs.cpu().numpy()
    for depth, value in zip(depths, values, strict=True):
        if not np.isfinite(value).all():
            raise NonFiniteError(depth)
    by_depth = dict(zip(depths, values, strict=True))
    return Reading(by_depth, None if t is None else t.cpu().numpy())


def _tiles(
    reads: Reads, targets: Int[np.ndarray, " targets"], vocabulary: int
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]]:
    """Row tiles: the tile's rows, and for its targets the row within it, the token, the place."""
    size = max(16, min(1024, TILE_LOGITS // vocabulary))
    order = np.argsort(reads.row[targets], kind="stable")
    rows, row = np.unique(reads.row[targets][order], return_inverse=True)
    for start in range(0, len(rows), size):
        a, b = np.searchsorted(row, [start, start + size])
        token = reads.token[targets][order][a:b]
        yield rows[start : start + size], row[a:b] - start, token, order[a:b]


class _Returned(nn.Module):
    """Stands in for a trunk: hands back the states it was given as its last hidden state."""

    def forward(self, *_: Any, inputs_embeds: Tensor, **__: Any) -> "_Output":
        return _Output(inputs_embeds)

    @property
    def decoder(self) -> "_Returned":
        """Some models call their trunk's inner decoder."""
        return self


class _Output(tuple[Tensor]):
    """A trunk's output of which only the last hidden state is known."""

    def __new__(cls, state: Tensor) -> "_Output":
        return super().__new__(cls, (state,))

    @property
    def last_hidden_state(self) -> Tensor:
        return self[0]

    def __getattr__(self, name: str) -> None:
        if name.startswith("__"):
            raise AttributeError(name)


class _Float32Head(nn.Module):
    """A half-precision head whose logits accumulate and come out in float32 (SPEC 2)."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        # torch.mm has no out_dtype on the CPU: there the weights are widened once and kept.
        self.weight = weight.detach() if weight.is_cuda else weight.detach().float()
        self.bias = None if bias is None else bias.detach().float()

    def forward(self, hidden: Tensor) -> Tensor:
        if not self.weight.is_cuda:
            return F.linear(hidden.float(), self.weight, self.bias)
        rows = hidden.flatten(0, 1)
        logits = torch.mm(rows, self.weight.T, out_dtype=torch.float32)
        logits = logits.reshape(*hidden.shape[:2], -1)
        return logits if self.bias is None else logits + self.bias


def _shell(model: PreTrainedModel, trunk: nn.Module, instead: nn.Module) -> nn.Module:
    """A copy of the model's outermost module with the child that holds the trunk replaced."""
    for name, child in model.named_children():
        if any(m is trunk for m in child.modules()):
            return _replaced(model, name, instead)
    raise AssertionError("the trunk is part of the model")


def _replaced(module: nn.Module, name: str, child: nn.Module) -> nn.Module:
    """A shallow copy of a module with one (nested) child replaced; weights stay shared."""
    shell = copy.copy(module)
    shell._modules = dict(module._modules)
    first, _, rest = name.partition(".")
    inner = shell._modules[first]
    shell._modules[first] = child if not rest else _replaced(inner, rest, child)  # type: ignore[arg-type]
    return shell
