"""Token sequences -> one packed prefix forest, in which every distinct prefix is one node.

Sorting puts shared prefixes next to each other. The longest common prefixes of neighbours then give
the trie in depth-first order, in which the descendants of node u are the nodes u < v < ends[u].
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from jaxtyping import Int

Nodes = Int[np.ndarray, " nodes"]
Ragged = Int[np.ndarray, " _length"]  # of a list whose arrays differ in length


@dataclass(frozen=True, slots=True)
class Branch:
    """A prompt with one candidate as token ids.

    Attributes:
        tokens: The ids of the whole text. The last one is predicted, and never fed.
        boundary: The index at which the candidate begins.
    """

    tokens: tuple[int, ...]
    boundary: int

    @property
    def fed(self) -> tuple[int, ...]:
        """The input ids of the model."""
        return self.tokens[:-1]


@dataclass(frozen=True)
class Reads:
    """The positions of the scores: distinct rows, and the tokens that each row predicts.

    Attributes:
        rows: Index of each distinct row in the flattened input [rows].
        row: The index in `rows` of each predicted token; candidates may share a row [targets].
        token: The predicted token ids [targets].
        branch: The branch of each predicted token, ascending [targets].
    """

    rows: Int[np.ndarray, " rows"]
    row: Int[np.ndarray, " targets"]
    token: Int[np.ndarray, " targets"]
    branch: Int[np.ndarray, " targets"]


@dataclass(frozen=True)
class Forest:
    """A packed prefix forest in depth-first order.

    Attributes:
        positions: Depth of each node in its tree, the model's position id [nodes].
        ends: One past the last descendant of each node [nodes].
    """

    tokens: Nodes
    positions: Nodes
    ends: Nodes
    reads: Reads

    def __len__(self) -> int:
        """Return the number of nodes, which are the distinct input tokens."""
        return len(self.tokens)

    def ancestors(self, node: int) -> Nodes:
        """Return proper ancestors of a node, root first."""
        nodes: Nodes = np.flatnonzero(self.ends[:node] > node)
        return nodes


def sees(q: Any, k: Any, ends: Any, positions: Any, window: int | None = None) -> Any:
    """Return True where node q sees node k, which is q itself or an ancestor within the window.

    All are numpy arrays or all are tensors. `q` and `k` are nodes, and broadcast; `ends` and
    `positions` are those of a `Forest`.
    """
    visible = (k <= q) & (q < ends[k])
    return visible if window is None else visible & (positions[q] - positions[k] < window)


def build(branches: Sequence[Branch]) -> Forest:
    """Return the packed forest of all branches, with `reads.branch` in the caller's order."""
    assert all(0 < b.boundary < len(b.tokens) for b in branches)
    fed = [np.asarray(b.fed, dtype=np.int64) for b in branches]
    keys = [_key(ids) for ids in fed]
    order = sorted(range(len(keys)), key=keys.__getitem__)
    shared = [0, *(_common_prefix(fed[a], fed[b]) for a, b in pairwise(order))]
    # Each branch adds the nodes after the prefix that it shares with the one before it.
    fresh = [np.arange(s, len(fed[i])) for i, s in zip(order, shared, strict=True)]
    positions = np.concatenate(fresh)
    tokens = np.concatenate([fed[i][p] for i, p in zip(order, fresh, strict=True)])
    ends = np.full(len(tokens), len(tokens), dtype=np.int64)
    path = np.empty(max(map(len, fed)), dtype=np.int64)  # node at each depth of the current branch
    nodes: list[Nodes] = [path] * len(branches)
    count = length = 0
    for i, common, new in zip(order, shared, fresh, strict=True):
        ends[path[common:length]] = count  # no later node descends from these
        length = len(fed[i])
        path[common:length] = np.arange(count, count + len(new))
        count += len(new)
        nodes[i] = path[branches[i].boundary - 1 : length].copy()
    return Forest(tokens, positions, ends, _reads(branches, nodes))


def lay_out(branches: Sequence[Branch]) -> tuple[Int[np.ndarray, "sequences length"], Reads]:
    """Return the batch of the plain road, distinct sequences padded at the right, and its reads."""
    distinct = {fed: row for row, fed in enumerate(dict.fromkeys(b.fed for b in branches))}
    length = max(map(len, distinct))
    padded = np.zeros((len(distinct), length), dtype=np.int64)
    for fed, row in distinct.items():
        padded[row, : len(fed)] = fed
    places = [
        distinct[b.fed] * length + np.arange(b.boundary - 1, len(b.tokens) - 1) for b in branches
    ]
    return padded, _reads(branches, places)


def plan(items: Sequence[Sequence[Sequence[Branch]]], budget: int) -> list[list[int]]:
    """Return groups of items, as indices: consecutive items in lexicographic order, in a budget.

    Args:
        items: Each item's branches by prompt. The first prompt determines the order. Each prompt
            is assumed to share most with the same prompt of the item before.
        budget: Maximum number of distinct tokens per group; a larger item is a group by itself.
    """
    # Ids as bytes sort quickly, and take four bytes per token.
    firsts = [_sorted_keys(item[0]) for item in items]
    last: dict[int, bytes] = {}  # the last branch of each prompt
    groups: list[list[int]] = []
    load = 0
    for i in sorted(range(len(items)), key=firsts.__getitem__):
        alone = shared = 0  # distinct tokens, and those shared with the item before
        for prompt, branches in enumerate(items[i]):
            for place, key in enumerate(_sorted_keys(branches) if prompt else firsts[i]):
                common = _common_prefix(_ids(last.get(prompt, b"")), ids := _ids(key))
                alone += len(ids) - (common if place else 0)
                shared += 0 if place else common
                last[prompt] = key
        if groups and load + alone - shared <= budget:
            groups[-1].append(i)
            load += alone - shared
        else:
            groups.append([i])
            load = alone
    return groups


def _sorted_keys(branches: Sequence[Branch]) -> list[bytes]:
    return sorted(_key(b.fed) for b in branches)


def _key(ids: Sequence[int] | Ragged) -> bytes:
    """Return ids as big-endian bytes, which sort like the ids, with prefixes first."""
    return np.asarray(ids, dtype=">u4").tobytes()


def _ids(key: bytes) -> Ragged:
    """Return numbers for the ids of a key; only their equality is meaningful."""
    return np.frombuffer(key, dtype=np.int32)


def _common_prefix(a: Ragged, b: Ragged) -> int:
    length = min(len(a), len(b))
    differs = a[:length] != b[:length]
    return int(differs.argmax()) if differs.any() else length


def _reads(branches: Sequence[Branch], places: Sequence[Ragged]) -> Reads:
    counts = [len(p) for p in places]
    rows, row = np.unique(np.concatenate(places), return_inverse=True)
    token = np.concatenate([np.asarray(b.tokens[b.boundary :], dtype=np.int64) for b in branches])
    return Reads(rows, row.astype(np.int64), token, np.repeat(np.arange(len(branches)), counts))
