"""Groups: items that are not independent of each other, and so count as one draw.

Items belong together that name one `group`, that are the two of a pair (`pair/017/a`), or that have
the same prompt and candidates in one normal form.
"""

import hashlib
import html
import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from jaxtyping import Bool, Int
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

FRACTION, SEED = 0.5, 0  # the share of groups that makes a fit on labels, and its draw

_TEXT = "text "
_TAG = re.compile(r"</?[a-z][^<>]*>", re.IGNORECASE)


def normal(text: str) -> str:
    """Return a text without what makes no other question of it.

    HTML entities are decoded, tags and format characters (zero-width ones) are out, letters are
    NFKC and casefolded, white space is one space, and punctuation that closes a word is out.
    """
    text = _TAG.sub(" ", html.unescape(text))
    if not text.isascii():
        text = "".join(c for c in text if unicodedata.category(c) != "Cf")
        text = unicodedata.normalize("NFKC", text)
    words = (_opened(word) for word in text.casefold().split())
    return " ".join(word for word in words if word)


def _opened(word: str) -> str:
    end = len(word)
    while end and unicodedata.category(word[end - 1]).startswith("P"):
        end -= 1
    return word[:end]


def marks(
    name: Any, prompt: str, candidates: Iterable[str], group: Any, source: int = 0
) -> Iterator[str]:
    """Yield what an item shares with every other one of its group.

    Args:
        name: Its id, if any.
        prompt: Its prompt.
        candidates: Its candidates, in any order.
        group: What it names as its group, if anything.
        source: Number of the set that its id and group are names in; texts are the same in all.
    """
    text = "\x00".join([normal(prompt), *sorted(map(normal, candidates))])
    yield f"{_TEXT}{hashlib.sha256(text.encode(errors='replace')).hexdigest()}"
    if isinstance(group, str):
        yield f"group {source} {group}"
    if isinstance(name, str) and name.endswith(("/a", "/b")):
        yield f"pair {source} {name[:-2]}"


def copies(mark: str) -> bool:
    """Return True if a mark stands for equal texts, not for a shared name."""
    return mark.startswith(_TEXT)


def numbers(items: Sequence[Iterable[str]]) -> Int[np.ndarray, " items"]:
    """Return the number of each item's group, from 0 on: items that share a mark are in one."""
    keys: dict[str, int] = {}
    edges = [
        (i, keys.setdefault(key, len(keys))) for i, shared in enumerate(items) for key in shared
    ]
    count = len(items)
    if not edges:
        return np.arange(count)
    item, key = np.array(edges).T
    shape = (count + len(keys),) * 2
    graph = coo_array((np.ones(len(item), dtype=bool), (item, count + key)), shape=shape)
    _, together = connected_components(graph, directed=False)
    numbered: np.ndarray = np.unique(together[:count], return_inverse=True)[1]
    return numbered


def fit_part(
    groups: Int[np.ndarray, " items"], fraction: float, seed: int
) -> Bool[np.ndarray, " items"]:
    """Return which items make a fit; the groups of the others judge it."""
    names = np.random.default_rng(seed).permutation(np.unique(groups))
    return np.isin(groups, names[: round(fraction * len(names))])
