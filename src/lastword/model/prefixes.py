"""Prefixes that come back: their keys and values are kept, so that they are computed once.

A prompt's tokens before the first row that is read are cut into blocks. A block's keys and values
depend on nothing but the tokens up to its end, whose digest is its name. Blocks that two prompts
share, or that have come before, are kept within a budget in bytes; the least recently used go
first, and of those the deepest.
"""

from collections import Counter, OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from lastword.text.forest import Forest, Ragged

BLOCK = 16  # tokens
SEEN = 2**16  # blocks that are remembered by name, to know those that come back

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
        """Memory that it takes."""
        return sum(x.numel() * x.element_size() for pair in self.calls for x in pair)


class Row:
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
        order, there = [], np.zeros(len(forest), dtype=bool)
        for nodes, block in known.values():
            fresh = nodes[~there[nodes]]  # blocks that part in their middle begin alike
            self._known.append((block, len(nodes) - len(fresh)))
            there[fresh] = True
            order.append(fresh)
        self.nodes: Ragged = np.flatnonzero(~there)
        self.keys: Ragged = np.concatenate([*order, self.nodes])
        self.places: Ragged = np.argsort(self.keys)
        self._taken = self.places[np.concatenate([self.nodes[:0], *self.wanted.values()])]
        self._calls = 0
        self._made: list[tuple[Keys, Keys]] = []

    @property
    def rows(self) -> Ragged:
        """Places of the rows to read among the nodes that are computed."""
        return np.searchsorted(self.nodes, self.forest.reads.rows)

    def extend(self, key: Keys, value: Keys) -> tuple[Keys, Keys]:
        """Keys and values of all nodes, in the order of `keys`, for the next call of the attention.

        Args:
            key: Of the nodes that are computed.
            value: Of the same.
        """
        blocks = [[x[:, :, skip:] for x in b.calls[self._calls]] for b, skip in self._known]
        self._calls += 1
        if blocks:
            key, value = (torch.cat(x, dim=2) for x in zip(*blocks, (key, value), strict=True))
        if self.wanted:
            index = torch.from_numpy(self._taken).to(key.device)
            self._made.append((key.index_select(2, index), value.index_select(2, index)))
        return key, value

    def made(self, depth: int) -> dict[bytes, Block]:
        """The wanted blocks, once the row has been run as far as `depth`."""
        blocks, start = {}, 0
        for name, nodes in self.wanted.items():
            stop = start + len(nodes)
            calls = tuple(
                (k[:, :, start:stop].clone(), v[:, :, start:stop].clone()) for k, v in self._made
            )
            blocks[name], start = Block(calls, depth), stop
        return blocks


class Prefixes:
    """The blocks of one model that are kept.

    Args:
        budget: Most bytes of them.
        block: Tokens of each.

    Attributes:
        bytes: Of those that are kept now.
    """

    def __init__(self, budget: int, block: int = BLOCK) -> None:
        self.budget, self.block = budget, block
        self._kept: OrderedDict[bytes, Block] = OrderedDict()
        self._seen: OrderedDict[bytes, None] = OrderedDict()
        self.bytes = 0

    def __len__(self) -> int:
        """Number of blocks that are kept."""
        return len(self._kept)

    def row(self, forest: Forest, rope: int, depth: int) -> Row:
        """A forest without what is kept of it.

        Args:
            forest: The batch.
            rope: Which of the model's ropes it is run with (`families.rope_class`): keys of
                different ones are different.
            depth: How many of the model's blocks will be run.
        """
        if depth == 0:  # nothing attends before the first of the model's blocks
            return Row(forest)
        blocks, prompts = self._blocks_of(forest, rope)
        at_hand = {
            name: (nodes, block)
            for name, nodes in blocks.items()
            if (block := self._kept.get(name)) is not None and block.depth >= depth
        }
        again = [n for n in blocks if n not in at_hand and (prompts[n] > 1 or n in self._seen)]
        self._remember(blocks)
        return Row(forest, at_hand, {n: blocks[n] for n in again[: self._most(depth)]})

    def keep(self, row: Row, depth: int) -> None:
        """Keep what a row made, once it has been run, and let go what is over the budget."""
        for name, block in reversed(row.made(depth).items()):
            self._drop(name)
            self._kept[name] = block
            self.bytes += block.bytes
        for name in reversed(row.used):
            self._kept.move_to_end(name)
        while self.bytes > self.budget:
            self._drop(next(iter(self._kept)))

    def clear(self) -> None:
        """Let everything go."""
        self._kept.clear()
        self.bytes = 0

    def _blocks_of(self, forest: Forest, rope: int) -> tuple[dict[bytes, Ragged], Counter[bytes]]:
        """Nodes of each block before the first read rows, and how many prompts have it.

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
        """How many blocks the budget holds; before one is known, a few."""
        if not self._kept:
            return 2 * BLOCK
        last = next(reversed(self._kept.values()))
        return int(self.budget / (last.bytes / last.depth * depth))

    def _remember(self, names: Mapping[bytes, Ragged]) -> None:
        self._seen |= dict.fromkeys(names)
        while len(self._seen) > SEEN:
            self._seen.popitem(last=False)

    def _drop(self, name: bytes) -> None:
        block = self._kept.pop(name, None)
        self.bytes -= 0 if block is None else block.bytes


def _first_rows(forest: Forest) -> Ragged:
    """The row that predicts the first token of each branch."""
    reads = forest.reads
    firsts: Ragged = reads.rows[reads.row[np.flatnonzero(np.diff(reads.branch, prepend=-1))]]
    return firsts
