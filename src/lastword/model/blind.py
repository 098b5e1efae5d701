"""Scores of candidates after prompts without their input: read once, kept within a budget."""

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from threading import Lock

import numpy as np

from lastword.text.branch import Branch


class BlindScores:
    """Depth L of candidates after prompts without their input, kept by the digest of their tokens.

    A label set's frame is read once, and so is an option of a large pool. What was least used goes
    first.
    """

    def __init__(self, budget: int) -> None:
        self._most = budget // _ENTRY
        self._scores: OrderedDict[bytes, float] = OrderedDict()
        self._lock = Lock()

    def __len__(self) -> int:
        """Count what is kept."""
        return len(self._scores)

    def find(self, branches: Sequence[Branch]) -> list[float | None]:
        """Return the score of each branch; None where it is not kept."""
        digests = [*map(_digest, branches)]
        with self._lock:
            for digest in digests:
                if digest in self._scores:
                    self._scores.move_to_end(digest)
            return [*map(self._scores.get, digests)]

    def keep(self, scores: Iterable[tuple[Branch, float]]) -> None:
        """Keep branches' scores, and let go what is over the budget."""
        numbers = [(_digest(branch), score) for branch, score in scores]
        with self._lock:
            self._scores.update(numbers)
            while len(self._scores) > self._most:
                self._scores.popitem(last=False)


_ENTRY = 256  # bytes of one entry: its digest, its number, and their places in the table


def _digest(branch: Branch) -> bytes:
    ids = np.array([branch.boundary, *branch.tokens], dtype=np.int64)
    return blake2b(ids.tobytes(), digest_size=16).digest()
