"""The HTTP application: routes around a corrector, behind the guard."""

import json
from collections import deque
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import Future
from contextlib import asynccontextmanager
from dataclasses import asdict
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import PlainTextResponse, StreamingResponse
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException

import tracelm
from tracelm.errors import ItemError, TraceError
from tracelm.rule.decision import Decision
from tracelm.service.correction import Corrector
from tracelm.service.guard import Guard, Traffic
from tracelm.service.log import Log
from tracelm.service.metrics import CONTENT_TYPE, Metrics
from tracelm.service.reference import ICON, SCRIPT, STYLE, add_reference
from tracelm.service.refusal import Code, Refusal
from tracelm.service.schema import (
    AskAnswer,
    DecisionAnswer,
    ErrorAnswer,
    FeedbackAnswer,
    FeedbackBody,
    ItemBody,
    QuestionBody,
    invalid,
    parse_item,
    problem,
    to_bytes,
)
from tracelm.service.settings import Settings
from tracelm.text.items import Item
from tracelm.tracer import Tracer

NDJSON = "application/x-ndjson"
_JSON = "application/json"
_WINDOW = 64  # items of one batch that are queued at a time
Entry = tuple[Item, bool] | ItemError


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
        self.corrector = Corrector(tracer, settings, self.metrics, self.log)

    def announce(self) -> None:
        """Say in the log under what answers are given."""
        certificate = self.corrector.tracer.certificate
        if certificate is None:
            told = "every override is let through, with no guarantee"
            self.log.event("uncertified", told=told)
        else:
            policy, date = asdict(certificate.policy), certificate.date
            self.log.event("certified", **policy, date=date)

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
        title="tracelm",
        version=tracelm.__version__,
        description="Corrects hallucinations in candidate answers at inference time, by TRACE.",
        docs_url=None,
        redoc_url=None,
        lifespan=_lifespan,
    )
    app.state.service = service
    _add_corrections(app, service.corrector)
    _add_feedback(app, service.corrector)
    _add_probes(app, service)
    add_reference(app)
    _add_refusals(app)
    _secure(app, service.settings)
    routes = {r.path: frozenset(r.methods or ()) for r in app.routes if isinstance(r, APIRoute)}
    read_only = dict.fromkeys(("/openapi.json", SCRIPT, STYLE, ICON), frozenset({"GET"}))
    app.add_middleware(
        Guard,
        routes=routes | read_only,
        settings=service.settings,
        metrics=service.metrics,
        log=service.log,
        traffic=service.traffic,
    )
    return app


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    yield
    app.state.service.close()


def _add_corrections(app: FastAPI, corrector: Corrector) -> None:
    @app.post("/v1/correct", responses=_answers(DecisionAnswer, *_MODEL), operation_id="correct")
    async def correct(body: ItemBody, request: Request) -> Response:
        """Correct the model's choice among the candidates of one prompt."""
        item = body.item()
        future = corrector.start(item, "all" if body.full else "decide")
        decision = await corrector.result(future, _left(request))
        return _json(corrector.told(decision, item, full=body.full, request=_id(request)))

    @app.post(
        "/v1/correct/batch",
        response_class=StreamingResponse,
        responses=_answers(None, *_MODEL) | {200: _STREAM},
        openapi_extra={"requestBody": {"required": True, "content": _BATCH}},
        operation_id="correct_batch",
    )
    async def correct_batch(request: Request) -> Response:
        """Correct many: one line an item, in order, as they are decided.

        An item that fails is a line with its `id` and an `error`, as `{"id", "schema", "error"}`.
        """
        entries = _entries(await request.body(), request.headers.get("content-type", ""))
        first = await _first(corrector, entries)
        lines = _lines(corrector, entries, first, _id(request))
        return StreamingResponse(lines, media_type=NDJSON)

    @app.post("/v1/ask", responses=_answers(AskAnswer, *_MODEL), operation_id="ask")
    async def ask(body: QuestionBody, request: Request) -> Response:
        """Sample answers to a question, and correct among them."""
        sampling = body.model_dump(exclude={"question"})
        asked = await corrector.result(
            corrector.start_asking(body.question, **sampling), _left(request)
        )
        return _json(corrector.told_answer(asked, request=_id(request)))


def _add_feedback(app: FastAPI, corrector: Corrector) -> None:
    codes: tuple[Code, ...] = ("invalid_body", "unknown_answer", "repeated_feedback", "uncertified")

    @app.post("/v1/feedback", responses=_answers(FeedbackAnswer, *codes), operation_id="feedback")
    async def feedback(body: FeedbackBody) -> Response:
        """Say which candidates of an answer were right, by its `feedback_id`.

        Which answers get their label must not depend on whether they were right.
        """
        if corrector.oversight is None:
            told = "nothing is certified here that labels could judge: start with --certificate"
            raise Refusal("uncertified", told)
        right = [body.right] if isinstance(body.right, int) else body.right
        return _json(corrector.oversight.labelled(body.id, right))


