"""The one module that runs transformers models: branches of tokens -> states at the read rows.

A batch runs on the packed road (one row that holds the whole prefix forest, each node attending to
its ancestors) or on the plain road (a right-padded batch of whole sequences). Both give the same
states; the check at load decides which one a model takes (method, section 2).

Three branches, the candidate's tokens after the bar, its last one predicted and never fed:

    a b | c d x        a0 -- b1 -- c2 -- d3      row of tokens  a b c d e g h
    a b | c e y         |           `--- e4      node           0 1 2 3 4 5 6
    a g | h z           `--- g5 -- h6            position id    0 1 2 3 3 1 2
                                                 ends           7 5 5 4 5 7 7

Node q sees node k where k <= q < ends[k], itself and its ancestors: e4 sees a b c e and not d. The
rows that are read are those that predict a candidate's token: of the first branch b1 (c), c2 (d)
and d3 (x); the second shares b1 and c2 with it.
"""

import contextlib
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal
from weakref import WeakKeyDictionary

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.attention.flex_attention import BlockMask, create_block_mask
from transformers import PreTrainedModel
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from lastword.model.parts import (
    WINDOWS,
    Parts,
    context_length,
    device_of,
    locate,
    rope_class,
    text_config,
)
from lastword.model.prefixes import PackedRow, Prefixes
from lastword.model.reading import States, on_device
from lastword.text.branch import Branch
from lastword.text.forest import Nodes, Reads, build, lay_out, sees

Road = Literal["packed", "masked", "plain"]

# Nodes a query tile of the forest's attention holds: small enough that a tile attends to little
# beside its ancestors, large enough that its kernels are busy (on a GPU: and few).
TILE = 256
TILE_POOLED = 64  # of separate texts, which share next to nothing
TILE_CUDA = 1024
# Most nodes of a row that flex attention takes in the model's stead: its mask is made from a dense
# one.
FLEX_NODES = 2**14


# Hooks and the attention's name belong to one call at a time, whoever else holds the same model.
_LOCKS: WeakKeyDictionary[nn.Module, "threading.RLock"] = WeakKeyDictionary()


