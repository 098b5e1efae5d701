"""Requests in progress, their bytes, and the rate at which bodies are read."""

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

from lastword.service.metrics import Metrics
from lastword.service.refusal import Refusal
from lastword.service.settings import LONG

_RATE = 2**22  # bytes per second of all larger bodies together; no model answers more
_LONGEST_SECONDS = 10.0  # maximum wait of a refusal


class Turns:
    """Turns in the order of arrival, which limit how often something happens.

    Args:
        longest: Maximum seconds of waiting. A caller that would wait longer does not wait at all.
    """

    def __init__(self, longest: float = math.inf) -> None:
        self._longest, self._free = longest, 0.0

    async def turn(self, seconds: float) -> None:
        """Wait for a turn that takes this number of seconds."""
        now = time.monotonic()
        begin = max(now, self._free)
        if begin - now < self._longest:
            self._free = begin + seconds
            await asyncio.sleep(begin - now)


class Traffic:
    """The requests in progress; more than the limits allow are refused.

    Attributes:
        draining: True if new requests are refused because the service stops.
        inside: Number of requests whose body was read and whose answer is not complete.
    """

    def __init__(self, metrics: Metrics, most: int) -> None:
        self._most, self._bytes = most, 0
        self.draining = False
        self.inside = 0
        self._open = 0  # requests whose body is being read, and those inside
        self._empty = asyncio.Event()
        self._empty.set()
        metrics.body_bytes.set_function(lambda: self._bytes)
        metrics.in_flight.set_function(lambda: self.inside)
        self._pieces, self.refusals = Turns(), Turns(_LONGEST_SECONDS)

    @contextmanager
    def reading(self) -> Iterator[Callable[[int], Awaitable[None]]]:
        """Yield a function that counts the bytes of one body until the block ends.

        Large bodies leave a quarter of the limit to small ones, and are read at `_RATE`.

        Raises:
            Refusal: All bodies together have too many bytes (raised by the function).
        """
        received = 0

        async def take(size: int) -> None:
            nonlocal received
            received += size
            self._bytes += size
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
            self._bytes -= received
            self._open -= 1
            if self._open == 0:
                self._empty.set()

    @contextmanager
    def passing(self, most: int) -> Iterator[None]:
        """Count one request until the block ends.

        Raises:
            Refusal: There are `most` requests already.
        """
        if self.inside >= most:
            what = f"{most} requests are in hand already; try again later"
            raise Refusal("queue_full", what, retry_after=1)
        self.inside += 1
        try:
            yield
        finally:
            self.inside -= 1

    async def drain(self, grace_seconds: float, patience_seconds: float) -> None:
        """Refuse new requests, and wait for those in progress."""
        self.draining = True
        await asyncio.sleep(grace_seconds)
        try:
            async with asyncio.timeout(patience_seconds):
                await self._empty.wait()
        except TimeoutError:
            pass
