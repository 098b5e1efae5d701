"""The HTTP application: routes around a corrector, behind the guard."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict
from functools import partial
from typing import Any

from fastapi import Depends, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import PlainTextResponse, StreamingResponse
from fastapi.routing import APIRoute
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException

import lastword
from lastword.errors import TraceError
from lastword.service.answers import BODY, MODEL, answers, id_of, json_of, leaving, takes_json
from lastword.service.batch import JSON, NDJSON, first_of, kind_of, lines_of, read_batch
from lastword.service.correction import Corrector
from lastword.service.dialects import refused
from lastword.service.guard import Guard, Traffic
from lastword.service.log import Log
from lastword.service.metrics import CONTENT_TYPE, Metrics
from lastword.service.openai import add_openai
from lastword.service.reference import add_reference
from lastword.service.refusal import Code, Refusal
from lastword.service.rerank import TeiProblem, add_rerank
from lastword.service.schema import (
    AskAnswer,
    DecisionAnswer,
    FeedbackAnswer,
    FeedbackBody,
    ItemBody,
    QuestionBody,
    invalid,
)
from lastword.service.settings import Settings
from lastword.tracer import Tracer


class Service:
    """One tracer with everything around it; `app.state.service`.

    Args:
        tracer: The model's tracer.
        settings: Limits and manners.
        log: Where events go; stderr if not given.
    """

    def __init__(self, tracer: Tracer, settings: Settings, log: Log | None = None) -> None:
        self.settings = settings
        self.metrics = Metrics()
        self.log = log or Log(prompts=settings.log_prompts)
        self.traffic = Traffic()
        self.routes: dict[str, frozenset[str]] = {}
        self.corrector = Corrector(tracer, settings, self.metrics, self.log)
        self.metrics.served.labels(lastword.__version__, self.corrector.name).set(1)
        batcher = self.corrector.batcher
        self.metrics.oldest.set_function(batcher.oldest_seconds)
        self.metrics.waiting_items.set_function(partial(batcher.waiting, "item"))
        self.metrics.waiting_questions.set_function(partial(batcher.waiting, "ask"))

    def announce(self) -> None:
        """Say in the log under what answers are given."""
        certificate = self.corrector.tracer.certificate
        if certificate is None:
            told = "every override is let through, with no guarantee"
            self.log.event("uncertified", told=told)
        else:
            policy, date = asdict(certificate.policy), certificate.date
            self.log.event("certified", **policy, date=date)
        oversight = self.corrector.oversight
        if oversight is not None and oversight.monitor.alarm:  # of before the restart
            oversight.tell_alarm()

    def close(self) -> None:
        """Finish what waits and end the thread."""
        self.corrector.close()


def create_app(tracer: Tracer, settings: Settings | None = None, log: Log | None = None) -> FastAPI:
    """The service as an ASGI application; its `state.service` ends with its lifespan.

    Args:
        tracer: The model's tracer; the application's own thread calls it from now on.
        settings: Limits and manners.
        log: Where events go; stderr if not given.
    """
    service = Service(tracer, settings or Settings(), log)
    app = FastAPI(
        title="lastword",
        version=lastword.__version__,
        description="Corrects hallucinations in candidate answers at inference time, by TRACE.",
        docs_url=None,
        redoc_url=None,
        lifespan=_lifespan,
    )
    app.state.service = service
    _add_corrections(app, service.corrector)
    add_rerank(app, service.corrector)
    add_openai(app, service.corrector)
    _add_feedback(app, service.corrector)
    _add_probes(app, service)
    add_reference(app)
    _add_refusals(app)
    _secure(app, service.settings)
    service.routes.update(routes_of(app))
    app.add_middleware(
        Guard,
        routes=service.routes,
        settings=service.settings,
        metrics=service.metrics,
        log=service.log,
        traffic=service.traffic,
    )
    return app


def routes_of(app: FastAPI) -> dict[str, frozenset[str]]:
    """The API's paths with their methods; what can be got has a head."""
    methods = {r.path: set(r.methods or ()) for r in app.routes if isinstance(r, APIRoute)}
    methods["/openapi.json"] = {"GET"}
    return {
        path: frozenset(known | {"HEAD"} if "GET" in known else known)
        for path, known in methods.items()
    }


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    yield
    app.state.service.close()


def _add_corrections(app: FastAPI, corrector: Corrector) -> None:
    @app.post(
        "/v1/correct",
        dependencies=[Depends(takes_json)],
        responses=answers(DecisionAnswer, *MODEL),
        operation_id="correct",
    )
    async def correct(body: ItemBody, request: Request) -> Response:
        """Correct the model's choice among the candidates of one prompt."""
        item, name = body.item(), id_of(request)
        told, _ = await corrector.answer(item, name, leaving(request), full=body.full)
        return json_of(told)

    @app.post(
        "/v1/correct/batch",
        response_class=StreamingResponse,
        responses=answers(None, *MODEL) | {200: _STREAM},
        openapi_extra={"requestBody": {"required": True, "content": _BATCH}},
        operation_id="correct_batch",
    )
    async def correct_batch(request: Request) -> Response:
        """Correct many: one line an item, in order, as they are decided.

        An item that fails is a line with its `id` and an `error`, as `{"id", "schema", "error"}`.
        """
        kind, body = kind_of(request, JSON, NDJSON), await request.body()
        # A thread of its own: a body may take longer to read than others can wait.
        entries = await run_in_threadpool(read_batch, body, kind, corrector.settings.batch_limit)
        first = await first_of(corrector, entries)
        lines = lines_of(corrector, entries, first, id_of(request))
        return StreamingResponse(lines, media_type=NDJSON)

    @app.post(
        "/v1/ask",
        dependencies=[Depends(takes_json)],
        responses=answers(AskAnswer, *MODEL),
        operation_id="ask",
    )
    async def ask(body: QuestionBody, request: Request) -> Response:
        """Sample answers to a question, and correct among them."""
        sampling = body.model_dump(exclude={"question"})
        asked = await corrector.result(
            corrector.start_asking(body.question, **sampling), leaving(request)
        )
        return json_of(corrector.told_answer(asked, request=id_of(request)))