class Backbone:
    """A transformers model as a source of states.

    Args:
        road: How batches are run; the check says which roads the model can take.
        packed_attention: What attends over packed forests; by default the model's.
        prefixes: Where keys and values of prefixes, and texts' mean states, are kept that come
            back; the model's weights are then taken to stay as they are.

    Raises:
        UnsupportedModelError: Its trunk, blocks or head cannot be found.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        road: Road = "plain",
        packed_attention: str | None = None,
        prefixes: Prefixes | None = None,
    ) -> None:
        self.model, self.prefixes = model, prefixes
        self.config = text_config(model.config)
        self.road, self.packed_attention = road, packed_attention or self.attention
        self.parts: Parts = locate(model)
        self.depth = len(self.parts.blocks)
        self.context = context_length(model.config)
        self.lock = _LOCKS.setdefault(self.parts.trunk, threading.RLock())

    def on(
        self, road: Road, packed_attention: str | None = None, prefixes: Prefixes | None = None
    ) -> "Backbone":
        """Return the same model on another road."""
        return Backbone(self.model, road, packed_attention, prefixes)

    @property
    def device(self) -> torch.device:
        """Return where token ids go: the device of the input embeddings."""
        embeddings: nn.Module = self.parts.trunk.get_input_embeddings()  # type: ignore[operator]
        return device_of(embeddings)

    @property
    def dtype(self) -> torch.dtype:
        """Return the dtype of the weights and of the states."""
        return self.model.dtype

    @torch.inference_mode()
    def states(
        self, branches: Sequence[Branch], depths: Sequence[int], padded_tokens: int = 8192
    ) -> States:
        """Compute states of all branches at `depths`; blocks past the deepest are not run.

        Raises:
            torch.OutOfMemoryError: One branch alone is more than the device holds.
        """
        return self._states(branches, _Capture(tuple(sorted(set(depths)))), padded_tokens)

    @torch.inference_mode()
    def pooled(
        self, branches: Sequence[Branch], depths: Sequence[int], padded_tokens: int = 8192
    ) -> Float[Tensor, "branches depths width"]:
        """Average each branch's read rows, in float32, on the CPU; no row leaves its block.

        A text whose means are kept is not read again.

        Raises:
            torch.OutOfMemoryError: One branch alone is more than the device holds.
        """
        if self.prefixes is None:
            return self._means(branches, depths, padded_tokens)
        with self.lock:
            means = self.prefixes.means(branches, depths)
            if rest := [b for b in dict.fromkeys(branches) if b not in means]:
                fresh = self._means(rest, depths, padded_tokens)
                means |= self.prefixes.keep_means(rest, depths, fresh)
        each = [torch.stack([means[b].states[d] for d in depths]) for b in branches]
        return torch.stack(each)

    def _means(
        self, branches: Sequence[Branch], depths: Sequence[int], padded_tokens: int
    ) -> Float[Tensor, "branches depths width"]:
        states = self._states(branches, _Capture(tuple(sorted(set(depths))), True), padded_tokens)
        return torch.stack([states.hidden[d].cpu() for d in depths], 1)[states.reads.row]

    def _states(
        self, branches: Sequence[Branch], capture: "_Capture", padded_tokens: int
    ) -> States:
        pieces = self._by_rope(branches)
        if self.road == "plain":
            pieces = [p for piece in pieces for p in _rows_within(branches, piece, padded_tokens)]
        return _join([s for p in pieces for s in self._fitting(branches, p, capture)])

    def _by_rope(self, branches: Sequence[Branch]) -> list[list[int]]:
        """Group places of branches whose lengths have the same rope: in most models all."""
        classes: dict[int, list[int]] = {}
        for i, branch in enumerate(branches):
            classes.setdefault(self._rope(branch), []).append(i)
        return list(classes.values())

    def _rope(self, branch: Branch) -> int:
        return rope_class(self.model.config, len(branch.fed))

    def _fitting(
        self, branches: Sequence[Branch], places: list[int], capture: "_Capture"
    ) -> list[tuple[list[int], States]]:
        """Run the branches at once, or by halves where the device runs out of memory."""
        try:
            with self.lock, evaluating(self.model), _fresh_rope(self.parts.trunk):
                return [(places, self._run([branches[i] for i in places], capture))]
        except torch.OutOfMemoryError:
            if len(places) == 1:
                raise
        if self.prefixes is not None:
            self.prefixes.clear()
        torch.cuda.empty_cache()
        middle = len(places) // 2
        halves = places[:middle], places[middle:]
        return [s for half in halves for s in self._fitting(branches, half, capture)]

    def _run(self, branches: list[Branch], capture: "_Capture") -> States:
        if self.road == "plain":
            ids, reads = lay_out(branches)
            lengths = np.array([len(f) for f in dict.fromkeys(b.fed for b in branches)])
            mask = np.arange(ids.shape[1]) < lengths[:, None]
            inputs = {"attention_mask": self._tensor(mask.astype(np.int64))}
            return self._capture(ids, reads, capture, inputs)
        forest = build(branches)
        if self.road == "masked":
            nodes = np.arange(len(forest))
            visible = self._tensor(forest.mask(nodes, nodes)[None, None])
            return self._capture_row(PackedRow(forest), capture, {"attention_mask": visible})
        if self.prefixes is None or capture.pools:  # the same bits, whatever was read before
            return self._run_packed(PackedRow(forest), capture)
        row = self.prefixes.row(forest, self._rope(branches[0]), capture.deepest)
        states = self._run_packed(row, capture)
        self.prefixes.keep(row, capture.deepest)
        return states

    def _run_packed(self, row: PackedRow, capture: "_Capture") -> States:
        few = len(row.forest) <= FLEX_NODES
        attention = self.packed_attention if few else self.attention
        kind = FlexAttention if attention == "flex_attention" else TiledAttention
        tile = TILE_POOLED if capture.pools else TILE
        with _forest_attention(self.config, kind(row, attention, tile)):
            return self._capture_row(row, capture, {})

    def _capture_row(
        self, row: PackedRow, capture: "_Capture", inputs: dict[str, Tensor]
    ) -> States:
        forest = row.forest
        inputs = {"position_ids": self._tensor(forest.positions[None, row.nodes]), **inputs}
        reads = replace(forest.reads, rows=row.rows)
        return self._capture(forest.tokens[None, row.nodes], reads, capture, inputs)

    @property
    def attention(self) -> str:
        """Return the attention implementation that the model was loaded with."""
        return str(self.config._attn_implementation)

    def _capture(
        self,
        ids: Int[np.ndarray, "sequences length"],
        reads: Reads,
        capture: "_Capture",
        inputs: dict[str, Tensor],
    ) -> States:
        hidden: dict[int, Tensor] = {}
        lengths = self._tensor(np.bincount(reads.branch))
        rows = self._tensor(reads.rows[reads.row] if capture.pools else reads.rows)

        def keep(depth: int, state: Tensor) -> None:
            # index_select copies: only the read rows, or their means, outlive the block.
            read = state.flatten(0, 1).index_select(0, rows.to(state.device))
            if capture.pools:
                read = torch.segment_reduce(read.float(), "mean", lengths=lengths.to(read.device))
            hidden[depth] = read
            if depth == capture.deepest < self.depth:
                raise _DeepEnough

        with watching(self.parts, capture.depths, keep), contextlib.suppress(_DeepEnough):
            self.parts.trunk(input_ids=self._tensor(ids), use_cache=False, **inputs)
        each = np.arange(len(lengths))
        return States(hidden, Reads(each, each, 0 * each, each) if capture.pools else reads)

    def _tensor(self, array: np.ndarray) -> Tensor:
        return on_device(array, self.device)


@dataclass(frozen=True)
class _Capture:
    """Depths whose states are captured, ascending; whether the mean over a branch's rows is all."""

    depths: tuple[int, ...]
    pools: bool = False

    @property
    def deepest(self) -> int:
        return self.depths[-1]


