"""Forward passes of transformers models: branches of tokens -> states at the read rows.

The packed road runs a batch as one row with the whole prefix forest, in which each node attends to
its ancestors. The plain road runs it as whole sequences, padded at the right. Both give the same
states; the check at load decides which road a model takes (method, section 2).

Three branches, with the candidate's tokens after the bar. The last token is predicted, never fed:

    a b | c d x        a0 -- b1 -- c2 -- d3      row of tokens  a b c d e g h
    a b | c e y         |           `--- e4      node           0 1 2 3 4 5 6
    a g | h z           `--- g5 -- h6            position id    0 1 2 3 3 1 2
                                                 ends           7 5 5 4 5 7 7

Node q sees node k if k <= q < ends[k], which holds for itself and its ancestors: e4 sees a b c e,
but not d. A row is read if it predicts a token of a candidate. In the first branch these are b1
(predicts c), c2 (d) and d3 (x); the second branch shares b1 and c2 with it.
"""

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedModel
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from lastword.model.layout import LaidOut, rounded
from lastword.model.parts import (
    WINDOWS,
    Parts,
    context_length,
    locate,
    module_device,
    rope_class,
    text_config,
)
from lastword.model.prefixes import PackedRow, Prefixes
from lastword.model.readout import HiddenStates, on_device
from lastword.text.forest import Branch, Nodes, Reads, build, lay_out, sees

Road = Literal["packed", "plain"]
Pooled = Float[np.ndarray, "texts depths width"]
# Tiles: span of queries, places of the keys, mask.
Layout = list[tuple[tuple[int, int], Tensor, Tensor]]

# Nodes per query tile of the forest's attention. Small tiles attend to little besides their
# ancestors; large tiles use the hardware better, and on a GPU start fewer kernels.
TILE = 256
TILE_POOLED = 64  # of separate texts, which share almost no prefix
TILE_CUDA = 1024

# Hooks and the attention's name change a model during a call, so its backbones share a lock.
_LOCKS: WeakKeyDictionary[nn.Module, "threading.RLock"] = WeakKeyDictionary()


