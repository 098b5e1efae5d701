"""The process: Granian around the application, drained before it stops."""

import asyncio
import atexit
import gc
import os
import socket
import sys
from contextlib import suppress

from fastapi import FastAPI
from granian.constants import HTTPModes, Interfaces
from granian.http import HTTP1Settings
from granian.server.embed import Server as Granian
from starlette.types import ASGIApp

from lastword.errors import InputError
from lastword.files.system import on_end, raise_file_limit
from lastword.service.application import Application
from lastword.version import __version__

_BACKLOG = 2048  # connections that the kernel accepts for the server
_BUFFER_BYTES = 65_536  # of a request's headers
_POLL_SECONDS = 0.01


class Server:
    """An HTTP server at `url` that answers all accepted requests before it ends."""

    url: str | None = None

    def __init__(self, app: ASGIApp, service: Application) -> None:
        self._app, self._service = app, service
        self._stopping = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None

    def stop(self) -> None:
        """Stop the server; any thread may call this."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._stopping.set)

    async def run(self) -> None:
        """Serve until `stop` is called; raise InputError if the address cannot be listened on."""
        settings, log = self._service.settings, self._service.log
        self._loop = asyncio.get_running_loop()
        address, port = free_address(settings.host, settings.port)
        granian = Granian(
            self._app,
            address=address,
            port=port,
            interface=Interfaces.ASGI,
            http=HTTPModes.http1,
            websockets=False,
            log_enabled=False,
            backlog=_BACKLOG,
            backpressure=settings.connections,
            http1_settings=HTTP1Settings(
                header_read_timeout=int(1000 * settings.header_seconds),
                max_buffer_size=_BUFFER_BYTES,
            ),
        )
        serving = asyncio.ensure_future(granian.serve())
        await _listening(address, port, serving)
        name = f"[{settings.host}]" if ":" in settings.host else settings.host
        self.url = f"http://{name}:{port}"
        log.event("started", address=self.url, version=__version__, model=self._service.name)
        self._service.announce(self.url)
        stopped = asyncio.ensure_future(self._stopping.wait())
        await asyncio.wait({stopped, serving}, return_when=asyncio.FIRST_COMPLETED)
        log.event("draining", requests=self._service.traffic.inside)
        await self._service.traffic.drain(settings.drain_seconds, settings.deadline_seconds)
        granian.stop()  # type: ignore[no-untyped-call]
        await serving
        log.event("stopped", unanswered=self._service.traffic.inside)


def run(app: FastAPI) -> None:
    """Serve until SIGTERM, SIGINT or SIGHUP, and answer every accepted request before the end.

    If the model hangs, the function does not return: the process ends with code 0.
    """

    async def serve() -> None:
        server, loop = Server(app, app.state.service), asyncio.get_running_loop()
        on_end(loop, server.stop)
        await server.run()

    raise_file_limit()
    # A collection of half a million loaded objects takes 0.2 s, in which every thread waits.
    gc.collect()
    gc.freeze()
    asyncio.run(serve())
    if not app.state.service.ended:
        _leave()


def _leave() -> None:
    """End the process at once: Python's normal exit would abort in a thread that runs torch."""
    atexit._run_exitfuncs()  # writes the log, and removes temporary folders
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(0)


async def _listening(address: str, port: int, serving: "asyncio.Future[None]") -> None:
    """Wait until the server accepts connections; Granian has no event for this."""
    while not serving.done():
        with suppress(OSError):
            _, writer = await asyncio.open_connection(address, port)
            writer.close()
            return
        await asyncio.sleep(_POLL_SECONDS)
    await serving


def free_address(host: str, port: int) -> tuple[str, int]:
    """Return the IP address and the port to listen on (a free one for 0), or raise InputError."""
    try:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = addresses[0]
        with socket.socket(family, kind, protocol) as trial:
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            trial.bind(address)
            name = trial.getsockname()
            return str(name[0]), int(name[1])
    except OSError as error:
        raise InputError(f"cannot listen on {host}:{port}: {error.strerror or error}") from error
