"""The guard of the service, which every request passes.

It checks host, origin, token and route, reads the body within its limits, limits the number of
requests, and ends a request at its deadline or when its client leaves. If a body is refused before
it is read, the connection is closed. Starlette's TrustedHostMiddleware is not used: it also refuses
probes, which a cluster sends under any host name, and it answers in plain text.
"""

import asyncio
import base64
import hmac
import re
import time
import uuid
from collections.abc import Awaitable, Mapping

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from lastword.service.application import Application, Traffic
from lastword.service.content_coding import decoded
from lastword.service.dialect import NO_DIALECT, Dialect
from lastword.service.refusal import Refusal

_ID = re.compile(r"[\w.:/+=-]{1,128}", re.ASCII)  # a request id that a client may choose
_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[\w.-]+)(:\d+)?", re.ASCII | re.IGNORECASE)
# A refusal waits, and longer for a large body, so that a client that repeats it takes little CPU.
_REFUSAL_SECONDS = 0.02
_REFUSAL_BYTES = 2**22  # per second
_METHOD_CHARACTERS = 32  # of an unknown method, in the log and in the refusal
PROBES = frozenset({"/healthz", "/readyz"})  # need no token, and are answered while it stops
LABELS = "/v1/feedback"  # accepts the labeller's token, if there is one
_HOSTS = frozenset({"localhost", "127.0.0.1", "::1"})
_POLICY = (  # of every page
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src data:;"
    " connect-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
)
_HEADERS = {
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
}


class Guard:
    """ASGI middleware around the whole service."""

    def __init__(self, app: ASGIApp, service: Application, paths: Mapping[str, Dialect]) -> None:
        self._app, self._paths, self._settings = app, paths, service.settings
        self._metrics, self._log, self._traffic = service.metrics, service.log, service.traffic

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request to the application, or refuse it."""
        handle = self._request if scope["type"] == "http" else self._app  # the lifespan
        await handle(scope, receive, send)

    async def _request(self, scope: Scope, receive: Receive, send: Send) -> None:
        start, limits = time.perf_counter(), self._settings
        name = limits.client_header and Headers(scope=scope).get(limits.client_header)
        if name:
            scope = dict(scope, client=(name, 0))
        path = scope["path"]
        # `/v1%2fmodel` is not `/v1/model`: a proxy may have rules for the path as it was sent.
        is_plain = scope.get("raw_path", b"").partition(b"?")[0] in (b"", path.encode())
        route = path if is_plain and path in self._paths else "other"
        dialect = self._paths.get(path, NO_DIALECT).of(scope)
        answer = _Answer(send, scope, dialect, self._traffic, limits.deadline_seconds)
        try:
            self._check(scope, route)
            async with asyncio.timeout(limits.deadline_seconds) as answer.limit:
                if scope["method"] == "POST":
                    await self._post(scope, receive, answer)
                else:
                    await self._app(scope, _whole(b""), answer)
        except TimeoutError:  # at the deadline, or if the client does not read its answer
            if not answer.status:
                seconds = limits.deadline_seconds
                await answer.refuse(Refusal("deadline", f"no answer within {seconds:g} s"))
        except Refusal as refusal:
            await answer.refuse(refusal)
        except Exception as error:
            self._log.failure(error, request=answer.request)
            await answer.refuse(Refusal.of(error))
        self._count(scope, route, answer, time.perf_counter() - start)

    async def _post(self, scope: Scope, receive: Receive, answer: "_Answer") -> None:
        self._traffic.open += 1
        try:
            body = await self._body(scope, receive)
            answer.size = len(body)
            # Counted only now, so that clients that send slowly take no place.
            with self._traffic.passing(self._settings.requests):
                await _attended(self._app(scope, _whole(body), answer), receive)
        finally:
            self._traffic.open -= 1

    def _check(self, scope: Scope, route: str) -> None:
        headers = Headers(scope=scope)
        if route not in PROBES:
            self._check_sender(headers, route == LABELS)
        if route == "other":
            raise Refusal("not_found", "no such route; /openapi.json lists them")
        if scope["method"] != "POST" and headers.get("content-length", "0") != "0":
            raise Refusal("invalid_body", f"{scope['method']} takes no body")
        if self._traffic.draining and route not in PROBES:
            raise Refusal("draining", "the service is stopping; try another", retry_after=1)
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        if scope["method"] == "POST" and kind != "application/json":
            need = "expected a body with the header `content-type: application/json`"
            raise Refusal("unsupported_media_type", f"{need}, not {kind or 'none'!r:.80}")

    def _check_sender(self, headers: Headers, labels: bool) -> None:
        """Refuse other hosts (DNS rebinding), other sites' pages, and senders without the token."""
        host, origin = headers.get("host", ""), headers.get("origin")
        host_name = match[1].strip("[]").lower() if (match := _HOST.fullmatch(host)) else None
        if self._settings.loopback and host_name not in _HOSTS | {self._settings.host}:
            raise Refusal("forbidden", "this host name is not the service's; use 127.0.0.1")
        if origin is not None and origin not in (f"http://{host}", f"https://{host}"):
            raise Refusal("forbidden", "requests of other sites' pages are not answered")
        token, name = self._settings.token, "the token"
        if labels and self._settings.label_token is not None:
            token, name = self._settings.label_token, "the labeller's token"
        if token is not None and not _has_token(headers, token):
            raise Refusal("unauthorised", f"send {name} as `Authorization: Bearer TOKEN`")

    async def _body(self, scope: Scope, receive: Receive) -> bytes:
        limit, headers = self._settings.body_bytes, Headers(scope=scope)
        declared = headers.get("content-length", "0")
        too_large = Refusal("body_too_large", f"the body has more than {limit} bytes")
        if declared.isdigit() and int(declared) > limit:
            raise too_large
        body, more = bytearray(), True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                if "transfer-encoding" in headers:
                    raise Refusal("broken_body", "the body breaks off, or has an invalid chunk")
                raise Refusal("client_left", "the client left before its body was whole")
            body += message.get("body", b"")
            more = message.get("more_body", False)
            if len(body) > limit:
                raise too_large
        coding = headers.get("content-encoding", "identity")
        return bytes(body) if coding == "identity" else decoded(bytes(body), coding, limit)

    def _count(self, scope: Scope, route: str, answer: "_Answer", seconds: float) -> None:
        status = str(answer.status)
        self._metrics.requests.labels(route, status).inc()
        self._metrics.seconds.labels(route).observe(seconds)
        if answer.code is not None:
            self._metrics.refusals.labels(answer.code).inc()
        self._log.event(
            "request",
            request=answer.request,
            method=scope["method"][:_METHOD_CHARACTERS],
            route=route,
            status=answer.status,
            code=answer.code,
            seconds=round(seconds, 6),
        )


