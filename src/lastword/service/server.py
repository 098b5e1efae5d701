"""The process: uvicorn around the application, drained before it stops."""

import asyncio
import atexit
import gc
import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import uvicorn
from fastapi import FastAPI

import lastword
from lastword.errors import InputError
from lastword.service.app import Service, create_probes
from lastword.service.door import Door, configure

_LINES_SECONDS = 1.0  # in which a batch tells what it has no answer for
_QUEUE = 2048  # connections that wait to be taken
_SWITCH_SECONDS = 0.0005  # after which a thread that computes lets one that answers go on
_LATECOMERS_SECONDS, _LOOK_SECONDS = 0.5, 0.01  # in which requests of the last to come arrive


class Server(uvicorn.Server):
    """A uvicorn server that turns new requests away and answers the accepted ones first."""

    def __init__(self, config: uvicorn.Config, service: Service) -> None:
        super().__init__(config)
        self._service = service

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, and say where."""
        await super().startup(sockets=sockets)
        for listening in sockets or []:
            listening.listen(_QUEUE)
        if self.started:
            port = self.servers[0].sockets[0].getsockname()[1]
            host = self._service.settings.host
            name = f"[{host}]" if ":" in host else host
            facts = {"version": lastword.__version__, "model": self._service.corrector.name}
            self._service.log.event("started", address=f"http://{name}:{port}", **facts)
            self._service.announce()

    async def on_tick(self, counter: int) -> bool:
        """Say that requests are taken; ten times a second."""
        self._service.beat()
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Drain, then close what is left."""
        settings = self._service.settings
        self._service.log.event("draining", requests=self._service.traffic.inside)
        traffic = self._service.traffic
        await traffic.drain(settings.drain_seconds, settings.deadline_seconds)
        if traffic.inside:  # a long batch: its other lines say so
            self._service.corrector.batcher.turn_away()
            await traffic.drain(0.0, _LINES_SECONDS)
        await self._close(sockets or [])
        await traffic.drain(0.0, _LINES_SECONDS)
        await super().shutdown(sockets=sockets)
        self._service.log.event("stopped", unanswered=self._service.traffic.inside)

    async def _close(self, sockets: Sequence[socket.socket]) -> None:
        """Take no more connections, and hear those who wait to be taken: closing would reset them.

        They are taken and the door closed in one step, so that hardly anybody comes between.
        """
        loop, waiting = asyncio.get_running_loop(), [s for one in sockets for s in _accepted(one)]
        for server in self.servers:
            server.close()
        for one in waiting:
            await loop.connect_accepted_socket(self._door, one)
        latest, doors = loop.time() + _LATECOMERS_SECONDS, self.server_state.connections
        while loop.time() < latest and any(isinstance(d, Door) and d.silent for d in doors):
            await asyncio.sleep(_LOOK_SECONDS)

    def _door(self) -> asyncio.Protocol:
        make: Any = self.config.http_protocol_class
        door: asyncio.Protocol = make(
            config=self.config, server_state=self.server_state, app_state=self.lifespan.state
        )
        return door


def _accepted(listening: socket.socket) -> Iterator[socket.socket]:
    """Whoever waits to be taken."""
    with suppress(BlockingIOError):
        while True:
            yield listening.accept()[0]


def run(app: FastAPI) -> None:
    """Serve until SIGTERM, SIGINT or SIGHUP; every accepted request is answered before it returns.

    Where the model hangs it does not return: the process ends with 0.

    Raises:
        InputError: The address cannot be listened on.
    """
    service: Service = app.state.service
    settings = service.settings
    listening = _listen(settings.host, settings.port)
    config = configure(app, settings, service.metrics)
    # uvicorn raises the signal again once it has stopped: a stop that was asked for is no failure.
    before = {s: signal.signal(s, _nothing) for s in (signal.SIGTERM, signal.SIGINT)}
    server = Server(config, service)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as nohup has it
        before[signal.SIGHUP] = signal.signal(signal.SIGHUP, server.handle_exit)
    spare_the_model()
    sys.setswitchinterval(_SWITCH_SECONDS)
    try:
        with probes(service):
            server.run(sockets=[listening])
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        listening.close()
    if service.corrector.batcher.hangs:
        _leave()


def spare_the_model() -> None:
    """Let Python not look for garbage in what stays: half a million objects, 0.2 s each time.

    A body of many entries makes it look again and again, and every thread waits.
    """
    gc.collect()
    gc.freeze()


@contextmanager
def probes(service: Service) -> Iterator[int | None]:
    """Answer probes on a port and in a thread of their own while the block lasts, where asked to.

    Yields the port: whatever holds up those who answer requests does not hold up these.

    Raises:
        InputError: It cannot be listened on.
    """
    settings = service.settings
    if settings.probe_port is None:
        yield None
        return
    listening = _listen(settings.host, settings.probe_port)
    listening.listen(_QUEUE)  # whoever comes before the thread is there waits for it
    server = uvicorn.Server(configure(create_probes(service), settings, service.metrics))
    thread = threading.Thread(target=server.run, args=([listening],), name="lastword-probes")
    thread.start()
    try:
        yield int(listening.getsockname()[1])
    finally:
        server.should_exit = True
        thread.join()
        listening.close()


def _leave() -> None:
    """End the process at once: Python's own end aborts in a thread that torch has in hand."""
    atexit._run_exitfuncs()  # spans are sent, folders of what was unpacked go
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(0)


def require_address(host: str, port: int) -> None:
    """Refuse an address that is taken, before a model is loaded for it.

    Raises:
        InputError: It cannot be listened on.
    """
    _listen(host, port).close()


def _nothing(*_: Any) -> None:
    """Leave the signal alone."""


def _listen(host: str, port: int) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with ExitStack() as failed:
            listening = failed.enter_context(socket.socket(family, kind, protocol))
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind(address)
            failed.pop_all()
    except OSError as error:
        raise InputError(f"cannot listen on {host}:{port}: {error.strerror or error}") from error
    listening.set_inheritable(True)
    return listening
