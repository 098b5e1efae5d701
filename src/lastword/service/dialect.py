"""Dialects: the routes for one kind of client, and the form of their refusals.

The service gets dialects as values, and has no code for any one of them.
"""

from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.routing import APIRoute
from starlette.types import Scope

from lastword.files.strict_json import from_json, to_json
from lastword.service.refusal import Refusal
from lastword.service.schema import Json, Object, native_form

# Description of a refusal, for the reference.
_REFUSED: dict[int | str, Object] = {
    "default": {"description": "a refusal, by its status and the header `x-refusal`"}
}


class StrictRoute(APIRoute):
    """A route whose body is strict JSON."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the handler of a route."""
        handler = super().get_route_handler()

        async def strict(request: Request) -> Response:
            return await handler(_StrictRequest(request.scope, request.receive))

        return strict


class _StrictRequest(Request):
    async def json(self) -> Json:
        return from_json(await self.body())


def routes() -> APIRouter:
    """Return an empty router; a handler's name is that of its operation in the reference."""
    return APIRouter(
        route_class=StrictRoute,
        responses=_REFUSED,
        generate_unique_id_function=lambda route: route.name,
    )


@dataclass(frozen=True)
class Dialect:
    """Routes in one wire format; by default the service's.

    Attributes:
        form: Function that returns the JSON of a refusal.
        statuses: Statuses for which the dialect has another number.
        others: Dialects that share a path and have other refusals, by a header of their clients.
    """

    router: APIRouter
    form: Callable[[Refusal], Object] = native_form
    statuses: Mapping[int, int] = field(default_factory=dict)
    others: Mapping[bytes, "Dialect"] = field(default_factory=dict)

    def refuse(self, refusal: Refusal) -> Response:
        """Return the response of a refusal."""
        status = self.statuses.get(refusal.status, refusal.status)
        answer = Response(to_json(self.form(refusal)), status)
        for name, value in refusal.headers:
            answer.headers.append(name, value)
        return answer

    def of(self, scope: Scope) -> "Dialect":
        """Return the dialect for a request's refusals."""
        headers = {name for name, _ in scope["headers"]} if self.others else set()
        return next((other for name, other in self.others.items() if name in headers), self)


NO_DIALECT = Dialect(routes())  # for refusals at an unknown path
