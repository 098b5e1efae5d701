"""Near copies: texts that share most of their word triples, and so are not independent."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Int
from scipy.sparse import csr_array

from lastword.trust.groups import normal

NEAR = 0.5  # minimum Jaccard index: in a text of twelve words, one in the middle may differ


def near_copies(texts: Sequence[str]) -> Int[np.ndarray, " texts"]:
    """Return the group number of each text; near copies, and copies of these, form a group.

    Two texts are near copies if |A & B| / |A | B| of their normalised word triples is at least
    `NEAR`.
    """
    from sklearn.feature_extraction.text import HashingVectorizer

    plain, same = np.unique([normal(text) for text in texts], return_inverse=True)
    vectorizer = HashingVectorizer(
        ngram_range=(3, 3),
        token_pattern=r"\S+",
        lowercase=False,
        binary=True,
        norm=None,
        alternate_sign=False,
        dtype=np.int32,
    )
    return _grouped(csr_array(vectorizer.transform(plain)))[same]


def _grouped(triples: csr_array) -> Int[np.ndarray, " texts"]:
    """Return for each text the first text of its group.

    Near copies share one of their rarest triples, the first |A| - ceil(NEAR |A|) + 1 by frequency
    (Chaudhuri, Ganti and Kaushik 2006). So a common signature proposes no pairs.
    """
    frequency = np.bincount(triples.indices, minlength=triples.shape[1])
    order = np.empty_like(frequency)
    order[np.argsort(frequency)] = np.arange(len(order))
    rows = csr_array((triples.data, order[triples.indices], triples.indptr), shape=triples.shape)
    rows.sort_indices()
    size, starts = np.diff(rows.indptr), rows.indptr
    ends = starts[:-1] + size - np.ceil(NEAR * size).astype(int) + (size > 0)
    texts = np.repeat(np.arange(len(size)), ends - starts[:-1])
    rarest = np.concatenate([rows.indices[a:b] for a, b in zip(starts, ends, strict=False)])
    by_triple = np.argsort(rarest, kind="stable")
    texts, column = texts[by_triple], rarest[by_triple]
    groups, marked = np.full(len(size), -1), np.zeros(len(order), dtype=bool)
    for first in range(len(size)):
        new = [first] * int(groups[first] < 0)
        groups[new] = first
        while new and (groups < 0).any():
            i = new.pop()
            own = rows.indices[starts[i] : starts[i + 1]]
            left, right = (
                np.searchsorted(column, own[: ends[i] - starts[i]], side)
                for side in ("left", "right")
            )
            parts = [texts[a:b] for a, b in zip(left, right, strict=True)]
            found = np.concatenate([texts[:0], *parts])
            others = np.unique(found[groups[found] < 0])
            marked[own] = True
            shared = [marked[rows.indices[starts[j] : starts[j + 1]]].sum() for j in others]
            marked[own] = False
            near = others[np.array(shared) >= NEAR * (size[i] + size[others] - shared)]
            groups[near] = first
            new += near.tolist()
    return groups
