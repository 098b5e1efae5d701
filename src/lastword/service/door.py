"""The door: connections before there is a request, as uvicorn's own protocol takes them.

uvicorn bounds the size of headers that have not all arrived, and how long an idle connection stays.
It has no limit on how long headers take, on how many connections are open (`limit_concurrency`
would refuse everybody once too many are) or on how long a client reads nothing: those are here.
A new connection takes the place of one that asks nothing; where all have a request in hand, some
more are let in for probes alone, so that no crowd makes the service look dead.
"""

import asyncio
import sys
from typing import Any

import h11
from uvicorn import Config
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.h11_impl import H11Protocol

from lastword.service.metrics import Metrics
from lastword.service.refusal import Refusal
from lastword.service.schema import problem, to_bytes
from lastword.service.settings import Settings

_RESERVE = 16  # connections beyond the others, for probes
_BURST = 16  # connections taken before those who have one go on


class Places:
    """Open connections, each in constant time: who has a request in hand, and who gives way first.

    Args:
        most: Of them, but for the reserve.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._silent: dict[Door, None] = {}  # have asked nothing yet; the oldest first
        self._idle: dict[Door, None] = {}  # have had their answers
        self._busy: dict[Door, None] = {}

    def put(self, door: "Door") -> None:
        """Note that a connection has been heard of, or has its answer."""
        self.leave(door)
        asked = self._idle if door.idle else self._busy
        (self._silent if door.silent else asked)[door] = None

    def leave(self, door: "Door") -> None:
        """Forget a connection."""
        for doors in (self._silent, self._idle, self._busy):
            doors.pop(door, None)

    def admit(self, door: "Door") -> bool:
        """Take a new connection, in another's place where there is none; whether on the reserve."""
        reserve = len(self._busy) >= self._most
        count = len(self._silent) + len(self._idle) + len(self._busy)
        if count >= self._most + reserve * _RESERVE:
            # Who has never asked anything goes first, of equals the oldest.
            next(iter(self._silent), next(iter(self._idle), door)).give_way()
        if not door.transport.is_closing():
            self.put(door)
        return reserve


class Door(H11Protocol):
    """One connection.

    Args:
        settings: Limits.
        metrics: What is counted.
        places: Who else has one.
        wiring: What uvicorn hands over.
    """

    def __init__(self, settings: Settings, metrics: Metrics, places: Places, **wiring: Any) -> None:
        super().__init__(**wiring)
        self._settings, self._metrics, self._places = settings, metrics, places
        self._waiting: asyncio.TimerHandle | None = None
        self._stalled: asyncio.TimerHandle | None = None

    @property
    def idle(self) -> bool:
        """Whether no request is in hand."""
        return self.cycle is None or self.cycle.response_complete

    @property
    def silent(self) -> bool:
        """Whether nothing has been asked yet."""
        return self.cycle is None

    def connection_made(self, transport: Any) -> None:
        """Take the connection, in place of an idle one or on the reserve, or say why not."""
        # As uvicorn has it, but for the addresses, of which it asks the system: each such call lets
        # a thread that computes go first.
        self.connections.add(self)
        self.transport, self.flow, self.scheme = transport, FlowControl(transport), "http"
        self.server, self.client = (_address(transport, end) for end in ("sockname", "peername"))
        if self._places.admit(self):
            self.app_state = {**self.app_state, "reserve": True}
        self._watch()

    def give_way(self) -> None:
        """Close, and say why to a client that has not been answered yet."""
        self._places.leave(self)
        if self.cycle is not None:  # nothing is expected: it would be the answer to what comes next
            self.transport.close()
            return
        self._refuse(crowded(self._settings))

    def connection_lost(self, exc: Exception | None) -> None:
        """Let the timers go."""
        super().connection_lost(exc)
        self._places.leave(self)
        for timer in (self._waiting, self._stalled):
            if timer is not None:
                timer.cancel()

    def data_received(self, data: bytes) -> None:
        """Read on; what comes between requests has its time."""
        super().data_received(data)
        self._settle()
        self._watch()

    def on_response_complete(self) -> None:
        """Be idle, or go on with what was asked meanwhile."""
        super().on_response_complete()
        self._settle()

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

    def _settle(self) -> None:
        if not self.transport.is_closing():
            self._places.put(self)

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
        self._places.leave(self)
        self.transport.close()


def _address(transport: Any, end: str) -> tuple[str, int] | None:
    """Host and port of an end of a connection, as the loop has taken them down."""
    address = transport.get_extra_info(end)
    return (str(address[0]), int(address[1])) if isinstance(address, tuple) else None


def crowded(settings: Settings) -> Refusal:
    """What a connection is told for which there is no place."""
    what = f"{settings.connections} connections are open; try again later"
    return Refusal("too_many_connections", what, retry_after=1)


def configure(app: Any, settings: Settings, metrics: Metrics) -> Config:
    """uvicorn as this service runs it, in a process or in a test."""
    places = Places(settings.connections)

    def door(**wiring: Any) -> Door:
        return Door(settings, metrics, places, **wiring)

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
        backlog=_BURST,
        timeout_keep_alive=60,
        timeout_graceful_shutdown=1,  # the service has waited for what it accepted
    )