def _add_feedback(app: FastAPI, corrector: Corrector) -> None:
    codes: tuple[Code, ...] = ("unknown_answer", "repeated_feedback", "uncertified", "unkept")

    @app.post(
        "/v1/feedback",
        dependencies=[Depends(takes_json)],
        responses=answers(FeedbackAnswer, *BODY, *codes),
        operation_id="feedback",
    )
    async def feedback(body: FeedbackBody) -> Response:
        """Say which candidates of an answer were right, by its `feedback_id`.

        Which answers get their label must not depend on whether they were right.
        """
        if corrector.oversight is None:
            told = "nothing is certified here that labels could judge: start with --certificate"
            raise Refusal("uncertified", told)
        right = [body.right] if isinstance(body.right, int) else body.right
        return json_of(corrector.oversight.labelled(body.id, right))


def _add_probes(app: FastAPI, service: Service) -> None:
    @app.get("/v1/model", responses=answers(None), operation_id="model")
    async def model() -> Response:
        """What is served: the model, its constants, the versions, the certificate if it has one.

        `certified` says whether overrides are held to a certificate, `oversight` whether it still
        holds, `shadow` whether answers are the model's own.
        """
        corrector = service.corrector
        overseen = None if corrector.oversight is None else corrector.oversight.describe()
        told = {"version": lastword.__version__, "shadow": corrector.shadow}
        told |= {"certified": overseen is not None, "oversight": overseen}
        return json_of({**corrector.tracer.describe(), **told})

    @app.get("/healthz", responses=answers(None), operation_id="healthz")
    async def healthz() -> Response:
        """Whether the process answers: 500 where the model's thread has ended."""
        if not service.corrector.batcher.alive and not service.traffic.draining:
            raise Refusal("internal", "the model's thread has ended: restart the service")
        return json_of({"status": "ok"})

    @app.get("/readyz", responses=answers(None, "draining"), operation_id="readyz")
    async def readyz() -> Response:
        """Whether items are taken: 503 while the service stops."""
        if service.traffic.draining or not service.corrector.batcher.taking:
            raise Refusal("draining", "the service takes no more items", retry_after=1)
        return json_of({"status": "ready"})

    @app.get(
        "/health", responses=answers(None, "draining", error=TeiProblem), operation_id="health"
    )
    async def health() -> Response:
        """Both of these at once, for clients that know this path alone."""
        await healthz()
        return await readyz()

    @app.get("/metrics", response_class=PlainTextResponse, operation_id="metrics")
    async def metrics() -> Response:
        """Counters in Prometheus' text format."""
        return Response(service.metrics.text(), media_type=CONTENT_TYPE)


_STREAM = {
    "description": "One decision or error a line, in the order of the items.",
    "content": {NDJSON: {"schema": {"type": "string"}}},
}
_ITEM_REF = {"$ref": "#/components/schemas/ItemBody"}
_BATCH = {
    JSON: {
        "schema": {
            "type": "object",
            "title": "BatchBody",
            "required": ["items"],
            "additionalProperties": False,
            "properties": {"items": {"type": "array", "minItems": 1, "items": _ITEM_REF}},
        }
    },
    NDJSON: {"schema": {"type": "string", "description": "One item a line."}},
}


def _add_refusals(app: FastAPI) -> None:
    async def refuse(request: Request, error: Exception) -> Response:
        refusal = Refusal.of(error)
        status, body = refused(request.url.path, refusal)
        answer = Response(body, status)
        for name, value in refusal.headers:
            answer.headers.append(name, value)
        return answer

    async def invalid_body(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        return await refuse(request, invalid(list(error.errors())))

    async def http(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        code: Code = "not_found" if error.status_code == 404 else "invalid_body"
        return await refuse(request, Refusal(code, str(error.detail)))

    app.add_exception_handler(TraceError, refuse)
    app.add_exception_handler(RequestValidationError, invalid_body)
    app.add_exception_handler(HTTPException, http)


def _secure(app: FastAPI, settings: Settings) -> None:
    """Let the schema say that a token is needed, and that bad bodies are one-line errors."""
    made = app.openapi

    def openapi() -> dict[str, Any]:
        schema = made()
        if settings.token is not None and "security" not in schema:
            schemes = {"token": {"type": "http", "scheme": "bearer"}}
            schema["components"]["securitySchemes"] = schemes
            schema["security"] = [{"token": []}]
        return schema

    app.openapi = openapi  # type: ignore[method-assign]
