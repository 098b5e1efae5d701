"""Readout: states at any depth -> logits, by the model's head.

The logits come from the model's code: a shell of the model, whose trunk hands back the state
that it was given, runs the model's forward. Soft-caps, scales and biases are the model's.
"""

import copy
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import PreTrainedModel

from lastword.model.options import HeadDtype
from lastword.model.parts import Parts, device_of
from lastword.model.reading import Reading, States, read, read_stacked, tile_rows
from lastword.rule.tile import Logits, TokenScorer

# Tokens of one piece of the vocabulary on the CPU, most rows whose logits are made of it at once
# where nobody needs them, and rows that are added up while they lie next to the core.
PIECE = 2**13
PIECE_ROWS = 512
STRIP_ROWS = 32
# Rows that weights are laid out for by oneDNN; products of other numbers of rows are as exact.
LAID_OUT_ROWS = 128
# Nats below the largest logit from where on a token counts as if it were there: exp takes 25 times
# as long where it underflows, and e^-80 of a whole vocabulary is nothing beside 1 in float32.
LEAST = -80.0


class Readout:
    """The model's final norm and output head, as one function of states.

    Args:
        head_dtype: `float32` accumulates and returns logits in float32; `model` rounds them to the
            model's dtype, for speed.
    """

    def __init__(
        self, model: PreTrainedModel, parts: Parts, head_dtype: HeadDtype = "float32"
    ) -> None:
        self.parts = parts
        self._trunk = _Returned(parts.trunk)
        self._shell = _shell(model, parts.trunk, self._trunk)
        head = model.get_output_embeddings()
        self.vocabulary = int(head.weight.shape[0])
        self.device = device_of(head)
        self.tile_rows = tile_rows(self.vocabulary, self.device)
        half = head.weight.dtype in (torch.float16, torch.bfloat16)
        wide = None
        if head_dtype == "float32" and (half or is_plain(head)):
            name = next(n for n, m in model.named_modules(remove_duplicate=False) if m is head)
            wide = _Float32Head(head)
            self._shell = _replaced(self._shell, name, wide)
        # What reads depths of which nobody needs the logits.
        sums = self.device.type == "cpu" and wide is not None and self._passes_on(wide)
        self._alone = wide if sums else None

    @torch.inference_mode()
    def logits(self, hidden: Float[Tensor, "rows width"], *, norm: bool = True) -> Logits:
        """Return W_U N(h), with all that the model does between its last block and its logits.

        Args:
            hidden: States at one depth.
            norm: Whether to apply the final norm N; DoLa and SLED read early layers without it.
        """
        return self._head(self._normed(hidden, norm))

    @torch.inference_mode()
    def _passes_on(self, head: "_Float32Head") -> bool:
        """Return True if the logits are those of the head: no cap and no scale follows it."""
        draw = torch.Generator().manual_seed(0)
        far = 100 * torch.randn(8, head.weight.shape[1], generator=draw)  # a cap shows there
        far = far.to(head.weight)
        return torch.equal(self._head(far), head(far[None])[0])

    @torch.inference_mode()
    def log_probs(
        self,
        hidden: Float[Tensor, "rows width"],
        row: Int[Tensor, " targets"],
        token: Int[Tensor, " targets"],
    ) -> Float[Tensor, " targets"]:
        """Return tokens' log-probabilities, without logits; not finite if a row's logit is not."""
        assert self._alone is not None
        return self._alone.log_probs(self._normed(hidden), row, token)

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
        """Read a batch by this head, as `reading.read` has it.

        Depth L is always read from its logits: its log-probabilities are the model's to the
        last rounding of a log-softmax in float32, which sums by pieces do not share.
        """
        if self._alone is None:
            return read(self, states, targets, depths, scorers)
        last = len(self.parts.blocks)
        whole = [d for d in depths if d == last or any(d in s.depths for s in scorers)]
        alone = [d for d in depths if d not in whole]
        alone_values = read_stacked(self.log_probs, self.device, states, targets, alone)
        rest = read(self, states, targets, whole, scorers)
        log_probs, faults = alone_values | rest.log_probs, rest.faults
        for depth in reversed(alone):
            faults = np.where(np.isfinite(alone_values[depth]), faults, depth)
        return Reading({d: log_probs[d] for d in depths}, rest.scores, faults)


