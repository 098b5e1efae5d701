"""The head: states at any depth -> logits, and log-probabilities of predicted tokens.

The logits come from the model's code. A copy of the model, whose trunk only returns its input, runs
the model's `forward`. So soft-caps, scales and biases are applied as in the model. Only the logits
of one tile of rows are in memory at a time.
"""

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import PreTrainedModel

from lastword.model.layout import LaidOut, in_pieces, is_plain, rounded
from lastword.model.options import HeadDtype
from lastword.model.parts import Parts, module_device
from lastword.model.weights.checkpoint import fetched
from lastword.rule.tile import Logits, Tile, TokenScorer
from lastword.text.forest import Reads

# A tile's rows, and for each of its targets the row within it, the token, and its place.
_Indices = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]

# Logits per tile. On the CPU, a tile at all depths of the scorer fits the caches. On a GPU, larger
# tiles read the head's weights less often.
TILE_LOGITS = 3 * 2**21
TILE_LOGITS_CUDA = 2**26
STACKED_ROWS = 4096  # rows per call of a head that does not store logits
PIECE = 2**12  # tokens per piece of the vocabulary on the CPU
PIECE_ROWS = 512  # rows per piece, if only log-probabilities are needed
STRIP_ROWS = 32  # rows that are summed while they are in the core's cache
# Logits lower than the largest by more nats are raised to this: exp is 25 times slower where it
# underflows, and e^-80 times the size of a vocabulary is 0 beside 1 in float32.
LEAST = -80.0


@dataclass(frozen=True)
class HiddenStates:
    """Residual-stream states of a batch at its read rows, by depth, in the model's dtype."""

    hidden: dict[int, Float[Tensor, "rows width"]]
    reads: Reads


@dataclass(frozen=True)
class TokenScores:
    """The log-probabilities and scores of a set of predicted tokens."""

    log_probs: dict[int, Float[np.ndarray, " targets"]]  # by depth, in nats
    scores: list[Float[np.ndarray, " targets"]]  # of each token scorer
    # The first depth with a logit that is not finite at a token's row; -1 without one.
    faults: Int[np.ndarray, " targets"]


