"""Groups: items that depend on each other, and so count as one draw.

Items form a group if they have the same value of `group`, are the two of a pair (`pair/017/a`), or
have the same prompt and candidates after normalisation.
"""

import hashlib
import html
import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Bool, Int
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from lastword.records.metrics import PerItem, Places, pair_name

if TYPE_CHECKING:
    from lastword.records.cells import Cell

Groups = Int[np.ndarray, " items"]

FRACTION, SEED = 0.5, 0  # share of groups for a fit on labels, and the seed of their draw

_SHARED = ("id", "prompt", "candidates", "shared")
_TAG = re.compile(r"</?[a-z][^<>]*>", re.IGNORECASE)


def normal(text: str) -> str:
    """Return the normal form of a text, which is equal for copies.

    HTML entities are decoded, tags and format characters (such as zero-width ones) are removed,
    letters are NFKC and casefolded, white space is one space, and punctuation at the end of words
    is removed.
    """
    text = _TAG.sub(" ", html.unescape(text))
    if not text.isascii():
        text = unicodedata.normalize("NFKC", _without_formats(text))
    words = []
    for word in text.casefold().split():
        end = len(word)
        while end and unicodedata.category(word[end - 1]).startswith("P"):
            end -= 1
        words += [word[:end]] if end else []
    return " ".join(words)


def _without_formats(text: str) -> str:
    """Return a text without format characters, and with at most 30 marks in a row.

    NFKC of a long run of marks takes quadratic time.
    """
    kept, run = list[str](), 0
    for c in text:
        run = run + 1 if unicodedata.combining(c) else 0
        if run <= 30 and unicodedata.category(c) != "Cf":
            kept.append(c)
    return "".join(kept)


def marks(name: Any, prompt: str, candidates: Iterable[str], group: Any) -> Iterator[str]:
    """Yield the marks of an item; items that share a mark are in one group."""
    text = "\x00".join([normal(prompt), *sorted(map(normal, candidates))])
    yield f"text {hashlib.sha256(text.encode(errors='replace')).hexdigest()}"
    if isinstance(group, str):
        yield f"group {group}"
    if isinstance(name, str) and (pair := pair_name(name)) is not None:
        yield f"pair {pair}"


def numbers(items: Sequence[Iterable[str]]) -> Int[np.ndarray, " items"]:
    """Return the number of each item's group, from 0; items that share a mark are in one."""
    keys: dict[str, int] = {}
    edges = [
        (i, keys.setdefault(key, len(keys))) for i, shared in enumerate(items) for key in shared
    ]
    count = len(items)
    if not edges:
        return np.arange(count)
    # Items and marks are the nodes of a graph, whose connected components are the groups.
    item, key = np.array(edges).T
    shape = (count + len(keys),) * 2
    graph = coo_array((np.ones(len(item), dtype=bool), (item, count + key)), shape=shape)
    _, together = connected_components(graph, directed=False)
    return np.asarray(np.unique(together[:count], return_inverse=True)[1])


def fit_part(
    groups: Int[np.ndarray, " items"], fraction: float, seed: int
) -> Bool[np.ndarray, " items"]:
    """Return True for the items of a fit; the groups of the others test it."""
    names = np.random.default_rng(seed).permutation(np.unique(groups))
    return np.isin(groups, names[: round(fraction * len(names))])


def groups(cell: "Cell") -> Groups:
    """Return the number of the group of each item that counts for MC1, from 0."""
    return numbers(_marks(cell, cell.mc1_places))


def changed_groups(cell: "Cell", gains: PerItem) -> Groups:
    """Return the groups of one cell's items; items without a gain or loss are groups of one.

    These items do not change a group's gain or its sign, so their texts need not be read.
    """
    changed = np.flatnonzero(gains)
    first = np.arange(len(gains))
    together = numbers(_marks(cell, cell.mc1_places[changed]))
    _, starts = np.unique(together, return_index=True)
    first[changed] = changed[starts[together]]
    return np.asarray(np.unique(first, return_inverse=True)[1])


def _marks(cell: "Cell", places: Places) -> list[list[str]]:
    """Return the marks of some items [places]; scores replace texts that are not stored."""
    marked = []
    for items, table in cell.pieces(*_SHARED, items=places):
        columns = (table[name].to_pylist() for name in _SHARED)
        for place, name, prompt, candidates, shared in zip(items.tolist(), *columns, strict=True):
            text = prompt or np.array2string(np.round(cell.base_scores(place), 3))
            marked.append(list(marks(name, text, candidates, shared)))
    return marked
