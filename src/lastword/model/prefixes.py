"""Texts that come back: their keys and values, and mean states, are kept and computed once.

A prompt's tokens before the first row that is read are cut into blocks. A block's keys and values
depend on nothing but the tokens up to its end, whose digest is its name. Blocks that two prompts
share, or that have come before, are kept within a budget in bytes, and so is what is new where it
leaves half of the budget to others: a request's text, and not a long run's. The mean states that
probes read are kept by text. The least recently used go first, and of one prompt's blocks the
deepest.
"""

from collections import Counter, OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from lastword.text.branch import Branch
from lastword.text.forest import Forest, Ragged

BLOCK = 16  # tokens
SEEN = 2**16  # blocks that are remembered by name, to know those that come back
# What Python and torch take beside the numbers: of a small model's short state, most of all.
ENTRY_BYTES, TENSOR_BYTES = 768, 256

Keys = Float[Tensor, "1 _heads _nodes _dim"]


@dataclass(frozen=True)
class Block:
    """The keys and values that the model's attention made of some tokens in a row.

    Attributes:
        calls: Keys and values [1, heads, tokens, dim] of each call of the attention, in order.
        depth: How many of the model's blocks were run.
    """

    calls: tuple[tuple[Keys, Keys], ...]
    depth: int

    @property
    def bytes(self) -> int:
        """Return memory that it takes."""
        return _bytes(x for pair in self.calls for x in pair)


@dataclass(frozen=True)
class Means:
    """The mean states of a text.

    Attributes:
        states: By depth, each [width].
    """

    states: Mapping[int, Float[Tensor, " width"]]

    @property
    def bytes(self) -> int:
        """Return memory that they take."""
        return _bytes(self.states.values())


class PackedRow:
    """A packed forest as it is run: nodes that are computed, after those that are kept already.

    Args:
        forest: The whole forest.
        known: Nodes whose keys and values are kept, with these, by the names of their blocks.
        wanted: Nodes whose keys and values are to be kept, by the names of their blocks.

    Attributes:
        nodes: The nodes that are computed, ascending.
        keys: All nodes in the order in which the attention gets their keys.
        places: Place of each node among `keys`.
        used: Names of the blocks that are kept already.
    """

    def __init__(
        self,
        forest: Forest,
        known: Mapping[bytes, tuple[Ragged, Block]] | None = None,
        wanted: Mapping[bytes, Ragged] | None = None,
    ) -> None:
        self.forest, self.wanted = forest, wanted or {}
        known = known or {}
        self.used = tuple(known)
        self._known: list[tuple[Block, int]] = []
        order, stored = [], np.zeros(len(forest), dtype=bool)
        for nodes, block in known.values():
            fresh = nodes[~stored[nodes]]  # blocks that part in their middle begin alike
            self._known.append((block, len(nodes) - len(fresh)))
            stored[fresh] = True
            order.append(fresh)
        self.nodes: Ragged = np.flatnonzero(~stored)
        self.keys: Ragged = np.concatenate([*order, self.nodes])
        self.places: Ragged = np.argsort(self.keys)
        self._taken = self.places[np.concatenate([self.nodes[:0], *self.wanted.values()])]
        self._calls = 0
        self._made: list[tuple[Keys, Keys]] = []

    @property
    def rows(self) -> Ragged:
        """Return places of the rows to read among the nodes that are computed."""
        return np.searchsorted(self.nodes, self.forest.reads.rows)

    def extend(self, key: Keys, value: Keys) -> tuple[Keys, Keys]:
        """Return keys and values of all nodes in the order of `keys`, for the next attention."""
        blocks = [[x[:, :, skip:] for x in b.calls[self._calls]] for b, skip in self._known]
        self._calls += 1
        if blocks:
            key, value = (torch.cat(x, dim=2) for x in zip(*blocks, (key, value), strict=True))
        if self.wanted:
            index = torch.from_numpy(self._taken).to(key.device)
            self._made.append((key.index_select(2, index), value.index_select(2, index)))
        return key, value

    def made(self, depth: int) -> dict[bytes, Block]:
        """Return the wanted blocks, once the row has been run as far as `depth`."""
        blocks, start = {}, 0
        for name, nodes in self.wanted.items():
            stop = start + len(nodes)
            calls = tuple(
                (k[:, :, start:stop].clone(), v[:, :, start:stop].clone()) for k, v in self._made
            )
            blocks[name], start = Block(calls, depth), stop
        return blocks


