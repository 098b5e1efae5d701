"""Pace: the number of items that are computed before their records are stored."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

PART_SECONDS = 20.0  # aim per part: with an estimate that is a third too low, it takes 30
FIRST_TOKENS = 256  # size of the first part, before the speed is known


@dataclass
class Pace:
    """The speed of a model on this machine.

    Attributes:
        seconds_per_token: The rate of the last batch; None before the first.
    """

    seconds_per_token: float | None = None

    @property
    def measured(self) -> bool:
        """True once the rate has been measured."""
        return self.seconds_per_token is not None

    def items(self, tokens: Sequence[int]) -> int:
        """Return how many of the first items make up one part, by their tokens; at least 1."""
        rate = self.seconds_per_token
        limit = FIRST_TOKENS if rate is None else PART_SECONDS / rate
        return max(1, int(np.searchsorted(np.cumsum(tokens), limit, side="right")))

    @contextmanager
    def learning(self, tokens: int) -> Iterator[None]:
        """Measure the rate of a block that computes `tokens` tokens."""
        start = time.perf_counter()
        yield
        if tokens:
            self.seconds_per_token = (time.perf_counter() - start) / tokens
