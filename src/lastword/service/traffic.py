"""Traffic: requests in progress, their bytes, and the pace at which they are taken."""

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

from lastword.service.corrector import LONG
from lastword.service.metrics import Metrics
from lastword.service.refusal import Refusal

_RATE = 2**22  # bytes a second that are read of larger bodies, all together: no model answers more
_LONGEST_SECONDS = 10.0  # that a refusal waits


class Turns:
    """Turns, first come first served, so that what many send at once takes only its share.

    Args:
        longest: Seconds that are waited for a turn; who would wait longer goes on at once.
    """

    def __init__(self, longest: float = math.inf) -> None:
        self._longest, self._free = longest, 0.0

    async def turn(self, seconds: float) -> None:
        """Wait for a turn, and let the next one come so many seconds after it."""
        now = time.monotonic()
        begin = max(now, self._free)
        if begin - now < self._longest:
            self._free = begin + seconds
            await asyncio.sleep(begin - now)


class Traffic:
    """The requests in progress, and the gate that refuses more.

    Attributes:
        draining: New requests are turned away.
        inside: Requests in hand.
    """

    def __init__(self, metrics: Metrics, most: int) -> None:
        self._metrics, self._most, self._bytes = metrics, most, 0
        self.draining = False
        self.inside = 0
        self._open = 0  # requests whose bodies are read, or that are inside
        self._empty = asyncio.Event()
        self._empty.set()
        self._pieces, self.refusals = Turns(), Turns(_LONGEST_SECONDS)

    @contextmanager
    def reading(self) -> Iterator[Callable[[int], Awaitable[None]]]:
        """Give what takes the bytes of one body until the block ends; `drain` waits for that.

        Large bodies leave a quarter of all bytes to small ones, and their pieces take turns.
        """
        received = 0

        async def take(size: int) -> None:
            nonlocal received
            received += size
            self._set_bytes(self._bytes + size)
            if self._bytes > (self._most if received <= LONG else self._most * 3 // 4):
                what = f"bodies of {self._most} bytes are in hand already"
                raise Refusal("queue_full", f"{what}; try again later", retry_after=1)
            if received > LONG:
                await self._pieces.turn(size / _RATE)

        self._open += 1
        self._empty.clear()
        try:
            yield take
        finally:
            self._set_bytes(self._bytes - received)
            self._open -= 1
            if self._open == 0:
                self._empty.set()

    def _set_bytes(self, count: int) -> None:
        self._bytes = count
        self._metrics.body_bytes.set(count)

    @contextmanager
    def passing(self, most: int) -> Iterator[None]:
        """Hold a place for one request.

        Raises:
            Refusal: None is free.
        """
        if self.inside >= most:
            what = f"{most} requests are in hand already; try again later"
            raise Refusal("queue_full", what, retry_after=1)
        self.inside += 1
        self._metrics.in_flight.set(self.inside)
        try:
            yield
        finally:
            self.inside -= 1
            self._metrics.in_flight.set(self.inside)

    async def drain(self, grace_seconds: float, patience_seconds: float) -> None:
        """Turn new requests away, and wait for those inside."""
        self.draining = True
        await asyncio.sleep(grace_seconds)
        try:
            async with asyncio.timeout(patience_seconds):
                await self._empty.wait()
        except TimeoutError:
            pass