def _add_probes(app: FastAPI, service: Service) -> None:
    @app.get("/v1/model", responses=_answers(None), operation_id="model")
    async def model() -> Response:
        """What is served: the model, its constants, the versions, the certificate if it has one.

        `certified` says whether overrides are held to a certificate, `oversight` whether it still
        holds, `shadow` whether answers are the model's own.
        """
        corrector = service.corrector
        overseen = None if corrector.oversight is None else corrector.oversight.describe()
        told = {"version": tracelm.__version__, "shadow": corrector.shadow}
        told |= {"certified": overseen is not None, "oversight": overseen}
        return _json({**corrector.tracer.describe(), **told})

    @app.get("/healthz", responses=_answers(None), operation_id="healthz")
    async def healthz() -> Response:
        """Whether the process answers."""
        return _json({"status": "ok"})

    @app.get("/readyz", responses=_answers(None, "draining"), operation_id="readyz")
    async def readyz() -> Response:
        """Whether items are taken: 503 while the service stops."""
        if service.traffic.draining or not service.corrector.batcher.alive:
            raise Refusal("draining", "the service takes no more items", retry_after=1)
        return _json({"status": "ready"})

    @app.get("/metrics", response_class=PlainTextResponse, operation_id="metrics")
    async def metrics() -> Response:
        """Counters in Prometheus' text format."""
        return Response(service.metrics.text(), media_type=CONTENT_TYPE)


# What a request to the model may meet beside an answer.
_MODEL: tuple[Code, ...] = ("invalid_body", "body_too_large", "queue_full", "model", "deadline")
_STREAM = {
    "description": "One decision or error a line, in the order of the items.",
    "content": {NDJSON: {"schema": {"type": "string"}}},
}
_ITEM_REF = {"$ref": "#/components/schemas/ItemBody"}
_BATCH = {
    _JSON: {
        "schema": {
            "type": "object",
            "title": "BatchBody",
            "required": ["items"],
            "properties": {"items": {"type": "array", "minItems": 1, "items": _ITEM_REF}},
        }
    },
    NDJSON: {"schema": {"type": "string", "description": "One item a line."}},
}


def _answers(model: type | None, *codes: Code) -> dict[int | str, dict[str, Any]]:
    """The answers of a route for OpenAPI: its own, and what every route may say."""
    answers: dict[int | str, dict[str, Any]] = {} if model is None else {200: {"model": model}}
    told: tuple[Code, ...] = ("unauthorised", "forbidden", "internal", *codes)
    for code in told:
        status = Refusal(code, "").status
        answers[status] = {"model": ErrorAnswer, "description": code.replace("_", " ")}
    return answers


def _add_refusals(app: FastAPI) -> None:
    async def refuse(_: Request, error: Exception) -> Response:
        refusal = Refusal.of(error)
        answer = Response(to_bytes(problem(refusal)), refusal.status)
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


def _json(value: dict[str, Any]) -> Response:
    return Response(to_bytes(value), media_type=_JSON)


def _id(request: Request) -> str:
    return str(request.scope["state"]["request"])


def _left(request: Request) -> Any:
    async def left() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    return left


def _entries(body: bytes, content_type: str) -> list[Entry]:
    """The items of a batch, bad ones as their errors.

    Raises:
        Refusal: Not a batch, or one without a single good item.
    """
    try:
        text = body.decode("utf-8")
        if content_type.partition(";")[0].strip().lower() == NDJSON:
            values = [_loads(line) for line in text.split("\n") if line.strip()]
        else:
            values = json.loads(text)["items"]
    except (ValueError, RecursionError, KeyError, TypeError) as error:
        expected = f'expected {{"items": [...]}} as {_JSON}, or one item a line as {NDJSON}'
        raise Refusal("invalid_body", f"{expected}: {type(error).__name__}") from error
    if not isinstance(values, list) or not values:
        raise Refusal("invalid_body", "items is a list of at least one item")
    entries = [parse_item(value, place) for place, value in enumerate(values, start=1)]
    if all(isinstance(entry, ItemError) for entry in entries):
        raise Refusal("item", f"none of {len(entries)} items can be answered; {entries[0]}")
    return entries


def _loads(line: str) -> Any:
    """A line's value; a line that is not JSON is an entry that fails alone."""
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


Started = Future[Decision] | TraceError


async def _start(corrector: Corrector, entry: Entry, *, patient: bool) -> Started:
    if isinstance(entry, ItemError):
        return entry
    item, full = entry
    read = "all" if full else "decide"
    try:
        if patient:
            return await corrector.start_patiently(item, read)  # type: ignore[arg-type]
        return corrector.start(item, read)  # type: ignore[arg-type]
    except TraceError as error:
        return error


async def _first(corrector: Corrector, entries: Sequence[Entry]) -> Started:
    """The first item, started: a full queue refuses the whole batch before its answer begins."""
    first = await _start(corrector, entries[0], patient=False)
    if isinstance(first, Refusal) and first.code in ("queue_full", "draining"):
        raise first
    return first


async def _lines(
    corrector: Corrector, entries: Sequence[Entry], first: Started, request: str
) -> AsyncIterator[bytes]:
    """One line an entry, in order; a window of them is queued, so that a batch leaves room."""
    window: deque[tuple[int, Started]] = deque([(0, first)])
    try:
        for place in range(1, len(entries)):
            while len(window) >= _WINDOW:
                yield await _line(corrector, entries, *window.popleft(), request)
            window.append((place, await _start(corrector, entries[place], patient=True)))
        while window:
            yield await _line(corrector, entries, *window.popleft(), request)
    finally:  # the client may leave in the middle
        for _, started in window:
            if isinstance(started, Future):
                started.cancel()


async def _line(
    corrector: Corrector, entries: Sequence[Entry], place: int, started: Started, request: str
) -> bytes:
    entry = entries[place]
    try:
        if not isinstance(started, Future):
            raise started
        assert not isinstance(entry, ItemError)
        item, full = entry
        decision = await corrector.result(started)
        return to_bytes(corrector.told(decision, item, full=full, request=request)) + b"\n"
    except Exception as error:
        name = entry.item if isinstance(entry, ItemError) else entry[0].id or str(place + 1)
        return to_bytes({"id": name} | problem(error)) + b"\n"