async def _attended(answering: Awaitable[None], receive: Receive) -> None:
    """Await an answer, and end it when the client leaves."""

    async def left() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    tasks = [asyncio.ensure_future(answering), asyncio.ensure_future(left())]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if not tasks[0].done():
            raise Refusal("client_left", "the client left before its answer")
        await tasks[0]
    finally:
        for task in tasks:
            task.cancel()


def _whole(body: bytes) -> Receive:
    """Return a `receive` that gives a body once, and then waits: the guard sees the disconnect."""
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> Message:
        return messages.pop() if messages else await asyncio.Future()

    return receive


class _Answer:
    """The `send` of a request: it adds headers, and records how much of the answer is sent.

    The deadline `limit` ends when the answer begins; then `stall_seconds` counts. `size` is None
    before the body is read, and then the connection has to be closed.
    """

    limit: asyncio.Timeout | None = None

    def __init__(
        self, send: Send, scope: Scope, dialect: Dialect, traffic: Traffic, stall_seconds: float
    ) -> None:
        self._send, self._traffic, self._stall_seconds = send, traffic, stall_seconds
        self._scope, self._dialect = scope, dialect
        name = Headers(scope=scope).get("x-request-id", "")
        self.request = name if _ID.fullmatch(name) else uuid.uuid4().hex
        self.status = 0
        self.size = None if scope["method"] == "POST" else 0
        self.code: str | None = None
        self._ended = False
        scope.setdefault("state", {})["request"] = self.request

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            if 400 <= self.status < 499:
                await asyncio.sleep(_REFUSAL_SECONDS + (self.size or 0) / _REFUSAL_BYTES)
            headers = MutableHeaders(scope=message)
            headers["x-request-id"] = self.request
            for name, value in _HEADERS.items():
                headers.setdefault(name, value)
            if headers.get("content-type", "").startswith("text/html"):
                headers.setdefault("content-security-policy", _POLICY)
            if self._traffic.draining or self.size is None:
                headers["connection"] = "close"
            if self.limit is not None:
                self.limit.reschedule(None)
            self.code = headers.get("x-refusal") or self.code
        elif message["type"] == "http.response.body":
            self._ended = not message.get("more_body", False)
        async with asyncio.timeout(self._stall_seconds):  # the client may not read its answer
            await self._send(message)

    async def refuse(self, refusal: Refusal) -> None:
        """Send the refusal; end an answer that has begun, and leave one that is complete."""
        if self._ended:
            return
        self.code, self.limit = refusal.code, None
        if self.status:
            await self({"type": "http.response.body", "body": b"", "more_body": False})
            return
        await self._dialect.refuse(refusal)(self._scope, _whole(b""), self)


def _has_token(headers: Headers, token: str) -> bool:
    """Return True if the bearer token, Google's API key or a browser's password is the token."""
    scheme, _, value = headers.get("authorization", "").partition(" ")
    secret = value.strip().encode("utf-8", errors="replace")
    if scheme.lower() == "basic":
        try:
            secret = base64.b64decode(secret, validate=True).partition(b":")[2]
        except ValueError:
            return False
    elif scheme.lower() != "bearer":
        secret = headers.get("x-goog-api-key", "").encode("utf-8", errors="replace")
    return hmac.compare_digest(secret, token.strip().encode())  # files end with a newline