class _DeepEnough(Exception):  # noqa: N818 - not an error: ends a forward whose rest nobody reads
    """The deepest state that was asked for is captured."""


@contextlib.contextmanager
def watching(
    parts: Parts, depths: Sequence[int], see: Callable[[int, Tensor], None]
) -> Iterator[None]:
    """Show the states at some depths to `see` as the trunk runs, before the next block does."""
    last = len(parts.blocks)

    def before(depth: int) -> Callable[..., None]:
        return lambda _, args, kwargs: see(depth, args[0] if args else kwargs["hidden_states"])

    def after(_: nn.Module, __: Any, output: Any) -> None:
        see(last, output[0] if isinstance(output, tuple) else output)

    with contextlib.ExitStack() as stack:
        for depth in depths:
            if depth < last:
                handle = parts.blocks[depth].register_forward_pre_hook(
                    before(depth), with_kwargs=True
                )
            else:
                handle = parts.blocks[last - 1].register_forward_hook(after)
            stack.callback(handle.remove)
        yield


class ForestAttention(ABC):
    """Attention over a packed forest, for one batch.

    Args:
        attention: Name of the attention implementation that does the arithmetic.
        tile: Nodes of a query tile on the CPU.
    """

    def __init__(self, row: PackedRow, attention: str, tile: int) -> None:
        self.row, self.inner, self.tile = row, attention, tile
        self._layouts: dict[tuple[int | None, torch.device], Any] = {}

    def __call__(
        self,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        **options: Any,
    ) -> tuple[Tensor, None]:
        """Attend over the forest where transformers calls its attention; it makes no mask here."""
        return self._attend(module, query, *self.row.extend(key, value), **options), None

    @abstractmethod
    def _attend(
        self, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, **options: Any
    ) -> Tensor:
        """Attend: query is [1, heads, nodes, dim], key and value have the row's `keys`.

        The result is [1, nodes, heads, dim].
        """

    @abstractmethod
    def _lay_out(self, ends: Tensor, positions: Tensor, window: int | None) -> Any:
        """Lay out which nodes see which, as the implementation wants it."""

    def layout(self, window: int | None, device: torch.device) -> Any:
        """Return the layout for blocks of a window on a device, made once."""
        place = (window, device)
        if place not in self._layouts:
            ends, positions = (
                on_device(x.astype(np.int32), device)
                for x in (self.row.forest.ends, self.row.forest.positions)
            )
            self._layouts[place] = self._lay_out(ends, positions, window)
        return self._layouts[place]


