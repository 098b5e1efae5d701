"""Readout: states at any depth -> logits, with the model's head.

The logits come from the model's code. A copy of the model, whose trunk only returns its input, runs
the model's `forward`. So soft-caps, scales and biases are applied as in the model.
"""

import copy
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers import PreTrainedModel

from lastword.model.layout import is_plain, laid_out
from lastword.model.options import HeadDtype
from lastword.model.parts import Parts, module_device
from lastword.model.reading import Reading, States, read, read_stacked, tile_rows
from lastword.model.weights.checkpoint import fetched
from lastword.rule.tile import Logits, TokenScorer

PIECE = 2**13  # tokens per piece of the vocabulary on the CPU
PIECE_ROWS = 512  # rows per piece, if only log-probabilities are needed
STRIP_ROWS = 32  # rows that are summed while they are in the core's cache
# Logits lower than the largest by more nats are raised to this: exp is 25 times slower where it
# underflows, and e^-80 times the size of a vocabulary is 0 beside 1 in float32.
LEAST = -80.0


class Readout:
    """The model's final norm and output head, as one function of states.

    Args:
        head_dtype: `float32` accumulates and returns logits in float32; `model` is faster, but
            rounds them to the model's dtype.
    """

    def __init__(
        self, model: PreTrainedModel, parts: Parts, head_dtype: HeadDtype = "float32"
    ) -> None:
        self.parts = parts
        self._shell = _shell(model, parts.trunk, _IdentityTrunk(parts.trunk))
        head = model.get_output_embeddings()
        self.vocabulary = int(head.weight.shape[0])
        self.device = module_device(head)
        self.tile_rows = tile_rows(self.vocabulary, self.device)
        half = head.weight.dtype in (torch.float16, torch.bfloat16)
        wide = None
        if head_dtype == "float32" and (half or is_plain(head)):
            name = next(n for n, m in model.named_modules(remove_duplicate=False) if m is head)
            wide = _Float32Head(head)
            self._shell = _replaced(self._shell, name, wide)
        # On the CPU, a plain head reads log-probabilities faster without storing logits.
        direct = self.device.type == "cpu" and wide is not None and self._is_whole_head(wide)
        self._direct = wide if direct else None

    @torch.inference_mode()
    def logits(
        self, hidden: Float[Tensor, "rows width"], *, norm: bool = True, layer: int | None = None
    ) -> Logits:
        """Return W_U N(h), with everything that the model computes after its last block.

        Args:
            hidden: States at one depth.
            norm: True to apply the final norm N; DoLa and SLED read early layers without it.
            layer: Their layer, which this head does not depend on.
        """
        return self._head(self._normed(hidden, norm))

    @torch.inference_mode()
    def _is_whole_head(self, head: "_Float32Head") -> bool:
        """Return True if the model applies no soft-cap or scale after the head."""
        draw = torch.Generator().manual_seed(0)
        states = 100 * torch.randn(8, head.weight.shape[1], generator=draw)  # a cap changes these
        states = states.to(head.weight)
        return torch.equal(self._head(states), head(states[None])[0])

    @torch.inference_mode()
    def log_probs(
        self,
        hidden: Float[Tensor, "rows width"],
        row: Int[Tensor, " targets"],
        token: Int[Tensor, " targets"],
    ) -> Float[Tensor, " targets"]:
        """Return tokens' log-probabilities without storing logits; NaN if a logit is not finite."""
        assert self._direct is not None
        return self._direct.log_probs(self._normed(hidden), row, token)

    def _normed(self, hidden: Tensor, norm: bool = True) -> Tensor:
        if norm and self.parts.norm is not None:
            hidden = self.parts.norm(hidden[None])[0]
        return hidden if self.parts.after_norm is None else self.parts.after_norm(hidden)

    def _head(self, normed: Tensor) -> Logits:
        logits: Tensor = self._shell(
            input_ids=None, inputs_embeds=normed[None], use_cache=False
        ).logits
        return logits[0].float()

    def read(
        self,
        states: States,
        targets: Int[np.ndarray, " targets"],
        depths: Sequence[int],
        scorers: Sequence[TokenScorer] = (),
    ) -> Reading:
        """Read a batch with this head; see `reading.read`."""
        if self._direct is None:
            return read(self, states, targets, depths, scorers)
        # Depth L is read from its logits too, so that its log-probabilities are the model's to the
        # last bit: sums over pieces of the vocabulary round differently.
        last = len(self.parts.blocks)
        logit_depths = [d for d in depths if d == last or any(d in s.depths for s in scorers)]
        direct_depths = [d for d in depths if d not in logit_depths]
        direct = read_stacked(self.log_probs, self.device, states, targets, direct_depths)
        reading = read(self, states, targets, logit_depths, scorers)
        log_probs, faults = direct | reading.log_probs, reading.faults
        for depth in reversed(direct_depths):  # the first fault of a row counts
            faults = np.where(np.isfinite(direct[depth]), faults, depth)
        return Reading({d: log_probs[d] for d in depths}, reading.scores, faults)


class _IdentityTrunk(nn.Module):
    """A replacement of a trunk, which returns its input as the last hidden state."""

    def __init__(self, trunk: nn.Module) -> None:
        super().__init__()
        self._trunk = (trunk,)  # in a tuple, so that it is not a submodule

    def __getattr__(self, name: str) -> Any:
        """Return a constant that a head reads from its trunk."""
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self.__dict__["_trunk"][0], name)

    def forward(self, *_: Any, inputs_embeds: Tensor, **__: Any) -> "_Output":
        return _Output(inputs_embeds)

    @property
    def decoder(self) -> "_IdentityTrunk":
        """This module: some models call the decoder inside their trunk."""
        return self


