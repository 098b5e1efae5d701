"""The process: uvicorn around the application, drained before it stops."""

import asyncio
import atexit
import os
import signal
import socket
import sys
from contextlib import ExitStack
from typing import Any

import uvicorn
from fastapi import FastAPI

import lastword
from lastword.errors import InputError
from lastword.service.app import Service
from lastword.service.door import configure

_LINES_SECONDS = 1.0  # in which a batch tells what it has no answer for
_LATECOMERS_SECONDS = 0.1  # in which those are taken, and their requests arrive


class Server(uvicorn.Server):
    """A uvicorn server that turns new requests away and answers the accepted ones first."""

    def __init__(self, config: uvicorn.Config, service: Service) -> None:
        super().__init__(config)
        self._service = service

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, and say where."""
        await super().startup(sockets=sockets)
        if self.started:
            port = self.servers[0].sockets[0].getsockname()[1]
            host = self._service.settings.host
            name = f"[{host}]" if ":" in host else host
            facts = {"version": lastword.__version__, "model": self._service.corrector.name}
            self._service.log.event("started", address=f"http://{name}:{port}", **facts)
            self._service.announce()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Drain, then close what is left."""
        settings = self._service.settings
        self._service.log.event("draining", requests=self._service.traffic.inside)
        traffic = self._service.traffic
        await traffic.drain(settings.drain_seconds, settings.deadline_seconds)
        if traffic.inside:  # a long batch: its other lines say so
            self._service.corrector.batcher.turn_away()
            await traffic.drain(0.0, _LINES_SECONDS)
        # Closing resets whoever waits to be taken: let nobody queue, take those who do, close.
        for listening in sockets or []:
            listening.listen(0)
        await asyncio.sleep(_LATECOMERS_SECONDS)
        for server in self.servers:
            server.close()
        await traffic.drain(_LATECOMERS_SECONDS, _LINES_SECONDS)
        await super().shutdown(sockets=sockets)
        self._service.log.event("stopped", unanswered=self._service.traffic.inside)


def run(app: FastAPI) -> None:
    """Serve until SIGTERM, SIGINT or SIGHUP; every accepted request is answered before it returns.

    Where the model hangs it does not return: the process ends with 0.

    Raises:
        InputError: The address cannot be listened on.
    """
    service: Service = app.state.service
    listening = _listen(service.settings.host, service.settings.port)
    config = configure(app, service.settings, service.metrics)
    # uvicorn raises the signal again once it has stopped: a stop that was asked for is no failure.
    before = {s: signal.signal(s, _nothing) for s in (signal.SIGTERM, signal.SIGINT)}
    server = Server(config, service)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as nohup has it
        before[signal.SIGHUP] = signal.signal(signal.SIGHUP, server.handle_exit)
    try:
        server.run(sockets=[listening])
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        listening.close()
    if service.corrector.batcher.hangs:
        _leave()


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
