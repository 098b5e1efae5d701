"""The guard of the service: every request passes it, the API's and the explorer's alike.

It checks host, origin and token, refuses what is no route, reads the body within its limits,
counts and logs, turns new requests away while the service drains, and answers a defect with 500.
Starlette's TrustedHostMiddleware would refuse probes too, which a cluster sends under any name, and
says 400 in plain text; here a refusal is JSON with its code, and is counted and logged.
"""

import asyncio
import base64
import hmac
import re
import time
import uuid
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders

from lastword.service.coding import decoded
from lastword.service.dialect import Paths
from lastword.service.door import crowded
from lastword.service.log import Log
from lastword.service.metrics import Metrics
from lastword.service.refusal import Refusal
from lastword.service.settings import Settings

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

_ID = re.compile(r"[\w.:/+=-]{1,128}", re.ASCII)  # of a caller's own, kept as it came
_METHOD = 32  # most characters of a method that are told
_HOSTS = frozenset({"localhost", "127.0.0.1", "::1"})
# Around every page; each says in itself which scripts it runs, by their digests.
_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:;"
    " connect-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
)
_HEADERS = {
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
}


class Guard:
    """ASGI middleware around the whole service.

    Args:
        app: What stands behind the guard.
        paths: Where everything is.
        settings: Limits, token and manners.
        metrics: What is counted.
        log: Where requests are told.
        traffic: What is in hand, and whether more is taken.
    """

    def __init__(
        self,
        app: App,
        *,
        paths: Paths,
        settings: Settings,
        metrics: Metrics,
        log: Log,
        traffic: "Traffic",
    ) -> None:
        self._app, self._paths, self._settings = app, paths, settings
        self._metrics, self._log, self._traffic = metrics, log, traffic

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request in, or turn it down."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
        elif scope["type"] == "http":
            await self._request(scope, receive, send)
        else:  # a websocket: nothing here speaks it
            await send({"type": "websocket.close", "code": 1000})

    async def _request(self, scope: Scope, receive: Receive, send: Send) -> None:
        answer = _Answer(send, scope, self._paths, self._traffic)
        start = time.perf_counter()
        if scope["method"] == "HEAD":  # the server sends an answer to it without the body
            scope = dict(scope, method="GET")
        route = self._route(scope)
        with self._traffic.passing():
            try:
                self._check(scope, route)
                await self._app(scope, await self._body(scope, receive), answer)
            except Refusal as refusal:
                await answer.refuse(refusal)
            except Exception as error:
                self._log.failure(error, request=answer.request)
                await answer.refuse(Refusal.of(error))
        self._count(scope, route, answer, time.perf_counter() - start)

    def _route(self, scope: Scope) -> str:
        return str(scope["path"]) if scope["path"] in self._paths.methods else "other"

    def _check(self, scope: Scope, route: str) -> None:
        limit = self._settings.header_bytes
        if sum(len(name) + len(value) for name, value in scope["headers"]) > limit:
            raise Refusal("headers_too_large", f"the headers have more than {limit} bytes")
        if {b"content-length", b"transfer-encoding"} <= {name for name, _ in scope["headers"]}:
            what = "a body has Content-Length or Transfer-Encoding, not both (RFC 9112, 6.1)"
            raise Refusal("invalid_request", what)
        if route not in self._paths.probes:
            self._check_sender(Headers(scope=scope), route in self._paths.labels)
            if scope.get("state", {}).get("reserve"):
                raise crowded(self._settings)
        if route == "other":
            raise Refusal("not_found", "no such route; /docs lists them")
        methods = self._paths.methods.get(route)
        if methods is not None and scope["method"] not in methods:
            names = ", ".join(sorted(methods))
            what = f"{route} takes {names}, not {scope['method']:.{_METHOD}}"
            raise Refusal("method_not_allowed", what, allow=names)
        if self._traffic.draining and methods is not None and route not in self._paths.probes:
            raise Refusal("draining", "the service is stopping; try another", retry_after=1)

    def _check_sender(self, headers: Headers, labels: bool) -> None:
        host, origin = headers.get("host", ""), headers.get("origin")
        if self._settings.loopback and _hostname(host) not in _HOSTS | {self._settings.host}:
            raise Refusal("forbidden", "this host name is not the service's; use 127.0.0.1")
        if origin is not None and _netloc(origin) != host:
            raise Refusal("forbidden", "requests of other sites' pages are not answered")
        token, whose = self._settings.token, "the token"
        if labels and self._settings.label_token is not None:
            token, whose = self._settings.label_token, "the labeller's token"
        if token is not None and not _has_token(headers.get("authorization", ""), token):
            raise Refusal("unauthorised", f"send {whose} as `Authorization: Bearer TOKEN`")

    async def _body(self, scope: Scope, receive: Receive) -> Receive:
        """The whole body read, and a `receive` that gives it once and then waits for the end."""
        limit, headers = self._settings.body_bytes, Headers(scope=scope)
        declared = headers.get("content-length", "0")
        too_large = Refusal("body_too_large", f"the body has more than {limit} bytes")
        if declared.isdigit() and int(declared) > limit:
            raise too_large
        chunks: list[bytes] = []
        more, size = True, 0
        try:
            async with asyncio.timeout(self._settings.deadline_seconds):
                while more:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise Refusal("client_left", "the client left before its body was whole")
                    chunks.append(message.get("body", b""))
                    size += len(chunks[-1])
                    more = message.get("more_body", False)
                    if size > limit:
                        raise too_large
        except TimeoutError as error:
            raise Refusal("body_timeout", "the body did not arrive in time") from error
        body, coding = b"".join(chunks), headers.get("content-encoding", "identity")
        if body and coding != "identity":
            body = decoded(body, coding, limit)
        whole = [{"type": "http.request", "body": body, "more_body": False}]

        async def replay() -> Message:
            return whole.pop() if whole else await receive()

        return replay

    def _count(self, scope: Scope, route: str, answer: "_Answer", seconds: float) -> None:
        status = str(answer.status)
        self._metrics.requests.labels(route, status).inc()
        self._metrics.seconds.labels(route).observe(seconds)
        self._metrics.in_flight.set(self._traffic.inside)
        if answer.code is not None:
            self._metrics.refusals.labels(answer.code).inc()
        self._log.event(
            "request",
            request=answer.request,
            method=scope["method"][:_METHOD],
            route=route,
            status=answer.status,
            code=answer.code,
            seconds=round(seconds, 6),
        )


