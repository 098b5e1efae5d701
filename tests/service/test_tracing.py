"""A traced request tells where its time went, and nothing of what was asked."""

import json
from concurrent.futures import ThreadPoolExecutor

import pytest
from families import random_items
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from served import Held, running

from lastword.service.tracing import trace, trace_if_asked

BODY = {"prompt": "w5 w6 w7", "candidates": ["w8 w9", "w10", "w11 w12 w13"]}
STAGES = ["encode", "queue", "readout", "trunk"]


@pytest.fixture
def kept():
    return InMemorySpanExporter()


@pytest.fixture
def mount(kept):
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(kept))
    return lambda app: trace(app, provider)


def requests_of(kept) -> list:
    return [span for span in kept.get_finished_spans() if span.name.startswith("POST")]


def stages_of(kept, request) -> dict:
    """The spans under a request's, by name."""
    under = [
        span
        for span in kept.get_finished_spans()
        if span.parent is not None and span.parent.span_id == request.context.span_id
    ]
    assert all(span.context.trace_id == request.context.trace_id for span in under)
    assert sorted(span.name for span in under) == STAGES
    return {span.name: span for span in under}


def test_a_request_has_a_span_for_each_stage_in_their_order(model, kept, mount):
    with running(model, mount) as served:
        assert served.client.post("/v1/correct", json=BODY).status_code == 200
        served.wait_for(lambda: requests_of(kept))
    (request,) = requests_of(kept)
    assert request.name == "POST /v1/correct"
    stages = stages_of(kept, request)
    times = [
        *(stages["encode"].start_time, stages["encode"].end_time, stages["queue"].start_time),
        *(stages["queue"].end_time, stages["trunk"].start_time, stages["trunk"].end_time),
        *(stages["readout"].start_time, stages["readout"].end_time),
    ]
    assert times == sorted(times)
    assert request.start_time <= times[0] and times[-1] <= request.end_time
    told = json.dumps([span.to_json() for span in kept.get_finished_spans()])
    assert "w8" not in told and "w5" not in told


def test_items_of_one_pass_share_its_spans(model, kept, mount):
    held = Held(model)
    items = random_items(5, 3)
    with running(held, mount) as served, ThreadPoolExecutor(4) as pool:
        held.go.clear()
        pool.submit(served.client.post, "/v1/correct", json=BODY)
        served.wait_for(lambda: held.busy)
        bodies = [{"prompt": i.prompt, "candidates": list(i.candidates)} for i in items]
        for body in bodies:
            pool.submit(served.client.post, "/v1/completions", json=as_completion(body))
        served.wait_for(lambda: served.service.corrector.model.waiting == 3)
        held.go.set()
        served.wait_for(lambda: len(requests_of(kept)) == 4)
    together = [r for r in requests_of(kept) if r.name == "POST /v1/completions"]
    trunks = [stages_of(kept, request)["trunk"] for request in together]
    assert [trunk.attributes["lastword.items"] for trunk in trunks] == [3, 3, 3]
    assert len({(trunk.start_time, trunk.end_time) for trunk in trunks}) == 1


def as_completion(body: dict) -> dict:
    return {"prompt": body["prompt"], "guided_choice": body["candidates"]}


def test_probes_and_scrapes_are_not_traced(model, kept, mount):
    with running(model, mount) as served:
        for path in ("/healthz", "/readyz", "/metrics"):
            served.client.get(path)
        served.client.get("/v1/model")
        served.wait_for(lambda: kept.get_finished_spans())
    assert [span.name for span in kept.get_finished_spans()] == ["GET /v1/model"]


def test_a_caller_that_traces_is_the_parent(model, kept, mount):
    caller = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    with running(model, mount) as served:
        served.client.post("/v1/correct", json=BODY, headers={"traceparent": caller})
        served.wait_for(lambda: requests_of(kept))
    (request,) = requests_of(kept)
    assert f"{request.context.trace_id:032x}" == caller.split("-")[1]


def test_nobody_is_traced_who_has_not_asked(model, monkeypatch):
    for name in ("OTEL_TRACES_EXPORTER", "OTEL_EXPORTER_OTLP_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)
    with running(model, trace_if_asked) as served:
        assert served.client.post("/v1/correct", json=BODY).status_code == 200
        assert not hasattr(served.app, "_is_instrumented_by_opentelemetry")
