"""The HTTP application: the routes of all dialects behind the guard."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from fastapi import Depends, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from fastapi.security import HTTPBearer
from starlette.exceptions import HTTPException

from lastword.decide.decider import Decider
from lastword.errors import TraceError
from lastword.service.dialect import NO_DIALECT, Dialect
from lastword.service.dialects import DIALECTS
from lastword.service.guard import Guard
from lastword.service.log import Log
from lastword.service.refusal import Refusal
from lastword.service.schema import invalid
from lastword.service.service import Service
from lastword.service.settings import Settings
from lastword.version import __version__

_CODES = {404: "not_found", 405: "method_not_allowed"}  # of what Starlette refuses


def create_app(
    decider: Decider, settings: Settings | None = None, log: Log | None = None
) -> FastAPI:
    """Return the service as an ASGI application; its `state.service` ends with its lifespan."""
    service = Service(decider, settings or Settings(), log)
    app = FastAPI(
        title="lastword",
        version=__version__,
        description="A language model that chooses among given options. Answers are corrected "
        "only if the service has a correction or a certificate, or at /v1/correct.",
        docs_url=None,
        redoc_url=None,
        lifespan=lifespan,
        # Only for the schema: the guard checks the token.
        dependencies=[Depends(HTTPBearer(auto_error=False))] if service.settings.token else [],
    )
    app.state.service = service
    add_dialects(app, DIALECTS)
    return app


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Close the application's service at its end."""
    yield
    app.state.service.close()


def add_dialects(app: FastAPI, dialects: Sequence[Dialect]) -> None:
    """Add routes to an application, with the guard around it and their form of refusals."""
    paths = {route.path: NO_DIALECT for route in app.routes if isinstance(route, APIRoute)}
    paths["/openapi.json"] = NO_DIALECT
    for dialect in dialects:
        app.include_router(dialect.router)
        routes = (route for route in dialect.router.routes if isinstance(route, APIRoute))
        paths |= dict.fromkeys((route.path for route in routes), dialect)
    app.add_middleware(Guard, service=app.state.service, paths=paths)

    async def refuse(request: Request, error: Exception) -> Response:
        dialect = paths.get(request.scope["path"], NO_DIALECT)
        return dialect.of(request.scope).refuse(Refusal.of(error))

    async def invalid_body(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        return await refuse(request, invalid(list(error.errors())))

    async def http(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        code = _CODES.get(error.status_code, "invalid_body")
        allow = (error.headers or {}).get("Allow")
        return await refuse(request, Refusal(code, str(error.detail), allow=allow))

    app.add_exception_handler(TraceError, refuse)
    app.add_exception_handler(RequestValidationError, invalid_body)
    app.add_exception_handler(HTTPException, http)