class Traffic:
    """What is in hand, and whether the service still takes more.

    Attributes:
        draining: New requests are turned away.
        inside: Requests in hand.
    """

    def __init__(self) -> None:
        self.draining = False
        self.inside = 0
        self._empty = asyncio.Event()
        self._empty.set()

    @contextmanager
    def passing(self) -> Iterator[None]:
        """Around one request, which `drain` waits for."""
        self.inside += 1
        self._empty.clear()
        try:
            yield
        finally:
            self.inside -= 1
            if self.inside == 0:
                self._empty.set()

    async def drain(self, grace_seconds: float, patience_seconds: float) -> None:
        """Turn new requests away, and wait for those inside.

        Args:
            grace_seconds: How long clients with open connections are told to go elsewhere.
            patience_seconds: The longest wait for those inside.
        """
        self.draining = True
        await asyncio.sleep(grace_seconds)
        try:
            async with asyncio.timeout(patience_seconds):
                await self._empty.wait()
        except TimeoutError:
            pass


class _Answer:
    """What has been sent, with the headers that every answer carries."""

    def __init__(self, send: Send, scope: Scope, paths: Paths, traffic: Traffic) -> None:
        self._send, self._traffic = send, traffic
        self._dialect = paths.dialect(scope["path"])
        name = Headers(scope=scope).get("x-request-id", "")
        self.request = name if _ID.fullmatch(name) else uuid.uuid4().hex
        self.status = 0
        self.code: str | None = None
        self._ended = False
        scope.setdefault("state", {})["request"] = self.request

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            message.setdefault("headers", [])
            headers = MutableHeaders(scope=message)
            headers["x-request-id"] = self.request
            for name, value in _HEADERS.items():
                headers.setdefault(name, value)
            if headers.get("content-type", "").startswith("text/html"):
                headers.setdefault("content-security-policy", _POLICY)
            if self._traffic.draining:
                headers["connection"] = "close"
            self.code = headers.get("x-refusal") or self.code
        elif message["type"] == "http.response.body":
            self._ended = not message.get("more_body", False)
        await self._send(message)

    async def refuse(self, refusal: Refusal) -> None:
        """Send the refusal, unless an answer is on its way already."""
        self.code = refusal.code
        if self.status:
            await self.end()
            return
        headers = [(k.encode(), v.encode()) for k, v in refusal.headers]
        # Nobody knows where its body ends; the place is another's.
        if refusal.code in ("invalid_request", "too_many_connections"):
            headers.append((b"connection", b"close"))
        status, body = self._dialect.refuse(refusal)
        await self({"type": "http.response.start", "status": status, "headers": headers})
        await self({"type": "http.response.body", "body": body})

    async def end(self) -> None:
        """End what has begun."""
        if self.status and not self._ended:
            await self({"type": "http.response.body", "body": b"", "more_body": False})


def _netloc(origin: str) -> str | None:
    try:
        return urlsplit(origin).netloc
    except ValueError:
        return None


def _hostname(host: str) -> str | None:
    try:
        return urlsplit(f"//{host}").hostname
    except ValueError:
        return None


def _has_token(authorization: str, token: str) -> bool:
    """Whether a Bearer token, or the password that a browser asked for, is the token."""
    scheme, _, value = authorization.partition(" ")
    secret = value.strip().encode("utf-8", errors="replace")
    if scheme.lower() == "basic":
        try:
            secret = base64.b64decode(secret, validate=True).partition(b":")[2]
        except ValueError:
            return False
    elif scheme.lower() != "bearer":
        return False
    return hmac.compare_digest(secret, token.strip().encode())  # files end with a newline
