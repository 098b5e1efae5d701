"""Health, readiness and metrics of the service."""

from fastapi import Response

from lastword.service.call import ThisCall, json_of
from lastword.service.dialect import Dialect, Route
from lastword.service.metrics import CONTENT_TYPE
from lastword.service.refusal import Refusal


async def healthz(call: ThisCall) -> Response:
    """Tell whether it lives: 500 where a thread has ended."""
    if not call.corrector.alive and not call.service.traffic.draining:
        raise Refusal("internal", "a thread of the service has ended: restart it")
    return json_of({"status": "ok"})


async def readyz(call: ThisCall) -> Response:
    """Tell whether items are taken: 503 while the service stops."""
    if call.service.traffic.draining or not call.corrector.model.taking:
        raise Refusal("draining", "the service takes no more items", retry_after=1)
    lost = {"log": f"{call.service.log.dropped} lines were dropped: nothing takes them"}
    return json_of({"status": "ready"} | (lost if call.service.log.losing else {}))


async def metrics(call: ThisCall) -> Response:
    """Counters in Prometheus' text format."""
    return Response(call.service.metrics.text(), media_type=CONTENT_TYPE)


_TEXT = {"content": {"text/plain": {"schema": {"type": "string"}}}}

PROBES = Dialect(
    (
        Route("GET", "/healthz", healthz, probe=True),
        Route("GET", "/readyz", readyz, probe=True),
        Route("GET", "/metrics", metrics, described=_TEXT, extra={"response_class": Response}),
    )
)
