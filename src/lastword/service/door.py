"""The door: connections before there is a request, as uvicorn's own protocol takes them.

uvicorn bounds the size of headers that have not all arrived, and how long an idle connection stays.
It has no limit on how long headers take, on how many connections are open (`limit_concurrency`
would refuse everybody once too many are) or on how long a client reads nothing: those are here.
A new connection takes the place of one that asks nothing; where all have a request in hand, some
more are let in for probes alone, so that no crowd makes the service look dead.
"""

import asyncio
import sys
import time
from typing import Any

import h11
from uvicorn import Config
from uvicorn.protocols.http.h11_impl import H11Protocol

from lastword.service.metrics import Metrics
from lastword.service.refusal import Refusal
from lastword.service.schema import problem, to_bytes
from lastword.service.settings import Settings

_RESERVE = 16  # connections beyond the others, for probes


class Door(H11Protocol):
    """One connection.

    Args:
        settings: Limits.
        metrics: What is counted.
        wiring: What uvicorn hands over.
    """

    def __init__(self, settings: Settings, metrics: Metrics, **wiring: Any) -> None:
        super().__init__(**wiring)
        self._settings, self._metrics = settings, metrics
        self._waiting: asyncio.TimerHandle | None = None
        self._stalled: asyncio.TimerHandle | None = None
        self._since = time.monotonic()

    @property
    def idle(self) -> bool:
        """Whether no request is in hand."""
        return self.cycle is None or self.cycle.response_complete

    def connection_made(self, transport: Any) -> None:
        """Take the connection, in place of an idle one or on the reserve, or say why not."""
        super().connection_made(transport)
        limit = self._settings.connections
        if len(self.connections) > limit:
            self._find_place(limit)
        self._watch()

    def _find_place(self, limit: int) -> None:
        doors = [door for door in self.connections if isinstance(door, Door) and door is not self]
        others = [door for door in doors if not door.transport.is_closing()]
        idle = [door for door in others if door.idle]
        if reserve := len(others) - len(idle) >= limit:
            self.app_state = {**self.app_state, "reserve": True}
        if len(others) >= limit + reserve * _RESERVE:
            # Who has never asked anything goes first, of equals the oldest.
            door = min(idle, key=lambda d: (d.cycle is not None, d._since)) if idle else self
            door.give_way()

    def give_way(self) -> None:
        """Close, and say why to a client that has not been answered yet."""
        if self.cycle is not None:  # nothing is expected: it would be the answer to what comes next
            self.transport.close()
            return
        self._refuse(crowded(self._settings))

    def connection_lost(self, exc: Exception | None) -> None:
        """Let the timers go."""
        super().connection_lost(exc)
        for timer in (self._waiting, self._stalled):
            if timer is not None:
                timer.cancel()

    def data_received(self, data: bytes) -> None:
        """Read on; what comes between requests has its time."""
        super().data_received(data)
        self._since = time.monotonic()
        self._watch()

    def pause_writing(self) -> None:
        """The client does not read: it has until the deadline."""
        super().pause_writing()
        seconds = self._settings.deadline_seconds
        self._stalled = self.loop.call_later(seconds, self.transport.abort)

    def resume_writing(self) -> None:
        """It reads again."""
        super().resume_writing()
        if self._stalled is not None:
            self._stalled.cancel()

    def send_400_response(self, msg: str) -> None:
        """Refuse what is no request, or one whose headers are too long, as everything else is."""
        hint = getattr(sys.exception(), "error_status_hint", 400)
        if hint == 431:
            what = f"the headers have more than {self._settings.header_bytes} bytes"
            self._refuse(Refusal("headers_too_large", what))
        else:
            self._refuse(Refusal("invalid_request", "this is no HTTP/1.1 request"))

    def _watch(self) -> None:
        """Run the clock where no request is in hand; what trickles in does not set it back."""
        if not self.idle and self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None
        elif self.idle and self._waiting is None:
            self._waiting = self.loop.call_later(self._settings.header_seconds, self._late)

    def _late(self) -> None:
        what = f"no request arrived within {self._settings.header_seconds:g} s"
        self._refuse(Refusal("header_timeout", what))

    def _refuse(self, refusal: Refusal) -> None:
        """Say so, where nothing has been said yet, and close."""
        if self.transport.is_closing():
            return
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            self._metrics.refusals.labels(refusal.code).inc()
            headers = [*refusal.headers, ("connection", "close")]
            body = to_bytes(problem(refusal))
            headers.append(("content-length", str(len(body))))
            for event in (
                h11.Response(status_code=refusal.status, headers=headers),
                h11.Data(data=body),
                h11.EndOfMessage(),
            ):
                self.transport.write(self.conn.send(event) or b"")
        self.transport.close()


def crowded(settings: Settings) -> Refusal:
    """What a connection is told for which there is no place."""
    what = f"{settings.connections} connections are open; try again later"
    return Refusal("too_many_connections", what, retry_after=1)


def configure(app: Any, settings: Settings, metrics: Metrics) -> Config:
    """uvicorn as this service runs it, in a process or in a test."""

    def door(**wiring: Any) -> Door:
        return Door(settings, metrics, **wiring)

    return Config(
        app,
        http=door,  # type: ignore[arg-type]
        ws="none",
        h11_max_incomplete_event_size=settings.header_bytes,
        log_config=None,
        log_level="critical",  # the service's own log has it, as JSON
        access_log=False,
        server_header=False,
        lifespan="on",
        timeout_keep_alive=60,
        timeout_graceful_shutdown=1,  # the service has waited for what it accepted
    )