class TiledAttention(ForestAttention):
    """Attention tile by tile of queries, each by the model's attention.

    The keys of the nodes from a to b in depth-first order are the ancestors of a and those nodes,
    so a tile never looks at its neighbours' branches, and the row costs what its trees cost: the
    tile of g5 and h6 above has the keys a g h. With kept prefixes the queries are the nodes that
    are computed now, while the keys are all: `places` says where a node's key lies among them.
    """

    def _attend(
        self, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, **options: Any
    ) -> Tensor:
        attend = _implementation(module, self.inner)
        outputs = []
        for (a, b), places, mask in self.layout(options.get("sliding_window"), key.device):
            k, v = key.index_select(2, places), value.index_select(2, places)
            if self.inner == "eager":  # eager attention adds its mask
                mask = torch.where(mask, 0.0, torch.finfo(query.dtype).min).to(query.dtype)
            outputs.append(attend(module, query[:, :, a:b], k, v, mask, **options)[0])
        return torch.cat(outputs, dim=1)

    def _lay_out(
        self, ends: Tensor, positions: Tensor, window: int | None
    ) -> list[tuple[tuple[int, int], Tensor, Tensor]]:
        """Return spans of queries, the places of their keys, and who sees whom."""
        device, nodes, places = ends.device, self.row.nodes, self.row.places
        laid = []
        size = TILE_CUDA if device.type == "cuda" else self.tile
        for a, b in tiles(self.row.forest.positions[nodes], size):
            between = np.arange(nodes[a], nodes[b - 1] + 1)
            seen = np.append(self.row.forest.ancestors(int(nodes[a])), between)
            queries, keys = on_device(nodes[a:b, None], device), on_device(seen, device)
            mask = sees(queries, keys, ends, positions, window)[None, None]
            laid.append(((a, b), on_device(places[seen], device), mask))
        return laid


class FlexAttention(ForestAttention):
    """Attention by torch's flex attention, the whole row at once.

    Blocks of the row in which no node sees another are skipped.
    """

    def _attend(
        self, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, **options: Any
    ) -> Tensor:
        mask = self.layout(options.get("sliding_window"), key.device)
        attend = _implementation(module, self.inner)
        return attend(module, query, key, value, mask, **options)[0]

    def _lay_out(self, ends: Tensor, positions: Tensor, window: int | None) -> BlockMask:
        nodes, keys = (on_device(x, ends.device) for x in (self.row.nodes, self.row.keys))
        return create_block_mask(
            lambda _, __, q, k: sees(nodes[q], keys[k], ends, positions, window),
            *(None, None, len(nodes), len(keys)),
            device=str(ends.device),
        )


