"""The explorer as a Space: anybody may ask, in the Space's own frame.

The service behind the page answers whoever has its token. A Space is public, and its proxy is the
door: requests are handed on with the token, and the proxy's page may frame the answers.
"""

import asyncio
import os
import secrets
from typing import Any

from lastword.decide.decider import Decider
from lastword.model.named import fetch, published
from lastword.service.app import create_app
from lastword.service.server import Server
from lastword.service.settings import Settings

MODEL = os.environ.get("LASTWORD_MODEL", "lastword/demo-organism")
PORT = int(os.environ.get("PORT", "7860"))
FRAME = b"frame-ancestors 'self' https://huggingface.co"


class Proxied:
    """An application behind the proxy of a Space.

    Args:
        app: The application.
        token: Its token.
    """

    def __init__(self, app: Any, token: str) -> None:
        self.app = app
        self._token = (b"authorization", f"Bearer {token}".encode())

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Hand a request on with the token, and let the Space frame what comes back."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def framed(message: Any) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = _framed(message["headers"])
            await send(message)

        ours = (b"origin", b"authorization")
        headers = [(name, value) for name, value in scope["headers"] if name not in ours]
        await self.app(dict(scope, headers=[*headers, self._token]), receive, framed)


def _framed(headers: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """Headers whose policy lets the Space's page frame what they stand before."""
    return [
        (name, value.replace(b"frame-ancestors 'none'", FRAME))
        for name, value in headers
        if name != b"x-frame-options"  # it knows no other page than its own
    ]


def open_decider(name: str) -> Decider:
    """Return a decider over the model, downloaded if lastword knows it by name."""
    if published(name) is not None:
        fetch(name)
    return Decider.from_pretrained(name)


def main() -> None:
    """Serve the page on the Space's port."""
    token = secrets.token_hex()
    settings = Settings(host="0.0.0.0", port=PORT, token=token, explorer=True)
    app = create_app(open_decider(MODEL), settings)
    asyncio.run(Server(Proxied(app, token), app.state.service).run())


if __name__ == "__main__":
    main()
