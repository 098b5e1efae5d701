"""The explorer as a Space: anybody may ask, in the Space's own frame.

The service behind the page answers this machine alone, or whoever has its token. A Space is public,
and its proxy is the door: requests are handed on as this machine's, and the proxy's page may frame
the answers.
"""

import os
import socket
from typing import Any

from lastword.model.download import fetch
from lastword.model.named import published
from lastword.service.app import create_app
from lastword.service.door import configure
from lastword.service.explorer.page import mount
from lastword.service.server import Server
from lastword.service.settings import Settings
from lastword.tracer import Tracer

MODEL = os.environ.get("LASTWORD_MODEL", "lastword/demo-organism")
PORT = int(os.environ.get("PORT", "7860"))
FRAME = b"frame-ancestors 'self' https://huggingface.co"


class Proxied:
    """An application behind the proxy of a Space.

    Args:
        app: The application.
    """

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Hand a request on as this machine's, and let the Space frame what comes back."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def framed(message: Any) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = _framed(message["headers"])
            await send(message)

        given = dict(scope["headers"])
        named = given.get(b"x-forwarded-host", given.get(b"host", b""))
        ours = {b"host": b"127.0.0.1", b"x-forwarded-host": named}
        kept = {name: value for name, value in given.items() if name != b"origin"} | ours
        await self.app(dict(scope, headers=[*kept.items()]), receive, framed)


def _framed(headers: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """Headers whose policy lets the Space's page frame what they stand before."""
    return [
        (name, value.replace(b"frame-ancestors 'none'", FRAME))
        for name, value in headers
        if name != b"x-frame-options"  # it knows no other page than its own
    ]


def open_tracer(name: str) -> Tracer:
    """The model, fetched where it is one that lastword knows by name and has not got."""
    if published(name) is not None:
        fetch(name)
    return Tracer.from_pretrained(name)


def main() -> None:
    """Serve the page on the Space's port."""
    app = create_app(open_tracer(MODEL), Settings())
    service = app.state.service
    mount(app, {MODEL: service.corrector})
    config = configure(Proxied(app), service.settings, service.metrics)
    # Every address: the settings keep loopback's, for the proxy's requests are this machine's.
    Server(config, service).run(sockets=[socket.create_server(("0.0.0.0", PORT))])


if __name__ == "__main__":
    main()
