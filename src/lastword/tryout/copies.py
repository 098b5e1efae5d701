"""Near copies: texts that share most of their word triples, and so are no independent draws."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Int

from lastword.trust.groups import normal

NEAR = 0.5  # the least Jaccard index: of twelve words one in the middle may be another
_TOGETHER = 256  # texts that are held against all others at a time


def near_copies(texts: Sequence[str]) -> Int[np.ndarray, " texts"]:
    """Return the number of each text's group: near copies are in one, and copies of them.

    Two texts are near copies where |A & B| / |A | B| of their word triples, in normal form, is at
    least `NEAR` (Broder 1997).
    """
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components
    from sklearn.feature_extraction.text import HashingVectorizer

    plain = [normal(text) for text in texts]
    triples = HashingVectorizer(
        ngram_range=(3, 3),
        token_pattern=r"\S+",
        lowercase=False,
        binary=True,
        norm=None,
        alternate_sign=False,
    ).transform(plain)
    size = np.asarray(triples.sum(axis=1)).ravel()
    _, first, same = np.unique(plain, return_index=True, return_inverse=True)
    pairs = [np.stack([np.arange(len(plain)), first[same]])]
    for start in range(0, len(plain), _TOGETHER):
        shared = (triples[start : start + _TOGETHER] @ triples.T).tocoo()
        i, j = shared.row + start, shared.col
        near = shared.data >= NEAR * (size[i] + size[j] - shared.data)
        pairs.append(np.stack([i[near], j[near]]))
    i, j = np.concatenate(pairs, axis=1)
    graph = coo_array((np.ones(len(i), dtype=bool), (i, j)), shape=(len(plain),) * 2)
    groups: np.ndarray = connected_components(graph, directed=False)[1]
    return groups
