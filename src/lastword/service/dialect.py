"""Dialects: the routes for one kind of client, and the form of their refusals.

The service gets dialects as values, and has no code for any one of them.
"""

from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from fastapi import Depends, FastAPI, Request, Response
from fastapi.routing import APIRoute
from pydantic import BaseModel

from lastword.files.strict_json import from_json, to_json
from lastword.service.call import JSON, takes
from lastword.service.refusal import Refusal
from lastword.service.schema import ErrorAnswer, native_form, require_few

_REFUSED = {"description": "a refusal, by its status and the header `x-refusal`"}
_SMALL_BYTES = 2**14  # a larger body is parsed in a thread


@dataclass(frozen=True)
class Route:
    """One route.

    Attributes:
        method: `GET` or `POST`.
        path: The path.
        handler: Function of the body (if there is one) and the `Call` that returns the response.
            Its name and its docstring are those of the operation in the reference.
        answer: Pydantic model of the answer, for the reference.
        kinds: Media types of the body.
        described: Further description of the answer, in the form of FastAPI's `responses`.
        extra: Further arguments of FastAPI's `add_api_route`.
        probe: True to answer without a token, and while the service stops.
        labels: True to accept the labeller's token, if there is one.
    """

    method: Literal["GET", "POST"]
    path: str
    handler: Callable[..., Awaitable[Response]]
    answer: type[BaseModel] | None = None
    kinds: tuple[str, ...] = (JSON,)
    described: Mapping[str, Any] = field(default_factory=dict)
    extra: Mapping[str, Any] = field(default_factory=dict)
    probe: bool = False
    labels: bool = False


@dataclass(frozen=True)
class Dialect:
    """Routes in one wire format; by default the service's.

    Attributes:
        routes: The routes.
        form: Function that returns the JSON of a refusal.
        statuses: Statuses for which the dialect has another number.
        others: Dialects that share a path and have other refusals, by a header of their clients.
    """

    routes: tuple[Route, ...]
    form: Callable[[Refusal], dict[str, Any]] = native_form
    statuses: Mapping[int, int] = field(default_factory=dict)
    others: Mapping[bytes, "Dialect"] = field(default_factory=dict)

    def refuse(self, refusal: Refusal) -> Response:
        """Return the response of a refusal."""
        status = self.statuses.get(refusal.status, refusal.status)
        answer = Response(to_json(self.form(refusal)), status)
        for name, value in refusal.headers:
            answer.headers.append(name, value)
        return answer

    def add_to(self, app: FastAPI) -> None:
        """Add the routes to an application."""
        refused: dict[str, Any] = {"model": ErrorAnswer} if self.form is native_form else {}
        for route in self.routes:
            answer: dict[str, Any] = {} if route.answer is None else {"model": route.answer}
            check = [Depends(takes(*route.kinds))] if route.method == "POST" else []
            options = {"operation_id": route.handler.__name__} | dict(route.extra)
            app.add_api_route(
                route.path,
                route.handler,
                methods=[route.method],
                dependencies=check,
                responses={200: answer | dict(route.described), "default": refused | _REFUSED},
                **options,
            )


class StrictRoute(APIRoute):
    """A route whose body is strict JSON."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the handler of a route."""
        handler = super().get_route_handler()

        async def strict(request: Request) -> Response:
            return await handler(_StrictRequest(request.scope, request.receive))

        return strict


class _StrictRequest(Request):
    async def json(self) -> Any:
        """Return the body's value; a large body is parsed in the reader's thread."""
        body, service = await self.body(), self.app.state.service
        if len(body) <= _SMALL_BYTES:
            return _read(body, service.settings.entries)
        most = service.settings.entries
        return await service.read(self.client, len(body), lambda: _read(body, most))


def _read(body: bytes, most: int) -> Any:
    require_few(body, most)
    return from_json(body)


class Paths:
    """All routes of the service.

    Attributes:
        methods: The methods of each path, with HEAD beside GET.
        probes: Paths that are answered without a token, and while the service stops.
        labels: Paths that accept the labeller's token.
    """

    def __init__(self, app: FastAPI, dialects: Sequence[Dialect]) -> None:
        routes = [(route, dialect) for dialect in dialects for route in dialect.routes]
        self._dialects = {route.path: dialect for route, dialect in routes}
        assert len(self._dialects) == len(routes), "two dialects have one path"
        self.probes = {route.path for route, _ in routes if route.probe}
        self.labels = {route.path for route, _ in routes if route.labels}
        served = [route for route in app.routes if isinstance(route, APIRoute)]
        methods = {route.path: frozenset(route.methods) for route in served}
        methods["/openapi.json"] = frozenset({"GET"})
        head = {path: {"HEAD"} if "GET" in names else set() for path, names in methods.items()}
        self.methods = {path: names | head[path] for path, names in methods.items()}

    def dialect(self, scope: Mapping[str, Any]) -> Dialect:
        """Return the dialect for a request's refusals; the service's for an unknown path."""
        dialect = self._dialects.get(scope["path"], _NATIVE)
        headers = {name for name, _ in scope["headers"]} if dialect.others else set()
        return next((other for name, other in dialect.others.items() if name in headers), dialect)


_NATIVE = Dialect(())