class _Output(tuple[Tensor]):
    """The output of a trunk with only the last hidden state; all other attributes are None."""

    def __new__(cls, state: Tensor) -> "_Output":
        return super().__new__(cls, (state,))

    @property
    def last_hidden_state(self) -> Tensor:
        return self[0]

    def __getattr__(self, name: str) -> None:
        if name.startswith("__"):
            raise AttributeError(name)


class _Float32Head(nn.Module):
    """A head with logits in float32, also inside the product (method, section 2).

    On the CPU, the weights are converted and laid out for oneDNN's kernels once, in pieces of the
    vocabulary. A product of few rows then takes two thirds of the time.

    Attributes:
        weight: The model's weight [vocab, width].
    """

    def __init__(self, head: nn.Module) -> None:
        super().__init__()
        weight, bias = (_parameter(head, name) for name in ("weight", "bias"))
        assert weight is not None
        self.bias = None if bias is None else bias.float()
        self.weight = weight  # some models read its dtype
        self._pieces = (
            [_cuda_product(weight)]
            if weight.is_cuda
            else [laid_out(piece.float()) for piece in weight.split(PIECE)]
        )

    def forward(self, hidden: Tensor) -> Tensor:
        rows = hidden.to(self.weight.device).flatten(0, 1)
        pieces = list(self._by_piece(rows))
        logits = pieces[0] if len(pieces) == 1 else torch.cat(pieces, dim=-1)
        return logits.reshape(*hidden.shape[:2], -1)

    def log_probs(
        self,
        rows: Float[Tensor, "rows width"],
        row: Int[Tensor, " targets"],
        token: Int[Tensor, " targets"],
    ) -> Float[Tensor, " targets"]:
        """Return log-probabilities as `Readout` does, from states after the final norm."""
        rows = rows.to(self.weight.device)
        log_z, smallest = self._reduced(rows)
        logits = (rows[row].float() * self.weight[token].float()).sum(dim=-1)
        logits = logits if self.bias is None else logits + self.bias[token]
        return logits - torch.where(smallest.isfinite(), log_z, torch.nan)[row]

    def _reduced(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return log-sum-exp and smallest logit of each row, computed piece by piece."""
        log_z, smallest = rows.new_empty((2, len(rows)), dtype=torch.float32)
        for start in range(0, len(rows), PIECE_ROWS):
            chunk = slice(start, start + PIECE_ROWS)
            pieces = [_reduced_in_place(logits) for logits in self._by_piece(rows[chunk])]
            log_z[chunk] = torch.stack([sums for sums, _ in pieces]).logsumexp(dim=0)
            smallest[chunk] = torch.stack([lows for _, lows in pieces]).amin(dim=0)
        return log_z, smallest

    def _by_piece(self, rows: Tensor) -> Iterator[Tensor]:
        """Yield the logits of each piece of the vocabulary."""
        start, rows = 0, rows if rows.is_cuda else rows.float()
        for product in self._pieces:
            logits = product(rows)
            if self.bias is not None:
                logits = logits + self.bias[start : start + logits.shape[1]]
            start += logits.shape[1]
            yield logits


def _reduced_in_place(logits: Logits) -> tuple[Float[Tensor, " rows"], Float[Tensor, " rows"]]:
    """Return log-sum-exp and smallest logit of each row; the logits are overwritten."""
    sums, lows = [], []
    for strip in logits.split(STRIP_ROWS):
        lows.append(strip.amin(dim=-1))
        top = strip.amax(dim=-1, keepdim=True)
        terms = strip.sub_(top).clamp_(min=LEAST).exp_()
        sums.append(top[:, 0] + terms.sum(dim=-1).log())
    return torch.cat(sums), torch.cat(lows)


def _cuda_product(weight: Tensor) -> Callable[[Tensor], Tensor]:
    return lambda rows: torch.mm(rows.to(weight.dtype), weight.T, out_dtype=torch.float32)


def _parameter(head: nn.Module, name: str) -> Tensor | None:
    """Return a head's weight or bias, which accelerate may have offloaded."""
    value: Tensor | None = getattr(head, name, None)
    if value is None:
        return None
    return fetched(head, name, module_device(head)) if value.is_meta else value.detach()


def _shell(model: PreTrainedModel, trunk: nn.Module, replacement: nn.Module) -> nn.Module:
    """Return a copy of the model's outermost module in which the trunk's child is replaced."""
    for name, child in model.named_children():
        if any(m is trunk for m in child.modules()):
            return _replaced(model, name, replacement)
    raise AssertionError("the trunk is part of the model")


def _replaced(module: nn.Module, name: str, child: nn.Module) -> nn.Module:
    """Return a copy of a module with one (nested) child replaced; weights are shared."""
    shell = copy.copy(module)
    if hasattr(module, "_hf_hook"):  # accelerate's `forward` is bound to the original module
        shell.__dict__.pop("forward", None)
    shell._modules = dict(module._modules)
    first, _, rest = name.partition(".")
    inner = shell._modules[first]
    shell._modules[first] = child if not rest else _replaced(inner, rest, child)  # type: ignore[arg-type]
    return shell
