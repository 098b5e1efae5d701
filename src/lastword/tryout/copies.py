"""Near copies: texts that share most of their word triples, and so are not independent.

MinHash with banding (Broder 1997; Leskovec, Rajaraman and Ullman, ch. 3) proposes pairs, and the
exact Jaccard index confirms each. Time and memory grow with the number of texts, not of pairs.
"""

from collections.abc import Iterator, Sequence

import numpy as np
from jaxtyping import Int, UInt32
from scipy.sparse import coo_array, csr_array
from scipy.sparse.csgraph import connected_components

from lastword.trust.groups import normal

NEAR = 0.5  # minimum Jaccard index: in a text of twelve words, one in the middle may differ

# A pair with Jaccard index s has equal minima in a band of r with probability s^r. With 64 bands
# of 3, a pair at 0.5 is proposed with probability 1 - (1 - 1/8)^64 = 0.9998, unless its bucket
# has more texts than are compared.
_BANDS, _ROWS = 64, 3
_NEIGHBOURS = 4  # compared per text: a bucket may be huge, such as all mails with one signature
_CHECKED = 2**14  # number of pairs whose triples are compared at a time

Numbers = Int[np.ndarray, " texts"]


def near_copies(texts: Sequence[str]) -> Numbers:
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
    triples = csr_array(vectorizer.transform(plain))
    full = np.flatnonzero(np.diff(triples.indptr))  # a text of at most two words has no triple
    groups = np.arange(len(plain))
    groups[full] = full[_grouped(triples[full])] if len(full) else full
    return np.unique(groups, return_inverse=True)[1][same]


def _grouped(triples: csr_array) -> Numbers:
    """Return for each text the index of one member of its group."""
    count = triples.shape[0]
    size, groups = np.diff(triples.indptr), np.arange(count)
    for minima in _bands(triples):
        i, j = _candidates(minima)
        # Pairs that an earlier band has joined need no exact comparison.
        apart = groups[i] != groups[j]
        i, j = i[apart], j[apart]
        near = np.concatenate([np.zeros(0, dtype=bool), *_near(triples, size, i, j)])
        if near.any():
            i, j = groups[i[near]], groups[j[near]]
            graph = coo_array((np.ones(len(i), dtype=bool), (i, j)), shape=(count, count))
            _, first, joined = np.unique(
                connected_components(graph, directed=False)[1],
                return_index=True,
                return_inverse=True,
            )
            groups = first[joined][groups]
    return groups


def _bands(triples: csr_array) -> Iterator[UInt32[np.ndarray, "rows texts"]]:
    """Yield each band: the minima of some hashes over each text's triples."""
    draw = np.random.default_rng(0)
    ids, starts = triples.indices.astype(np.uint64), triples.indptr[:-1]
    for _ in range(_BANDS):
        minima = np.empty((_ROWS, len(starts)), dtype=np.uint32)
        for row in minima:
            # Odd factors make each multiplication a permutation; the product overflows on purpose.
            factor, shift, again = draw.integers(2**63, size=3, dtype=np.uint64) | np.uint64(1)
            hashed = ids * factor + shift
            hashed ^= hashed >> np.uint64(29)
            hashed *= again
            row[:] = np.minimum.reduceat((hashed >> np.uint64(32)).astype(np.uint32), starts)
        yield minima


def _candidates(minima: UInt32[np.ndarray, "rows texts"]) -> tuple[np.ndarray, np.ndarray]:
    """Return pairs from each bucket: every text with the first text and with its neighbours."""
    order = np.lexsort(minima)
    keys = minima[:, order]
    begins = np.concatenate([[True], (keys[:, 1:] != keys[:, :-1]).any(axis=0)])
    first = np.flatnonzero(begins)[np.cumsum(begins) - 1]
    place = np.arange(len(order))
    others = [np.maximum(place - step, first) for step in range(1, _NEIGHBOURS + 1)]
    pairs = np.stack([np.tile(place, len(others) + 1), np.concatenate([first, *others])])
    i, j = np.unique(pairs[:, pairs[0] != pairs[1]], axis=1)
    return order[i], order[j]


def _near(triples: csr_array, size: Numbers, i: np.ndarray, j: np.ndarray) -> Iterator[np.ndarray]:
    """Yield, for one part of the pairs after another, True for each near pair."""
    for start in range(0, len(i), _CHECKED):
        a, b = i[start : start + _CHECKED], j[start : start + _CHECKED]
        shared = np.asarray(triples[a].multiply(triples[b]).sum(axis=1)).ravel()
        yield shared >= NEAR * (size[a] + size[b] - shared)
