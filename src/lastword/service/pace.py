"""Pace: how much one source may do in a minute."""

import time
from collections import Counter
from collections.abc import Callable

from lastword.service.refusal import Refusal

_MINUTE = 60.0


class Pace:
    """Counts labels by source, from one minute to the next.

    Args:
        most: Of one source in a minute.
        clock: Seconds that never jump.
    """

    def __init__(self, most: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._most, self._clock = most, clock
        self._minute, self._counts = 0, Counter[str]()

    def take(self, source: str) -> None:
        """Count one label.

        Raises:
            Refusal: The source has had its labels of this minute.
        """
        minute, second = divmod(self._clock(), _MINUTE)
        if minute != self._minute:
            self._minute, self._counts = int(minute), Counter()
        if self._counts[source] >= self._most:
            what = f"{self._most} labels came from this address within a minute; send them slower"
            raise Refusal("too_many_labels", what, retry_after=int(_MINUTE - second) + 1)
        self._counts[source] += 1
