"""The native form: items, batches and labels, the model, and the service's health.

Answers have every reason.
"""

from fastapi import Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from lastword.errors import TraceError
from lastword.service.call import ThisCall, json_of
from lastword.service.dialect import Dialect, routes
from lastword.service.refusal import Refusal
from lastword.service.schema import BatchBody, FeedbackBody, ItemBody, Object, problem
from lastword.version import __version__

_TEXT: dict[int | str, Object] = {200: {"content": {"text/plain": {"schema": {"type": "string"}}}}}
router = routes()


@router.post("/v1/correct")
async def correct(body: ItemBody, call: ThisCall) -> Response:
    """Correct the model's choice among the candidates of one prompt."""
    (answer,) = await call.service.correct([body], call.client, call.id, batch=False)
    if isinstance(answer, TraceError):
        raise answer
    return json_of(answer)


@router.post("/v1/correct/batch")
async def correct_batch(body: BatchBody, call: ThisCall) -> Response:
    """Correct many items; the entry of one that fails has its `id` or place, and an `error`."""
    limit, service = call.service.settings.batch_limit, call.service
    if len(body.items) > limit:
        what = f"the batch has more than {limit} items (--limits batch_limit); send it in parts"
        raise Refusal("batch_too_large", what)
    answers: list[Object] = []
    results = await service.correct(body.items, call.client, call.id, batch=True)
    for place, (item, answer) in enumerate(zip(body.items, results, strict=True)):
        if isinstance(answer, TraceError):
            refusal = Refusal.of(answer)
            service.metrics.refusals.labels(refusal.code).inc()
            name = str(place + 1) if item.id is None else str(item.id)
            answer = {"id": name} | problem(refusal)
        answers.append(answer)
    return json_of({"items": answers})


@router.post("/v1/feedback")
async def feedback(body: FeedbackBody, call: ThisCall) -> Response:
    """Label an answer, chosen without regard to whether it was right, by its `feedback_id`."""
    oversight = call.service.oversight
    if oversight is None:
        need = "the service has no certificate that labels could test: start it with --certificate"
        raise Refusal("uncertified", need)
    right = [body.right] if isinstance(body.right, int) else body.right
    return json_of(oversight.labelled(body.id, right, body.group))


@router.get("/v1/model")
async def model(call: ThisCall) -> Response:
    """Describe the model, its constants, the versions, the certificate and its tests."""
    service = call.service
    oversight = None if service.oversight is None else service.oversight.describe()
    state = {
        "version": __version__,
        "shadow": service.shadow,
        "certified": oversight is not None,
        "oversight": oversight,
    }
    return json_of(service.decider.describe() | state)


@router.get("/healthz")
async def healthz(call: ThisCall) -> Response:
    """Report that the service lives; 500 if the model's queue has ended."""
    if not call.service.line.alive and not call.service.traffic.draining:
        raise Refusal("internal", "the model's queue has ended: restart the service")
    return json_of({"status": "ok"})


@router.get("/readyz")
async def readyz(call: ThisCall) -> Response:
    """Report that items are accepted; 503 while the service stops."""
    if call.service.traffic.draining or not call.service.line.alive:
        raise Refusal("draining", "the service takes no more items", retry_after=1)
    return json_of({"status": "ready"})


@router.get("/metrics", response_class=Response, responses=_TEXT)
async def metrics(call: ThisCall) -> Response:
    """Counters in Prometheus' text format."""
    return Response(generate_latest(call.service.metrics.registry), media_type=CONTENT_TYPE_LATEST)


NATIVE = Dialect(router)
