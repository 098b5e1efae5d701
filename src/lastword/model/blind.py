"""Cache of candidates' scores after prompts without their input."""

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from threading import Lock

import numpy as np

from lastword.text.forest import Branch

_ENTRY_BYTES = 256  # of an entry: digest, number, and their places in the table


class BlindScores:
    """Scores at depth L of candidates after blind prompts, by the digest of their tokens.

    A template's blind prompt and the options of a large pool come back with every text. The least
    recently used scores are removed first.
    """

    def __init__(self, budget: int) -> None:
        self._limit = budget // _ENTRY_BYTES
        self._scores: OrderedDict[bytes, float] = OrderedDict()
        self._lock = Lock()

    def find(self, branches: Sequence[Branch]) -> list[float | None]:
        """Return the score of each branch; None if it is not stored."""
        digests = [*map(_digest, branches)]
        with self._lock:
            for digest in digests:
                if digest in self._scores:
                    self._scores.move_to_end(digest)
            return [*map(self._scores.get, digests)]

    def keep(self, scores: Iterable[tuple[Branch, float]]) -> None:
        """Store scores of branches, and remove old ones beyond the budget."""
        entries = [(_digest(branch), score) for branch, score in scores]
        with self._lock:
            self._scores.update(entries)
            while len(self._scores) > self._limit:
                self._scores.popitem(last=False)


def _digest(branch: Branch) -> bytes:
    ids = np.array([branch.boundary, *branch.tokens], dtype=np.int64)
    return blake2b(ids.tobytes(), digest_size=16).digest()