class Backbone:
    """A transformers model as a source of states, on a road that the check found to work.

    With a cache of prefixes, the model's weights must not change.
    """

    def __init__(
        self, model: PreTrainedModel, road: Road = "plain", prefixes: Prefixes | None = None
    ) -> None:
        self.model, self.road, self.prefixes = model, road, prefixes
        self.config, self.parts = text_config(model.config), locate(model)
        self.depth, self.context = len(self.parts.blocks), context_length(model.config)
        modules = self.parts.trunk.modules()
        self._ropes = [m for m in modules if hasattr(m, "max_seq_len_cached")]
        self._laid_out = any(isinstance(m, LaidOut) for m in self.parts.blocks.modules())
        self.lock = _LOCKS.setdefault(self.parts.trunk, threading.RLock())

    def on(self, road: Road, prefixes: Prefixes | None = None) -> "Backbone":
        """Return the same model on another road."""
        return Backbone(self.model, road, prefixes)

    @property
    def device(self) -> torch.device:
        """The device of the input embeddings, which the token ids go to."""
        embeddings: nn.Module = self.parts.trunk.get_input_embeddings()  # type: ignore[operator]
        return module_device(embeddings)

    @torch.inference_mode()
    def states(
        self, branches: Sequence[Branch], depths: Sequence[int], padded_tokens: int = 8192
    ) -> HiddenStates:
        """Compute the states of all branches at `depths`; later blocks do not run."""
        return self._states(branches, _Capture(tuple(sorted(set(depths)))), padded_tokens)

    def has_one_rope(self, tokens: int) -> bool:
        """Return True if a text of so many tokens has the same rope as its beginnings."""
        return rope_class(self.model.config, tokens) == rope_class(self.model.config, 1)

    def cached(self, branch: Branch, depth: int) -> int:
        """Return the number of a branch's first tokens whose keys are cached up to a depth."""
        with self.lock:
            prefixes, rope = self.prefixes, self._rope(branch)
            return prefixes.cached(build([branch]), rope, depth) if prefixes else 0

    @torch.inference_mode()
    def pooled(
        self,
        branches: Sequence[Branch],
        depths: Sequence[int],
        padded_tokens: int = 8192,
        *,
        caches: bool = False,
    ) -> Pooled:
        """Return the mean over each branch's read rows, in float32.

        With `caches`, means depend slightly on earlier texts: cached keys have the rounding of the
        batches that computed them.
        """
        capture = _Capture(tuple(sorted(set(depths))), pools=True, caches=caches)
        states = self._states(branches, capture, padded_tokens)
        means = torch.stack([states.hidden[d].cpu() for d in depths], 1)
        return means[states.reads.row].numpy()  # batches may have another order than the branches

    def _states(
        self, branches: Sequence[Branch], capture: "_Capture", padded_tokens: int
    ) -> HiddenStates:
        # Some models choose rope frequencies by the longest sequence of a batch.
        classes: dict[int, list[int]] = {}
        for i, branch in enumerate(branches):
            classes.setdefault(self._rope(branch), []).append(i)
        batches = list(classes.values())
        if self.road == "plain":
            batches = [b for c in batches for b in _padded_batches(branches, c, padded_tokens)]
        return _join([s for b in batches for s in self._run_halving(branches, b, capture)])

    def _rope(self, branch: Branch) -> int:
        return rope_class(self.model.config, len(branch.fed))

    def _run_halving(
        self, branches: Sequence[Branch], places: list[int], capture: "_Capture"
    ) -> list[tuple[list[int], HiddenStates]]:
        try:
            with self.lock, evaluating(self.model), _fresh_rope(self._ropes):
                return [(places, self._run([branches[i] for i in places], capture))]
        except torch.OutOfMemoryError:
            if len(places) == 1:
                raise
        # Not inside `except`: the error still holds the batch's tensors there.
        if self.prefixes is not None:
            with self.lock:
                self.prefixes.clear()
        torch.cuda.empty_cache()
        middle = len(places) // 2
        halves = places[:middle], places[middle:]
        return [s for half in halves for s in self._run_halving(branches, half, capture)]

    def _run(self, branches: list[Branch], capture: "_Capture") -> HiddenStates:
        if self.road == "plain":
            ids, reads = lay_out(branches)
            # `lay_out` has one row per distinct sequence, in this order.
            lengths = np.array([len(f) for f in dict.fromkeys(b.fed for b in branches)])
            mask = np.arange(ids.shape[1]) < lengths[:, None]
            inputs = {"attention_mask": self._tensor(mask.astype(np.int64))}
            return self._capture(ids, reads, capture, inputs)
        forest = build(branches)
        prefixes = self.prefixes if capture.caches else None
        row = PackedRow(forest)
        if prefixes is not None:
            row = prefixes.row(forest, self._rope(branches[0]), capture.deepest)
        tile = TILE if capture.caches else TILE_POOLED
        with _forest_attention(self.config, ForestAttention(row, self.attention, tile)):
            count = len(row.nodes)
            # Tokens at the end, which no node attends to.
            extra = (0, rounded(count) - count if self._laid_out else 0)
            ids, positions = (
                np.pad(x[row.nodes], extra)[None] for x in (forest.tokens, forest.positions)
            )
            reads = replace(forest.reads, rows=row.rows)
            inputs = {"position_ids": self._tensor(positions)}
            states = self._capture(ids, reads, capture, inputs)
        if prefixes is not None:
            prefixes.keep(row, capture.deepest)
        return states

    @property
    def attention(self) -> str:
        """The attention implementation that the model was loaded with."""
        return str(self.config._attn_implementation)

    def _capture(
        self,
        ids: Int[np.ndarray, "sequences length"],
        reads: Reads,
        capture: "_Capture",
        inputs: dict[str, Tensor],
    ) -> HiddenStates:
        hidden: dict[int, Tensor] = {}
        lengths = self._tensor(np.bincount(reads.branch))
        rows = self._tensor(reads.rows[reads.row] if capture.pools else reads.rows)

        def store(depth: int, state: Tensor) -> None:
            # index_select copies, so the whole state is freed after the block.
            read = state.flatten(0, 1).index_select(0, rows.to(state.device))
            if capture.pools:
                read = torch.segment_reduce(read.float(), "mean", lengths=lengths.to(read.device))
            hidden[depth] = read
            if depth == capture.deepest < self.depth:
                raise _StopForward

        with watching(self.parts, capture.depths, store), contextlib.suppress(_StopForward):
            self.parts.trunk(input_ids=self._tensor(ids), use_cache=False, **inputs)
        if capture.pools:
            means = np.arange(len(lengths))  # one row per branch
            reads = Reads(means, means, 0 * means, means)
        return HiddenStates(hidden, reads)

    def _tensor(self, array: np.ndarray) -> Tensor:
        return on_device(array, self.device)