class Readout:
    """The model's final norm and output head, as one function of states.

    Logits are float32; with the `head_dtype` `model` they are rounded to the model's dtype before.
    """

    def __init__(
        self, model: PreTrainedModel, parts: Parts, head_dtype: HeadDtype = "float32"
    ) -> None:
        self.parts = parts
        self._shell = _shell(model, parts.trunk, _IdentityTrunk(parts.trunk))
        head = model.get_output_embeddings()
        self.vocabulary = int(head.weight.shape[0])
        self.device = module_device(head)
        logits = TILE_LOGITS_CUDA if self.device.type == "cuda" else TILE_LOGITS
        self.tile_rows = max(16, min(1024, logits // self.vocabulary))
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

        DoLa and SLED read early layers without the norm N. A lens depends on the layer; this head
        does not.
        """
        return self._head(self._normed(hidden, norm))

    @torch.inference_mode()
    def _is_whole_head(self, head: "_Float32Head") -> bool:
        draw = torch.Generator().manual_seed(0)
        states = 100 * torch.randn(8, head.weight.shape[1], generator=draw)  # a cap changes these
        states = states.to(head.weight)
        return torch.equal(self._head(states), head(states[None])[0])

    def _normed(self, hidden: Tensor, norm: bool = True) -> Tensor:
        if norm and self.parts.norm is not None:
            hidden = self.parts.norm(hidden[None])[0]
        return hidden if self.parts.after_norm is None else self.parts.after_norm(hidden)

    def _head(self, normed: Tensor) -> Logits:
        logits: Tensor = self._shell(
            input_ids=None, inputs_embeds=normed[None], use_cache=False
        ).logits
        return logits[0].float()

    @torch.inference_mode()
    def read(
        self,
        states: HiddenStates,
        targets: Int[np.ndarray, " targets"],
        depths: Sequence[int],
        scorers: Sequence[TokenScorer] = (),
    ) -> TokenScores:
        """Read log-probabilities of predicted tokens at some depths, and token scorers' scores."""
        # Depth L is read from its logits too, so that its log-probabilities are the model's to the
        # last bit: sums over pieces of the vocabulary round differently.
        last, scored = len(self.parts.blocks), {d for s in scorers for d in s.depths}
        direct = [d for d in depths if self._direct and d != last and d not in scored]
        reading = self._read_logits(
            states, targets, [d for d in depths if d not in direct], scorers
        )
        log_probs = reading.log_probs | self._read_direct(states, targets, direct)
        faults = reading.faults
        for depth in reversed(direct):  # the first fault of a row counts
            faults = np.where(np.isfinite(log_probs[depth]), faults, depth)
        return TokenScores({d: log_probs[d] for d in depths}, reading.scores, faults)

    def _read_logits(
        self,
        states: HiddenStates,
        targets: Int[np.ndarray, " targets"],
        depths: Sequence[int],
        scorers: Sequence[TokenScorer],
    ) -> TokenScores:
        if not depths:
            return TokenScores({}, [], np.full(len(targets), -1))
        tiles = [*_cut(states.reads, targets, self.tile_rows)]
        parts = [self._read_tile(states, tile, depths, scorers) for tile in tiles]
        order = np.concatenate([tile[3] for tile in tiles]).argsort()
        values = torch.cat([values for values, _ in parts], dim=1).cpu().numpy()[:, order]
        faults = torch.cat([faults for _, faults in parts]).cpu().numpy()[order]
        return TokenScores(
            dict(zip(depths, values, strict=False)), list(values[len(depths) :]), faults
        )

    def _read_tile(
        self,
        states: HiddenStates,
        indices: _Indices,
        depths: Sequence[int],
        scorers: Sequence[TokenScorer],
    ) -> tuple[Float[Tensor, "readings some"], Int[Tensor, " some"]]:
        """Return log-probabilities by depth, then the scorers' scores; and faults."""
        rows, row, token = (on_device(x, self.device) for x in indices[:3])
        tile, scored = Tile({}, {}, {}, row, token), {d for s in scorers for d in s.depths}
        values = []
        faults = torch.full((len(rows),), -1, device=self.device)

        def check(depth: int, extreme: Tensor) -> None:  # only the first fault of a row counts
            faults[(faults < 0) & ~extreme.isfinite()] = depth

        for depth in depths:
            logits = self.logits(_rows(states, depth, rows), layer=depth)
            normed = F.log_softmax(logits, dim=-1)
            values.append(normed[row, token])
            check(depth, normed.amin(dim=-1))
            if depth in scored:
                tile.logits[depth], tile.log_z[depth] = logits, _log_z(logits, normed)
        for depth in sorted({d for s in scorers for d in s.raw_depths}):
            tile.raw[depth] = self.logits(_rows(states, depth, rows), norm=False)
            check(depth, tile.raw_log_z(depth)[:, 0])
        values += [scorer.log_probs(tile) for scorer in scorers]
        return torch.stack(values), faults[row]

    def _read_direct(
        self, states: HiddenStates, targets: Int[np.ndarray, " targets"], depths: Sequence[int]
    ) -> dict[int, Float[np.ndarray, " targets"]]:
        """Read without storing logits, at all depths at once; NaN if a logit is not finite."""
        if self._direct is None or not depths:
            return {}
        level, values, places = np.arange(len(depths))[:, None], [], []
        size = max(1, STACKED_ROWS // len(depths))
        for rows, row, token, place in _cut(states.reads, targets, size):
            # Row r at the i-th depth is row i * len(rows) + r of one stack.
            stack = [_rows(states, depth, on_device(rows, self.device)) for depth in depths]
            at = on_device((row + level * len(rows)).ravel(), self.device)
            tokens = on_device(np.tile(token, len(depths)), self.device)
            log_probs = self._direct.log_probs(self._normed(torch.cat(stack)), at, tokens)
            values.append(log_probs.reshape(len(depths), -1))
            places.append(place)
        joined = torch.cat(values, dim=1).cpu().numpy()[:, np.concatenate(places).argsort()]
        return dict(zip(depths, joined, strict=True))


class _IdentityTrunk(nn.Module):
    def __init__(self, trunk: nn.Module) -> None:
        super().__init__()
        self._trunk = (trunk,)  # in a tuple, so that it is not a submodule

    def __getattr__(self, name: str) -> Any:
        # A head may read a constant of its trunk.
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self.__dict__["_trunk"][0], name)

    def forward(self, *_: object, inputs_embeds: Tensor, **__: object) -> "_Output":
        return _Output((inputs_embeds,))

    @property
    def decoder(self) -> "_IdentityTrunk":
        """This module: some models call the decoder inside their trunk."""
        return self


class _Output(tuple[Tensor]):
    """The output of a trunk with only the last hidden state; all other attributes are None."""

    @property
    def last_hidden_state(self) -> Tensor:
        return self[0]

    def __getattr__(self, name: str) -> None:
        if name.startswith("__"):
            raise AttributeError(name)


class _Float32Head(nn.Module):
    """A head with logits in float32, also inside the product (method, section 2).

    On the CPU, the weights are converted once, and multiplied in pieces of the vocabulary.
    """

    def __init__(self, head: nn.Module) -> None:
        super().__init__()
        weight, bias = (_parameter(head, name) for name in ("weight", "bias"))
        assert weight is not None
        self.bias = None if bias is None else bias.float()
        self.weight = weight  # some models read its dtype
        self._pieces: list[Callable[[Tensor], Tensor]] = [
            lambda rows: torch.mm(rows.to(weight.dtype), weight.T, out_dtype=torch.float32)
        ]
        if not weight.is_cuda:
            self._pieces = [*in_pieces(weight, PIECE)]

    def forward(self, hidden: Tensor) -> Tensor:
        pieces = list(self._by_piece(hidden.to(self.weight.device).flatten(0, 1)))
        logits = pieces[0] if len(pieces) == 1 else torch.cat(pieces, dim=-1)
        return logits.reshape(*hidden.shape[:2], -1)

    def log_probs(
        self,
        rows: Float[Tensor, "rows width"],
        row: Int[Tensor, " targets"],
        token: Int[Tensor, " targets"],
    ) -> Float[Tensor, " targets"]:
        """Return log-probabilities from states after the final norm."""
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
        start, count, rows = 0, len(rows), rows if rows.is_cuda else rows.float()
        if isinstance(self._pieces[0], LaidOut):
            rows = F.pad(rows, (0, 0, 0, rounded(count) - count))
        for product in self._pieces:
            logits = product(rows)[:count]
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


def _rows(
    states: HiddenStates, depth: int, rows: Int[Tensor, " some"]
) -> Float[Tensor, "some width"]:
    """Return the states of rows at a depth, on the device of `rows`; blocks may be on others."""
    hidden = states.hidden[depth]
    return hidden.index_select(0, rows.to(hidden.device)).to(rows.device)


def _log_z(logits: Logits, normed: Logits) -> Float[Tensor, "rows 1"]:
    # Some heads mask tokens with -inf, so the largest of a few is taken.
    token = logits[:, :64].argmax(dim=-1, keepdim=True)
    return logits.gather(1, token) - normed.gather(1, token)


def _cut(reads: Reads, targets: Int[np.ndarray, " targets"], size: int) -> Iterator[_Indices]:
    """Yield the targets in the order of their rows, in tiles of at most `size` rows."""
    place = np.argsort(reads.row[targets], kind="stable")
    rows, row = np.unique(reads.row[targets][place], return_inverse=True)
    token = reads.token[targets][place]
    for start in range(0, len(rows), size):
        a, b = np.searchsorted(row, [start, start + size])
        yield rows[start : start + size], row[a:b] - start, token[a:b], place[a:b]


def dtype_name(dtype: torch.dtype) -> str:
    """Return the name of a dtype, such as `float32`."""
    return str(dtype).removeprefix("torch.")


def on_device(array: np.ndarray, device: torch.device) -> Tensor:
    """Return an array as a tensor on a device, without waiting for a GPU."""
    tensor = torch.from_numpy(np.ascontiguousarray(array))
    return tensor.to(device, non_blocking=device.type == "cuda")


def _parameter(head: nn.Module, name: str) -> Tensor | None:
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