class _Returned(nn.Module):
    """Stands in for a trunk: hands back the states it was given as its last hidden state."""

    def __init__(self, trunk: nn.Module) -> None:
        super().__init__()
        self._of = (trunk,)  # in a tuple: its weights are not this module's

    def __getattr__(self, name: str) -> Any:
        """Return a constant that a head looks up on its trunk."""
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self.__dict__["_of"][0], name)

    def forward(self, *_: Any, inputs_embeds: Tensor, **__: Any) -> "_Output":
        return _Output(inputs_embeds)

    @property
    def decoder(self) -> "_Returned":
        """Return the trunk: some models call its inner decoder."""
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
    """A head whose logits accumulate and come out in float32 (method, section 2).

    On the CPU the weights are widened and laid out for oneDNN's kernels once, in pieces of the
    vocabulary, and kept so: a product of few rows takes two thirds of the time that it takes with
    weights as they are stored.

    Attributes:
        weight: The model's weight [vocab, width].
    """

    def __init__(self, head: nn.Module) -> None:
        super().__init__()
        weight, bias = (_fetched(head, name) for name in ("weight", "bias"))
        assert weight is not None
        self.bias = None if bias is None else bias.float()
        self.weight = weight  # some models look at its dtype
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
        """Return those of `Readout`, from states after the final norm."""
        rows = rows.to(self.weight.device)
        log_z, least = self._added_up(rows)
        logits = (rows[row].float() * self.weight[token].float()).sum(dim=-1)
        logits = logits if self.bias is None else logits + self.bias[token]
        return logits - torch.where(least.isfinite(), log_z, torch.nan)[row]

    def _added_up(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Compute log-sum-exp over the vocabulary and the least logit of each row, piecewise."""
        log_z, least = rows.new_empty((2, len(rows)), dtype=torch.float32)
        for start in range(0, len(rows), PIECE_ROWS):
            some = slice(start, start + PIECE_ROWS)
            pieces = [_sums(logits) for logits in self._by_piece(rows[some])]
            log_z[some] = torch.stack([sums for sums, _ in pieces]).logsumexp(dim=0)
            least[some] = torch.stack([lows for _, lows in pieces]).amin(dim=0)
        return log_z, least

    def _by_piece(self, rows: Tensor) -> Iterator[Tensor]:
        """Return the logits of the vocabulary's pieces, one after the other."""
        start, rows = 0, rows if rows.is_cuda else rows.float()
        for product in self._pieces:
            logits = product(rows)
            if self.bias is not None:
                logits = logits + self.bias[start : start + logits.shape[1]]
            start += logits.shape[1]
            yield logits


def _sums(logits: Logits) -> tuple[Float[Tensor, " rows"], Float[Tensor, " rows"]]:
    """Return log-sum-exp and least logit of each row; what is given is written over."""
    sums, lows = [], []
    for strip in logits.split(STRIP_ROWS):
        lows.append(strip.amin(dim=-1))
        top = strip.amax(dim=-1, keepdim=True)
        terms = strip.sub_(top).clamp_(min=LEAST).exp_()
        sums.append(top[:, 0] + terms.sum(dim=-1).log())
    return torch.cat(sums), torch.cat(lows)


def _cuda_product(weight: Tensor) -> Callable[[Tensor], Tensor]:
    return lambda rows: torch.mm(rows.to(weight.dtype), weight.T, out_dtype=torch.float32)


def laid_out(weight: Tensor) -> Callable[[Tensor], Tensor]:
    """Return the product of rows with a float32 weight, which oneDNN lays out once for few rows."""
    if weight.device.type != "cpu" or not torch.backends.mkldnn.is_available():
        return lambda rows: F.linear(rows, weight)
    # torch calls these where it compiles a model, and has no public name for them. What the first
    # returns is one opaque block in the order in which oneDNN's kernel walks through it: it cannot
    # be sliced, pickled or copied by `deepcopy`.
    onednn = torch.ops.mkldnn
    packed = onednn._reorder_linear_weight(weight.detach().contiguous(), LAID_OUT_ROWS)

    def product(rows: Tensor) -> Tensor:
        result: Tensor = onednn._linear_pointwise(rows, packed, None, "none", [], "")
        return result

    return product


def is_plain(layer: nn.Module) -> bool:
    """Return True if a layer is a product in float32 on the CPU, and nothing else."""
    if type(layer) is not nn.Linear or hasattr(layer, "_hf_hook"):
        return False
    hooked = layer._forward_hooks or layer._forward_pre_hooks
    return not hooked and layer.weight.dtype == torch.float32 and layer.weight.device.type == "cpu"


def _fetched(head: nn.Module, name: str) -> Tensor | None:
    """Return a head's weight or bias, brought from where accelerate keeps it if it is offloaded."""
    value: Tensor | None = getattr(head, name, None)
    if value is None or not value.is_meta:
        return None if value is None else value.detach()
    from accelerate.utils import align_module_device

    with align_module_device(head, execution_device=device_of(head)):
        fetched: Tensor = getattr(head, name).detach().clone()
    return fetched


def _shell(model: PreTrainedModel, trunk: nn.Module, instead: nn.Module) -> nn.Module:
    """Copy the model's outermost module with the child that holds the trunk replaced."""
    for name, child in model.named_children():
        if any(m is trunk for m in child.modules()):
            return _replaced(model, name, instead)
    raise AssertionError("the trunk is part of the model")


def _replaced(module: nn.Module, name: str, child: nn.Module) -> nn.Module:
    """Copy a module with one (nested) child replaced; weights stay shared."""
    shell = copy.copy(module)
    if hasattr(module, "_hf_hook"):  # accelerate's forward is bound to the module itself
        shell.__dict__.pop("forward", None)
    shell._modules = dict(module._modules)
    first, _, rest = name.partition(".")
    inner = shell._modules[first]
    shell._modules[first] = child if not rest else _replaced(inner, rest, child)  # type: ignore[arg-type]
    return shell
