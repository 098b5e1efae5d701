"""Token sequences -> one packed prefix forest: every distinct prefix is one node, computed once.

Sequences are sorted; the longest common prefix of neighbours then gives the trie in depth-first
order, in which the descendants of node u are exactly the nodes u < v < ends[u].
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Int

from lastword.text.branch import Branch

Nodes = Int[np.ndarray, " nodes"]
Ragged = Int[np.ndarray, " _length"]  # of a list whose arrays differ in length


@dataclass(frozen=True)
class Reads:
    """The places where log-probabilities are read: distinct rows, and the tokens each row predicts.

    Candidates that share a first token share its row and its entry in `row`.

    Attributes:
        rows: Place of each distinct row in the flattened input [rows].
        row: For each predicted token, its index in `rows` [targets].
        token: The predicted token id [targets].
        branch: The branch that the predicted token belongs to, ascending [targets].
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
        """Return the number of nodes: distinct tokens fed."""
        return len(self.tokens)

    def ancestors(self, node: int) -> Nodes:
        """Return proper ancestors of a node, root first."""
        before = np.arange(node)
        result: Nodes = before[self.ends[:node] > node]
        return result

    def mask(
        self, queries: Int[np.ndarray, " q"], keys: Int[np.ndarray, " k"], window: int | None = None
    ) -> Bool[np.ndarray, "q k"]:
        """Return the keys each query sees: itself and its ancestors, within `window` positions."""
        q, k = queries[:, None], keys[None, :]
        mask: Bool[np.ndarray, "q k"] = sees(q, k, self.ends, self.positions, window)
        return mask


def sees(q: Any, k: Any, ends: Any, positions: Any, window: int | None = None) -> Any:
    """Return where nodes q see nodes k: themselves and their ancestors, within `window` positions.

    Args:
        q: Places of nodes that look, numpy arrays or tensors as all the others.
        k: Places of nodes that are looked at; q and k broadcast.
        ends: As in `Forest`.
        positions: As in `Forest`.
        window: Most positions between the two; None for any.
    """
    visible = (k <= q) & (q < ends[k])
    return visible if window is None else visible & (positions[q] - positions[k] < window)


def build(branches: Sequence[Branch]) -> Forest:
    """Return the packed forest of all branches; `reads.branch` keeps the order in which they came.

    Args:
        branches: At least one; each feeds at least one token and predicts at least one.
    """
    assert all(0 < b.boundary < len(b.tokens) for b in branches)
    fed = [np.asarray(b.fed, dtype=np.int64) for b in branches]
    order = lexicographic_order(fed)
    shared = common_prefixes([fed[i] for i in order])
    fresh = [np.arange(s, len(fed[i])) for i, s in zip(order, shared, strict=True)]
    positions = np.concatenate(fresh)
    tokens = np.concatenate([fed[i][p] for i, p in zip(order, fresh, strict=True)])
    ends = np.full(len(tokens), len(tokens), dtype=np.int64)
    path = np.empty(max(map(len, fed)), dtype=np.int64)  # node at each depth of the branch in hand
    nodes: list[Nodes] = [path] * len(branches)
    count = length = 0
    for i, common, new in zip(order, shared, fresh, strict=True):
        ends[path[common:length]] = count
        length = len(fed[i])
        path[common:length] = np.arange(count, count + len(new))
        count += len(new)
        nodes[i] = path[branches[i].boundary - 1 : length].copy()
    return Forest(tokens, positions, ends, _reads(branches, nodes))


def lay_out(branches: Sequence[Branch]) -> tuple[Int[np.ndarray, "sequences length"], Reads]:
    """Lay out the plain road: whole sequences, each once, right-padded; reads in the flat batch."""
    distinct = {b.fed: 0 for b in branches}
    for row, fed in enumerate(distinct):
        distinct[fed] = row
    length = max(map(len, distinct))
    padded = np.zeros((len(distinct), length), dtype=np.int64)
    for fed, row in distinct.items():
        padded[row, : len(fed)] = fed
    places = [
        distinct[b.fed] * length + np.arange(b.boundary - 1, len(b.tokens) - 1) for b in branches
    ]
    return padded, _reads(branches, places)


def plan(items: Sequence[Sequence[Sequence[Branch]]], budget: int) -> list[list[int]]:
    """Return groups of items, as places: runs of their lexicographic order within a budget.

    Takes four bytes per token of the first prompts beside the items.

    Args:
        items: Each item's branches by prompt; the first prompt's decide the order, and every
            prompt's branches are taken to lie beside the same prompt's of the item before.
        budget: Most distinct tokens of a group; an item that has more stands alone.
    """
    firsts = [_sorted_keys(item[0]) for item in items]
    last: dict[int, bytes] = {}  # of each prompt, the branch before
    groups: list[list[int]] = []
    load = 0
    for i in sorted(range(len(items)), key=firsts.__getitem__):
        alone = shared = 0  # distinct tokens; those shared with the item before
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
    """Return ids as big-endian bytes, which compare as numbers do, prefixes first."""
    return np.asarray(ids, dtype=">u4").tobytes()


def _ids(key: bytes) -> Ragged:
    """Return a key's numbers, in any byte order: they are only tested for equality."""
    return np.frombuffer(key, dtype=np.int32)


def lexicographic_order(sequences: Sequence[Ragged]) -> list[int]:
    """Return the places of the sequences in lexicographic order of their ids, prefixes first."""
    keys = [_key(s) for s in sequences]
    return sorted(range(len(keys)), key=keys.__getitem__)


def common_prefixes(ordered: Sequence[Ragged]) -> Int[np.ndarray, " sequences"]:
    """Return the length of the prefix that each shares with the one before it; 0 for the first."""
    shared = np.zeros(len(ordered), dtype=np.int64)
    for i in range(1, len(ordered)):
        shared[i] = _common_prefix(ordered[i - 1], ordered[i])
    return shared


def _common_prefix(a: Ragged, b: Ragged) -> int:
    length = min(len(a), len(b))
    differs = a[:length] != b[:length]
    return int(differs.argmax()) if differs.any() else length


def _reads(branches: Sequence[Branch], places: Sequence[Ragged]) -> Reads:
    counts = [len(p) for p in places]
    rows, row = np.unique(np.concatenate(places), return_inverse=True)
    token = np.concatenate([np.asarray(b.tokens[b.boundary :], dtype=np.int64) for b in branches])
    return Reads(rows, row.astype(np.int64), token, np.repeat(np.arange(len(branches)), counts))
