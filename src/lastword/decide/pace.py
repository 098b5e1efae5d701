"""Pace: how many items are computed before their records are stored."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

PART_SECONDS = 20.0  # what a part is meant to take: an estimate that is half too low is 30
FIRST_TOKENS = 256  # of the first piece, before anything is known


@dataclass
class Pace:
    """The speed of a model on this machine.

    Attributes:
        seconds_per_token: Of the last batch; None before the first.
    """

    seconds_per_token: float | None = None

    @property
    def known(self) -> bool:
        """True once anything has been computed."""
        return self.seconds_per_token is not None

    def items(self, tokens: Sequence[int]) -> int:
        """Count the items, from the first on, that are one part by their tokens; at least 1."""
        rate = self.seconds_per_token
        most = FIRST_TOKENS if rate is None else PART_SECONDS / rate
        return max(1, int(np.searchsorted(np.cumsum(tokens), most, side="right")))

    @contextmanager
    def learning(self, tokens: int) -> Iterator[None]:
        """Time a block that computes so many tokens."""
        start = time.perf_counter()
        yield
        if tokens:
            self.seconds_per_token = (time.perf_counter() - start) / tokens