class Prefixes:
    """The blocks and the mean states of one model that are kept.

    Args:
        budget: Most bytes of them.
        block: Tokens of each.

    Attributes:
        bytes: Of those that are kept now.
    """

    def __init__(self, budget: int, block: int = BLOCK) -> None:
        self.budget, self.block = budget, block
        self._kept: OrderedDict[bytes, Block | Means] = OrderedDict()
        self._seen: OrderedDict[bytes, None] = OrderedDict()
        self._block_bytes = 0  # a depth; unknown before there is one
        self.bytes = 0

    def __len__(self) -> int:
        """Count blocks, and texts with mean states."""
        return len(self._kept)

    def row(self, forest: Forest, rope: int, depth: int) -> PackedRow:
        """Return a forest without what is kept of it.

        Args:
            forest: The batch.
            rope: Which of the model's ropes it is run with (`families.rope_class`): keys of
                different ones are different.
            depth: How many of the model's blocks will be run.
        """
        if depth == 0:  # nothing attends before the first of the model's blocks
            return PackedRow(forest)
        blocks, prompts = self._blocks_of(forest, rope)
        at_hand = {
            name: (nodes, block)
            for name, nodes in blocks.items()
            if isinstance(block := self._kept.get(name), Block) and block.depth >= depth
        }
        most = self._most(depth)
        rest = [n for n in blocks if n not in at_hand]
        if len(rest) > most // 2:
            rest = [n for n in rest if prompts[n] > 1 or n in self._seen]
        self._remember(blocks)
        return PackedRow(forest, at_hand, {n: blocks[n] for n in rest[:most]})

    def keep(self, row: PackedRow, depth: int) -> None:
        """Keep what a row made, once it has been run, and let go what is over the budget."""
        blocks = row.made(depth)
        for block in blocks.values():
            self._block_bytes = block.bytes // depth
        self._put(reversed(blocks.items()))
        for name in reversed(row.used):
            self._kept.move_to_end(name)
        self._fit()

    def means(self, branches: Iterable[Branch], depths: Iterable[int]) -> dict[Branch, Means]:
        """Return those mean states of branches that are kept at all of some depths."""
        means, depths = {}, frozenset(depths)
        for branch in branches:
            entry = self._kept.get(name := _text_name(branch))
            if isinstance(entry, Means) and depths <= entry.states.keys():
                self._kept.move_to_end(name)
                means[branch] = entry
        return means

    def keep_means(
        self,
        branches: Sequence[Branch],
        depths: Sequence[int],
        states: Float[Tensor, "branches depths width"],
    ) -> dict[Branch, Means]:
        """Keep mean states of branches beside those of other depths, within the budget."""
        means = {}
        for branch, rows in zip(branches, states, strict=True):
            old = self._kept.get(name := _text_name(branch))
            before = old.states if isinstance(old, Means) else {}
            new = {d: x.clone() for d, x in zip(depths, rows, strict=True)}
            means[branch] = Means({**before, **new})
            self._put([(name, means[branch])])
        self._fit()
        return means

    def clear(self) -> None:
        """Let everything go."""
        self._kept.clear()
        self.bytes = 0

    def _blocks_of(self, forest: Forest, rope: int) -> tuple[dict[bytes, Ragged], Counter[bytes]]:
        """Return nodes of each block before the first read rows, and how many prompts have it.

        A block in which another branch reads a row is none: its states are wanted.
        """
        read = np.zeros(len(forest), dtype=bool)
        read[forest.reads.rows] = True
        blocks: dict[bytes, Ragged] = {}
        prompts: Counter[bytes] = Counter()
        for first in np.unique(_first_rows(forest)):
            path, name = forest.ancestors(int(first)), str(rope).encode()
            for start in range(0, len(path) - self.block + 1, self.block):
                nodes = path[start : start + self.block]
                name = blake2b(name + forest.tokens[nodes].tobytes(), digest_size=16).digest()
                if not read[nodes].any():
                    blocks[name] = nodes
                    prompts[name] += 1
        return blocks, prompts

    def _most(self, depth: int) -> int:
        """Return how many blocks the budget holds; before one is known, a few."""
        return self.budget // (self._block_bytes * depth) if self._block_bytes else 2 * BLOCK

    def _remember(self, names: Mapping[bytes, Ragged]) -> None:
        self._seen |= dict.fromkeys(names)
        while len(self._seen) > SEEN:
            self._seen.popitem(last=False)

    def _put(self, new: Iterable[tuple[bytes, Block | Means]]) -> None:
        for name, entry in new:
            self._drop(name)
            self._kept[name] = entry
            self.bytes += entry.bytes

    def _fit(self) -> None:
        while self.bytes > self.budget:
            self._drop(next(iter(self._kept)))

    def _drop(self, name: bytes) -> None:
        block = self._kept.pop(name, None)
        self.bytes -= 0 if block is None else block.bytes


def _bytes(tensors: Iterable[Tensor]) -> int:
    return ENTRY_BYTES + sum(x.numel() * x.element_size() + TENSOR_BYTES for x in tensors)


def _text_name(branch: Branch) -> bytes:
    ids = np.array([branch.boundary, *branch.fed])
    return blake2b(ids.tobytes(), digest_size=16, person=b"mean").digest()


def _first_rows(forest: Forest) -> Ragged:
    """Return the row that predicts the first token of each branch."""
    reads = forest.reads
    firsts: Ragged = reads.rows[reads.row[np.flatnonzero(np.diff(reads.branch, prepend=-1))]]
    return firsts