class _Capture(NamedTuple):
    """The depths to capture, ascending; `pools` if only the mean over a branch's rows is needed.

    With `caches`, prefixes are taken from the cache and added to it.
    """

    depths: tuple[int, ...]
    pools: bool = False
    caches: bool = True

    @property
    def deepest(self) -> int:
        return self.depths[-1]


class _StopForward(Exception):  # noqa: N818 - raised to skip the blocks after the deepest capture
    pass


@contextlib.contextmanager
def watching(
    parts: Parts, depths: Sequence[int], observe: Callable[[int, Tensor], None]
) -> Iterator[None]:
    """Call `observe` with the depth and states at each depth while the trunk runs."""
    last = len(parts.blocks)

    def before(depth: int, _: nn.Module, args: Any, kwargs: Any) -> None:
        observe(depth, args[0] if args else kwargs["hidden_states"])

    # A hook on the last block gives the state before the final norm, which transformers'
    # `output_hidden_states` returns only after the norm.
    def after(_: nn.Module, __: Any, output: Any) -> None:
        observe(last, output[0] if isinstance(output, tuple) else output)

    with contextlib.ExitStack() as stack:
        for depth in depths:
            if depth < last:
                hook = partial(before, depth)
                handle = parts.blocks[depth].register_forward_pre_hook(hook, with_kwargs=True)
            else:
                handle = parts.blocks[last - 1].register_forward_hook(after)
            stack.callback(handle.remove)
        yield


class ForestAttention:
    """The model's attention over a packed forest, on one tile of queries after the other.

    In depth-first order, the nodes from a to b attend only to each other and to the ancestors of a.
    So a tile needs no keys of other branches: the tile of g5 and h6 above has the keys a g h. If
    the keys of prefixes are cached, the queries are only the nodes computed now, while the keys are
    those of all nodes; `places` has the index of each node's key. A tile has `tile` nodes on the
    CPU.
    """

    def __init__(self, row: PackedRow, attention: str, tile: int) -> None:
        self.row, self.inner, self.tile = row, attention, tile
        self._layouts: dict[tuple[int | None, torch.device], Layout] = {}

    def __call__(
        self,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        **options: Any,
    ) -> tuple[Tensor, None]:
        """Return [1, nodes, heads, dim] from queries [1, heads, nodes, dim], and no weights.

        transformers calls this in place of its attention function.
        """
        count = len(self.row.nodes)
        key, value = self.row.extend(key[:, :, :count], value[:, :, :count])
        attend = _implementation(module, self.inner)
        outputs = []
        for (a, b), places, mask in self._layout(options.get("sliding_window"), key.device):
            k, v = key.index_select(2, places), value.index_select(2, places)
            if self.inner == "eager":  # eager attention adds its mask to the scores
                mask = torch.where(mask, 0.0, torch.finfo(query.dtype).min).to(query.dtype)
            outputs.append(attend(module, query[:, :, a:b], k, v, mask, **options)[0])
        outputs.append(outputs[0][:, :1].expand(-1, query.shape[2] - count, -1, -1))
        return torch.cat(outputs, dim=1), None

    def _layout(self, window: int | None, device: torch.device) -> Layout:
        if (key := (window, device)) in self._layouts:
            return self._layouts[key]
        forest, nodes, layout = self.row.forest, self.row.nodes, self._layouts.setdefault(key, [])
        ends, positions = (
            on_device(x.astype(np.int32), device) for x in (forest.ends, forest.positions)
        )
        for a, b in tiles(
            forest.positions[nodes], TILE_CUDA if device.type == "cuda" else self.tile
        ):
            between = np.arange(nodes[a], nodes[b - 1] + 1)
            visible = np.append(forest.ancestors(int(nodes[a])), between)
            queries, keys = on_device(nodes[a:b, None], device), on_device(visible, device)
            mask = sees(queries, keys, ends, positions, window)[None, None]
            layout.append(((a, b), on_device(self.row.places[visible], device), mask))
        return layout


