"""The HTTP application: the routes of its dialects around a corrector, behind the guard."""

import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict

from fastapi import Depends, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.security import HTTPBearer
from starlette.exceptions import HTTPException

from lastword.decide.decider import Decider
from lastword.decide.file import read_questions
from lastword.decide.templates import template_of
from lastword.errors import TraceError
from lastword.service.correction import Corrector
from lastword.service.dialect import Dialect, Paths, StrictRoute
from lastword.service.dialects import DIALECTS
from lastword.service.guard import Guard, Traffic
from lastword.service.log import Log
from lastword.service.metrics import Metrics
from lastword.service.pages import add_pages
from lastword.service.probes import PROBES
from lastword.service.refusal import Refusal
from lastword.service.schema import invalid
from lastword.service.settings import Settings
from lastword.version import __version__


class Service:
    """One decider with everything around it; `app.state.service`.

    Attributes:
        begin: When it began, in seconds since the epoch.
        ended: False where a thread hung when the end came.

    Raises:
        InputError: Questions or a template that cannot be read or asked.
    """

    ended = True

    def __init__(self, decider: Decider, settings: Settings, log: Log | None = None) -> None:
        self.settings = settings
        self.metrics = Metrics()
        self.log = log or Log(prompts=settings.log_prompts)
        self.traffic = Traffic(self.metrics, settings.flight_bytes)
        self.begin = int(time.time())
        if settings.template is not None:
            template_of(settings.template)  # refused now, and not at a request
            decider.template = settings.template
        if settings.questions is not None:
            decider.prepare(read_questions(settings.questions))  # refused now too
        self.corrector = Corrector(decider, settings, self.metrics, self.log)
        self.metrics.served.labels(__version__, self.corrector.name).set(1)
        self.metrics.dropped_lines.set_function(lambda: self.log.dropped)
        model = self.corrector.model
        self.metrics.oldest.set_function(model.oldest_seconds)
        self.metrics.waiting_items.set_function(lambda: model.waiting)

    def announce(self) -> None:
        """Say in the log under what answers are given."""
        certificate = self.corrector.decider.certificate
        if certificate is None:
            decider = self.corrector.decider.method
            what = f"every override by {decider} is allowed, with no guarantee"
            if decider == "base":
                what = "decisions are the model's own; only /v1/correct corrects, with no guarantee"
            self.log.event("uncertified", told=what)
        else:
            policy, date = asdict(certificate.policy), certificate.date
            self.log.event("certified", **policy, date=date)
            if self.settings.token is not None and self.settings.label_token is None:
                what = "whoever may ask may label, and raise the alarm: give --label-token"
                self.log.event("labels", told=what)

    def close(self) -> None:
        """Finish what waits and end the threads."""
        self.ended = self.corrector.close()


def create_app(
    decider: Decider,
    settings: Settings | None = None,
    log: Log | None = None,
    dialects: Sequence[Dialect] = DIALECTS,
) -> FastAPI:
    """Return the service as an ASGI application; its `state.service` ends with its lifespan.

    Args:
        decider: Answers; only the application's thread calls it from now on.
        settings: Limits and manners.
        log: Where events go; stderr if not given.
        dialects: The forms in which it speaks with clients.
    """
    service = Service(decider, settings or Settings(), log)
    app = FastAPI(
        title="lastword",
        version=__version__,
        description="Corrects hallucinations in candidate answers at inference time, by TRACE.",
        docs_url=None,
        redoc_url=None,
        lifespan=_lifespan,
        # For the schema: the guard has looked at the token.
        dependencies=[Depends(HTTPBearer(auto_error=False))] if service.settings.token else [],
    )
    app.state.service = service
    app.router.route_class = StrictRoute
    for dialect in (*dialects, PROBES):
        dialect.add_to(app)
    add_pages(app, explorer=service.settings.explorer)
    paths = Paths(app, (*dialects, PROBES))
    _add_refusals(app, paths)
    app.add_middleware(Guard, service=service, paths=paths)
    return app


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    yield
    app.state.service.close()


def _add_refusals(app: FastAPI, paths: Paths) -> None:
    async def refuse(request: Request, error: Exception) -> Response:
        refusal = Refusal.of(error)
        status, body = paths.dialect(request.scope).refuse(refusal)
        answer = Response(body, status)
        for name, value in refusal.headers:
            answer.headers.append(name, value)
        return answer

    async def invalid_body(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        return await refuse(request, invalid(list(error.errors())))

    async def http(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        if isinstance(error.__cause__, Refusal):  # of what read the body
            return await refuse(request, error.__cause__)
        code = "not_found" if error.status_code == 404 else "invalid_body"
        return await refuse(request, Refusal(code, str(error.detail)))

    app.add_exception_handler(TraceError, refuse)
    app.add_exception_handler(RequestValidationError, invalid_body)
    app.add_exception_handler(HTTPException, http)
