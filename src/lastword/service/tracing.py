"""OpenTelemetry traces: FastAPI's standard instrumentation, and what the model did inside.

A request's span has four spans under it: `queue`, from its arrival until the model takes it;
`encode` within that; `trunk` and `readout`, which all items of one pass share. Nothing of a prompt
or a candidate is in them.
"""

import os
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI

from lastword.service.passes import Teller

if TYPE_CHECKING:
    from opentelemetry.trace import TracerProvider

EXTRA = "pip install 'lastword[otel]'"
_ASKING = (
    "OTEL_TRACES_EXPORTER",
    "OTEL_EXPORTER_OTLP_ENDPOINT",
    "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
)
_DEFAULTS = {
    "OTEL_SERVICE_NAME": "lastword",
    "OTEL_TRACES_EXPORTER": "otlp",
    "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
    "OTEL_METRICS_EXPORTER": "none",  # Prometheus has them
    "OTEL_LOGS_EXPORTER": "none",
}
_EXCLUDED = "OTEL_PYTHON_FASTAPI_EXCLUDED_URLS"


def trace_if_asked(app: FastAPI) -> None:
    """Trace an application's requests where the standard variables name somebody to send them to.

    The variables speak to every process of a machine, so that one without the extra says in its
    log that it does not trace, and serves.

    Args:
        app: What `create_app` made.
    """
    if not any(os.environ.get(name) for name in _ASKING):
        return
    try:
        from opentelemetry import trace as global_trace
        from opentelemetry.distro import OpenTelemetryConfigurator
    except ImportError:
        app.state.service.log.event("untraced", told=f"OTEL_* variables are set: {EXTRA}")
        return
    for name, value in _DEFAULTS.items():
        os.environ.setdefault(name, value)
    OpenTelemetryConfigurator().configure()
    trace(app, global_trace.get_tracer_provider())


def trace(app: FastAPI, provider: "TracerProvider") -> None:
    """Trace an application's requests.

    Args:
        app: What `create_app` made, before it has answered anything.
        provider: Where the spans go.
    """
    from opentelemetry.instrumentation.fastapi import FastAPIInstrumentor

    quiet = sorted(app.state.service.paths.probes | {"/metrics"})
    FastAPIInstrumentor.instrument_app(
        app,
        tracer_provider=provider,
        excluded_urls=os.environ.get(_EXCLUDED, ",".join(f"{path}$" for path in quiet)),
        exclude_spans=["receive", "send"],
    )
    tracer = provider.get_tracer("lastword")
    app.state.service.corrector.teller = lambda: _teller(tracer)


def _teller(tracer: Any) -> Teller:
    """Writes the stages of one order under the span of the request that is in hand now."""
    from opentelemetry.context import get_current

    parent = get_current()

    def tell(stage: str, begin: int, end: int, items: int) -> None:
        shared = {"lastword.items": items}
        span = tracer.start_span(stage, parent, attributes=shared, start_time=begin)
        span.end(end)

    return tell