def tiles(positions: Nodes, size: int) -> list[tuple[int, int]]:
    """Cut nodes in depth-first order into spans of at most `size`, at branch points if possible."""
    # A node that does not follow the one before it begins another branch. A tile is at least half
    # full, as each has ancestors to attend to again.
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
def _forest_attention(config: PretrainedConfig, attention: ForestAttention) -> Iterator[None]:
    # Attention modules look their function up by the name in the config. Not every family passes
    # keywords on to it, so each forest gets a name, which is in the config during its call.
    name = f"lastword_forest_{id(attention)}"
    ALL_ATTENTION_FUNCTIONS[name] = attention
    before, config._attn_implementation = config._attn_implementation, name
    try:
        yield
    finally:
        config._attn_implementation = before
        del ALL_ATTENTION_FUNCTIONS[name]


def _implementation(module: nn.Module, name: str) -> Callable[..., tuple[Tensor, Tensor | None]]:
    if name == "eager":
        eager: Callable[..., tuple[Tensor, Tensor | None]] = sys.modules[
            type(module).__module__
        ].eager_attention_forward
        return eager
    return ALL_ATTENTION_FUNCTIONS[name]  # type: ignore[no-any-return]


@contextlib.contextmanager
def shrunk_windows(backbone: Backbone, length: int) -> Iterator[bool]:
    """Shorten every sliding window to `length`, and yield True if there is one."""
    owners = [backbone.config, *backbone.parts.trunk.modules()]
    places = [(owner, name) for owner in owners for name in WINDOWS]
    before = [(o, n, getattr(o, n)) for o, n in places if isinstance(getattr(o, n, None), int)]
    try:
        for owner, name, _ in before:
            setattr(owner, name, length)
        yield bool(before)
    finally:
        for owner, name, value in before:
            setattr(owner, name, value)


@contextlib.contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Switch dropout off inside the block."""
    training = [module for module in model.modules() if module.training]
    for module in training:
        module.training = False
    try:
        yield
    finally:
        for module in training:
            module.training = True


@contextlib.contextmanager
def _fresh_rope(ropes: Sequence[Any]) -> Iterator[None]:
    # A dynamic rope keeps the frequencies of the longest sequence so far: without the reset, an
    # answer would depend on earlier ones. With a rope per kind of layer, the names begin with the
    # kind (`full_attention_inv_freq`). The originals are buffers or plain attributes.
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


def _padded_batches(branches: Sequence[Branch], places: list[int], tokens: int) -> list[list[int]]:
    """Split indices into batches of at most `tokens` with padding, longest branches first."""
    ordered = sorted(places, key=lambda i: (-len(branches[i].tokens), branches[i].fed))
    batches: list[list[int]] = [[]]
    for i in ordered:
        batch = batches[-1]
        if batch and len(branches[batch[0]].tokens) * (len(batch) + 1) > tokens:
            batches.append(batch := [])
        batch.append(i)
    return batches


def _join(pieces: list[tuple[list[int], HiddenStates]]) -> HiddenStates:
    """Join the states of batches, whose branches have the given indices."""
    if len(pieces) == 1 and pieces[0][0] == list(range(len(pieces[0][0]))):
        return pieces[0][1]  # one batch in the caller's order
    states = [states for _, states in pieces]
    hidden = {depth: torch.cat([s.hidden[depth] for s in states]) for depth in states[0].hidden}
    # Rows are numbered on from piece to piece, and stay in the order of the pieces. Only the
    # targets are sorted by branch, so that they are in the caller's order.
    offsets = np.cumsum([0, *(len(s.reads.rows) for s in states)])
    row = np.concatenate([s.reads.row + o for s, o in zip(states, offsets, strict=False)])
    token = np.concatenate([s.reads.token for s in states])
    branch = np.concatenate([np.asarray(places)[s.reads.branch] for places, s in pieces])
    order = np.argsort(branch, kind="stable")
    reads = Reads(np.arange(offsets[-1]), row[order], token[order], branch[order])
    return HiddenStates(hidden, reads)
