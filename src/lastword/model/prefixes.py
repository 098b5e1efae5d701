"""Cache of repeated beginnings of texts: their keys and values in the attention.

A prompt's tokens up to the first read row are cut into blocks. The keys and values of a block
depend only on the tokens up to its end, so their digest is its name. Within a budget in
bytes, the least recently used blocks are removed first, and of one prompt's blocks the deepest.
"""

import math
from collections import OrderedDict
from collections.abc import Mapping
from hashlib import blake2b
from itertools import takewhile
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from lastword.text.forest import Forest, Ragged

BLOCK = 16  # tokens
# Overhead of Python and torch; in small models it is larger than the numbers themselves.
ENTRY_BYTES, TENSOR_BYTES = 768, 256

Keys = Float[Tensor, "1 _heads _nodes _dim"]


class KeyBlock(NamedTuple):
    """Keys and values of consecutive tokens, of each call of the attention in `depth` blocks."""

    calls: tuple[tuple[Keys, Keys], ...]
    depth: int

    @property
    def bytes(self) -> int:
        """Memory use."""
        tensors = [x for pair in self.calls for x in pair]
        return ENTRY_BYTES + sum(x.nbytes + TENSOR_BYTES for x in tensors)


class PackedRow:
    """A packed forest for one forward pass: cached nodes first, then the computed ones.

    Nodes of the cached blocks, and of those to add to the cache, come by the blocks' names.
    """

    def __init__(
        self,
        forest: Forest,
        cached: Mapping[bytes, tuple[Ragged, KeyBlock]] | None = None,
        additions: Mapping[bytes, Ragged] | None = None,
    ) -> None:
        self.forest, self.additions = forest, additions or {}
        cached = cached or {}
        self.cached_names = tuple(cached)
        self._blocks: list[tuple[KeyBlock, int]] = []  # with the number of tokens to skip
        order, stored = [], np.zeros(len(forest), dtype=bool)
        for nodes, block in cached.values():
            fresh = nodes[~stored[nodes]]  # two blocks may share their first tokens
            self._blocks.append((block, len(nodes) - len(fresh)))
            stored[fresh] = True
            order.append(fresh)
        self.nodes: Ragged = np.flatnonzero(~stored)  # to compute
        self.places: Ragged = np.argsort(np.concatenate([*order, self.nodes]))
        # Places of the keys to add, block after block; an empty array keeps the dtype.
        self._added = self.places[np.concatenate([self.nodes[:0], *self.additions.values()])]
        self._added_keys: list[tuple[Keys, Keys]] = []
        self._calls = 0

    @property
    def rows(self) -> Ragged:
        """Indices of the read rows among the computed nodes."""
        return np.searchsorted(self.nodes, self.forest.reads.rows)

    def extend(self, key: Keys, value: Keys) -> tuple[Keys, Keys]:
        """Return keys and values of all nodes, for the next call of the attention."""
        blocks = [[x[:, :, skip:] for x in b.calls[self._calls]] for b, skip in self._blocks]
        self._calls += 1
        if blocks:
            key, value = (torch.cat(x, dim=2) for x in zip(*blocks, (key, value), strict=True))
        if self.additions:
            index = torch.from_numpy(self._added).to(key.device)
            self._added_keys.append((key.index_select(2, index), value.index_select(2, index)))
        return key, value

    def new_blocks(self, depth: int) -> dict[bytes, KeyBlock]:
        """Return the blocks to add to the cache after a forward pass up to `depth`."""
        sizes = [len(nodes) for nodes in self.additions.values()]
        pairs = [(k.split(sizes, 2), v.split(sizes, 2)) for k, v in self._added_keys]
        return {
            name: KeyBlock(tuple((k[i].clone(), v[i].clone()) for k, v in pairs), depth)
            for i, name in enumerate(self.additions)
        }


class Prefixes:
    """The cache of one model: at most `budget` bytes, in blocks of `block` tokens."""

    def __init__(self, budget: int, block: int = BLOCK) -> None:
        self.budget, self.block = budget, block
        self._entries: OrderedDict[bytes, KeyBlock] = OrderedDict()
        self.bytes = 0

    def __len__(self) -> int:
        """Return the number of blocks."""
        return len(self._entries)

    @property
    def capacity(self) -> float:
        """The number of tokens whose keys fit the budget; infinite before the first block."""
        return self.block * len(self) * self.budget / self.bytes if self.bytes else math.inf

    def row(self, forest: Forest, rope: int, depth: int) -> PackedRow:
        """Return a forest as a row for `depth` blocks; keys depend on the class of the rope."""
        if depth == 0:  # no attention is called
            return PackedRow(forest)
        blocks, cached, additions = self._blocks_of(forest, rope), {}, {}
        read = np.zeros(len(forest), dtype=bool)
        read[forest.reads.rows] = True
        for name, nodes in blocks.items():
            if not self._has(name, depth):
                additions[name] = nodes
            elif not read[nodes].any():  # a read row has to be computed for its state
                cached[name] = nodes, self._entries[name]
        return PackedRow(forest, cached, additions)

    def cached(self, forest: Forest, rope: int, depth: int) -> int:
        """Return the number of first tokens of a single branch whose blocks are cached."""
        known = takewhile(lambda name: self._has(name, depth), self._blocks_of(forest, rope))
        return self.block * sum(1 for _ in known)

    def _has(self, name: bytes, depth: int) -> bool:
        return name in self._entries and self._entries[name].depth >= depth

    def keep(self, row: PackedRow, depth: int) -> None:
        """Store the new blocks of a row after its forward pass, within the budget."""
        # In reverse order, a prompt's first blocks are the most recently used, and stay longest.
        for name, block in reversed(row.new_blocks(depth).items()):
            old = self._entries.pop(name, None)
            self._entries[name] = block
            self.bytes += block.bytes - (0 if old is None else old.bytes)
        for name in reversed(row.cached_names):
            self._entries.move_to_end(name)
        while self.bytes > self.budget:
            self.bytes -= self._entries.popitem(last=False)[1].bytes

    def clear(self) -> None:
        """Remove all entries."""
        self._entries.clear()
        self.bytes = 0

    def _blocks_of(self, forest: Forest, rope: int) -> dict[bytes, Ragged]:
        reads, blocks = forest.reads, dict[bytes, Ragged]()
        # The rows that predict the first token of a branch.
        firsts = reads.rows[reads.row[np.flatnonzero(np.diff(reads.branch, prepend=-1))]]
        for first in np.unique(firsts):
            path, name = np.append(forest.ancestors(int(first)), first), str(rope).encode()
            for start in range(0, len(path) - self.block + 1, self.block):
                nodes = path[start : start + self.block]
                name = blake2b(name + forest.tokens[nodes].tobytes(), digest_size=16).digest()
                blocks[name] = nodes
        return blocks