def tiles(positions: Nodes, size: int) -> list[tuple[int, int]]:
    """Cut nodes in depth-first order into spans of at most `size`, best at branch points."""
    branch_points = np.flatnonzero(np.diff(positions) != 1) + 1
    spans, start = [], 0
    while start < len(positions):
        stop = min(start + size, len(positions))
        if stop < len(positions):
            within = branch_points[(branch_points > start + size // 2) & (branch_points <= stop)]
            stop = int(within[-1]) if len(within) else stop
        spans.append((start, stop))
        start = stop
    return spans


@contextlib.contextmanager
def _forest_attention(config: Any, attention: ForestAttention) -> Iterator[None]:
    """Let the model's attention modules attend over the forest for the length of one call."""
    # transformers knows what attends by a name in the config alone, and not every family hands a
    # call's keywords down to it: so each forest has a name, which the config says during its call.
    name = f"lastword_forest_{id(attention)}"
    ALL_ATTENTION_FUNCTIONS[name] = attention
    before, config._attn_implementation = config._attn_implementation, name
    try:
        yield
    finally:
        config._attn_implementation = before
        del ALL_ATTENTION_FUNCTIONS[name]


def _implementation(module: nn.Module, name: str) -> Callable[..., tuple[Tensor, Any]]:
    """Return the attention function of a name; each family has an eager one."""
    if name == "eager":
        eager: Callable[..., Any] = sys.modules[type(module).__module__].eager_attention_forward
        return eager
    return ALL_ATTENTION_FUNCTIONS[name]  # type: ignore[no-any-return]


@contextlib.contextmanager
def shrunk_windows(backbone: Backbone, length: int) -> Iterator[bool]:
    """Shorten every sliding window to `length`; tells whether there is one (method, section 2)."""
    owners = [backbone.config, *backbone.parts.trunk.modules()]
    before = [
        (owner, name, getattr(owner, name))
        for owner in owners
        for name in WINDOWS
        if isinstance(getattr(owner, name, None), int)
    ]
    try:
        for owner, name, _ in before:
            setattr(owner, name, length)
        yield bool(before)
    finally:
        for owner, name, value in before:
            setattr(owner, name, value)


@contextlib.contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Run without dropout; modules in training mode are put back into it."""
    training = [module for module in model.modules() if module.training]
    for module in training:
        module.training = False
    try:
        yield
    finally:
        for module in training:
            module.training = True


@contextlib.contextmanager
def _fresh_rope(trunk: nn.Module) -> Iterator[None]:
    """Start dynamic rope afresh, and leave it as it was: no answer depends on the one before."""
    ropes: list[Any] = [m for m in trunk.modules() if hasattr(m, "max_seq_len_cached")]
    before = [(dict(vars(rope)), dict(rope._buffers)) for rope in ropes]
    for rope in ropes:
        for name in [n for n in vars(rope) | rope._buffers if n.endswith("original_inv_freq")]:
            current = name.replace("original_", "")
            fresh = getattr(rope, name).to(getattr(rope, current).device, copy=True)
            rope.register_buffer(current, fresh, persistent=False)
        for name in [n for n in vars(rope) if n.endswith("max_seq_len_cached")]:
            setattr(rope, name, rope.original_max_seq_len)
    try:
        yield
    finally:
        for rope, (values, buffers) in zip(ropes, before, strict=True):
            vars(rope).clear()
            vars(rope).update(values)
            rope._buffers.clear()
            rope._buffers.update(buffers)


def _rows_within(branches: Sequence[Branch], places: list[int], tokens: int) -> list[list[int]]:
    """Cut places into right-padded batches of at most `tokens`, longest first."""
    ordered = sorted(places, key=lambda i: (-len(branches[i].tokens), branches[i].fed))
    batches: list[list[int]] = []
    for i in ordered:
        longest = len(branches[batches[-1][0]].tokens) if batches else 0
        if not batches or longest * (len(batches[-1]) + 1) > tokens:
            batches.append([])
        batches[-1].append(i)
    return batches


def _join(pieces: list[tuple[list[int], States]]) -> States:
    """Join a batch's pieces; rows follow one another, branches keep their numbers."""
    if len(pieces) == 1 and pieces[0][0] == list(range(len(pieces[0][0]))):
        return pieces[0][1]
    rows, row, token, branch = [], [], [], []
    offset = 0
    for places, states in pieces:
        reads = states.reads
        rows.append(np.arange(len(reads.rows)) + offset)
        row.append(reads.row + offset)
        token.append(reads.token)
        branch.append(np.asarray(places)[reads.branch])
        offset += len(reads.rows)
    order = np.argsort(np.concatenate(branch), kind="stable")
    hidden = {
        depth: torch.cat([states.hidden[depth] for _, states in pieces])
        for depth in pieces[0][1].hidden
    }
    joined = (np.concatenate(x)[order] for x in (row, token, branch))
    return States(hidden, Reads(np.concatenate(rows), *joined))
