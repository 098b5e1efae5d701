"""The state of a running application: its settings, log, metrics and requests in progress."""

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager

from lastword.service.log import Log
from lastword.service.metrics import Metrics
from lastword.service.refusal import Refusal
from lastword.service.settings import Settings

_POLL_SECONDS = 0.01


class Traffic:
    """The requests in progress: `inside` are those whose body was read; more are refused."""

    draining, inside = False, 0
    open = 0  # requests whose body is being read, and those inside

    @contextmanager
    def passing(self, most: int) -> Iterator[None]:
        """Count one request until the block ends; refuse it if there are `most` already."""
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
        latest = time.monotonic() + patience_seconds
        while self.open and time.monotonic() < latest:
            await asyncio.sleep(_POLL_SECONDS)


class Application:
    """The state of an application that server and guard need, as `app.state.service`.

    `ended` is False if a thread was still running after `close`.
    """

    ended = True
    name = "lastword"

    def __init__(self, settings: Settings, log: Log | None = None) -> None:
        self.settings = settings
        self.metrics = Metrics()
        self.log = log or Log()
        self.traffic = Traffic()
        self.metrics.in_flight.set_function(lambda: self.traffic.inside)
        self.begin = int(time.time())

    def announce(self, address: str) -> None:
        """Log what is served at this address."""

    def close(self) -> None:
        """Finish waiting work and end the threads."""
