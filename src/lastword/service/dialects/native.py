"""The native form: items, batches and labels, the model, and the service's health.

Answers have every reason. A batch comes as JSON or as JSON lines, and is answered as JSON lines.
"""

import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import Any

from fastapi import Response
from fastapi.responses import StreamingResponse
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from lastword.decide.batch import Scope
from lastword.errors import ItemError, TraceError
from lastword.files.strict_json import from_json
from lastword.records.decision import Decision
from lastword.service.call import JSON, Call, ThisCall, json_of, kind_of
from lastword.service.dialect import Dialect, Route
from lastword.service.passes import ModelOrder
from lastword.service.refusal import Refusal
from lastword.service.schema import (
    DecisionAnswer,
    FeedbackAnswer,
    FeedbackBody,
    ItemBody,
    parse_item,
    problem,
    to_bytes,
)
from lastword.service.service import cancel, characters
from lastword.text.items import Item
from lastword.version import __version__

NDJSON = "application/x-ndjson"
_NO_BATCH = f'expected {{"items": [...]}} as {JSON}, or one item a line as {NDJSON}'
# A part of a batch is queued at a time, so that its last item is answered before its deadline.
_WINDOW = 64  # items
_WINDOW_CHARACTERS = 2**17
Entry = tuple[Item, Scope] | ItemError
Started = list[ModelOrder | TraceError]


async def correct(body: ItemBody, call: ThisCall) -> Response:
    """Correct the model's choice among the candidates of one prompt."""
    item = replace(body.item(), truthful=body.truths)
    decision, _ = await call.answer(item, full=body.full, view=body.view)
    return json_of(decision)


async def correct_batch(call: ThisCall) -> Response:
    """Correct many items: one line per item, in order, as soon as it is decided.

    The line of an item that fails has its `id` and an `error`: `{"id", "schema", "error"}`.
    """
    kind, body = kind_of(call.request), await call.request.body()
    service, most = call.service, call.service.settings.batch_limit
    entries = await service.read(call.client, len(body), lambda: read_batch(body, kind, most))
    first = await window_of(call, entries, 0)  # here a stop still refuses the whole batch
    return StreamingResponse(lines_of(call, entries, first), media_type=NDJSON)


async def feedback(body: FeedbackBody, call: ThisCall) -> Response:
    """Label an answer: the right candidates, by its `feedback_id`.

    The choice of the answers that you label must not depend on whether they were right.
    """
    oversight = call.service.oversight
    if oversight is None:
        need = "the service has no certificate that labels could test: start it with --certificate"
        raise Refusal("uncertified", need)
    right = [body.right] if isinstance(body.right, int) else body.right
    return json_of(oversight.labelled(body.id, right, body.group))


async def model(call: ThisCall) -> Response:
    """Describe the model, its constants, the versions, and the certificate if there is one.

    `certified` is true if a certificate limits overrides, and `shadow` if corrections are off.
    `oversight` has the tests of the certificate.
    """
    service = call.service
    oversight = None if service.oversight is None else service.oversight.describe()
    state = {
        "version": __version__,
        "shadow": service.shadow,
        "certified": oversight is not None,
        "oversight": oversight,
    }
    return json_of(service.decider.describe() | state)


async def healthz(call: ThisCall) -> Response:
    """Report that the service lives; 500 if one of its threads has ended."""
    if not call.service.alive and not call.service.traffic.draining:
        raise Refusal("internal", "a thread of the service has ended: restart it")
    return json_of({"status": "ok"})


async def readyz(call: ThisCall) -> Response:
    """Report that items are accepted; 503 while the service stops."""
    if call.service.traffic.draining or not call.service.model.taking:
        raise Refusal("draining", "the service takes no more items", retry_after=1)
    lost = {"log": f"{call.service.log.dropped} lines were dropped: nothing takes them"}
    return json_of({"status": "ready"} | (lost if call.service.log.losing else {}))


async def metrics(call: ThisCall) -> Response:
    """Counters in Prometheus' text format."""
    return Response(call.service.metrics.text(), media_type=CONTENT_TYPE_LATEST)


# Batches


def read_batch(body: bytes, kind: str, limit: int) -> list[Entry]:
    """Return the items of a batch, and errors in the places of invalid ones.

    Raises:
        Refusal: The body is not a batch, has too many items, or only invalid ones.
    """
    if kind == JSON:
        values = _items(body)
    else:
        values = [line for line in body.split(b"\n") if line.strip()]
        if not values:
            raise Refusal("invalid_body", f"{_NO_BATCH}: there is no line")
    if len(values) > limit:
        # Counted before the lines are parsed, which would take most of the time.
        what = f"the batch has more than {limit} items (--limits batch_limit); send it in parts"
        raise Refusal("batch_too_large", what)
    if kind != JSON:
        values = [_loads(line) for line in values]
        if all(isinstance(value, ItemError) for value in values):
            raise Refusal("invalid_body", f"{_NO_BATCH}: line 1: {values[0]}")
    entries = [parse_item(value, place) for place, value in enumerate(values, start=1)]
    if all(isinstance(entry, ItemError) for entry in entries):
        raise Refusal("item", f"none of {len(entries)} items can be answered; {entries[0]}")
    return entries


def _items(body: bytes) -> list[Any]:
    value = _loads(body)
    if isinstance(value, ItemError):
        raise Refusal("invalid_body", f"{_NO_BATCH}: {value}")
    items = value.get("items") if isinstance(value, dict) else None
    if not isinstance(items, list) or not items or len(value) > 1:
        raise Refusal("invalid_body", f"{_NO_BATCH}: items is a list of at least one item, alone")
    return items


def _loads(text: bytes) -> Any:
    """Return the value of a JSON text, or an error that says why it is none."""
    try:
        return from_json(text.decode())
    except UnicodeDecodeError:
        return ItemError("this is not UTF-8")
    except json.JSONDecodeError as error:  # that of a repeated key has no position
        return ItemError(f"not JSON: {error if error.doc else error.msg}")
    except (ValueError, RecursionError):
        return ItemError("not JSON: brackets too deep or numbers too long")


async def lines_of(call: Call, entries: Sequence[Entry], first: Started) -> AsyncIterator[bytes]:
    """Yield one line per entry, in order, and queue one window after the other."""
    started, place = first, 0
    try:
        while started:
            for order in started:
                yield await _line(call, entries[place], place, order)
                place += 1
            started = await window_of(call, entries, place)
    finally:  # the client may leave before the end
        cancel(started)


async def window_of(call: Call, entries: Sequence[Entry], place: int) -> Started:
    """Queue the next items of a batch, as many as can be answered before the deadline.

    Raises:
        Refusal: The service is stopping, and nothing of the batch is answered yet.
    """
    window: list[Entry] = []
    size = 0
    for entry in entries[place : place + _WINDOW]:
        size += 0 if isinstance(entry, ItemError) else characters(entry[0])
        if window and size > _WINDOW_CHARACTERS:
            break
        window.append(entry)
    try:
        return await call.service.start(window, call.client, batch=True)
    except Refusal as refusal:
        if not place:
            raise
        return [e if isinstance(e, ItemError) else refusal for e in window]


async def _line(call: Call, entry: Entry, place: int, order: ModelOrder | TraceError) -> bytes:
    service = call.service
    try:
        decision: Decision = await service.result(order)
        assert not isinstance(entry, ItemError)
        item, scope = entry
        full = scope.read == "all"
        return to_bytes(service.write(decision, item, full=full, request=call.id)) + b"\n"
    except Exception as error:
        # The guard counts only refusals of whole requests.
        call.service.metrics.refusals.labels(Refusal.of(error).code).inc()
        name = entry.item if isinstance(entry, ItemError) else entry[0].id or str(place + 1)
        return to_bytes({"id": name} | problem(error)) + b"\n"


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
_BATCH_EXTRA = {
    "response_class": StreamingResponse,
    "openapi_extra": {"requestBody": {"required": True, "content": _BATCH}},
}

NATIVE = Dialect(
    (
        Route("POST", "/v1/correct", correct, DecisionAnswer),
        Route(
            "POST",
            "/v1/correct/batch",
            correct_batch,
            kinds=(JSON, NDJSON),
            described=_STREAM,
            extra=_BATCH_EXTRA,
        ),
        Route("POST", "/v1/feedback", feedback, FeedbackAnswer, labels=True),
        Route("GET", "/v1/model", model),
    )
)

_TEXT = {"content": {"text/plain": {"schema": {"type": "string"}}}}

PROBES = Dialect(
    (
        Route("GET", "/healthz", healthz, probe=True),
        Route("GET", "/readyz", readyz, probe=True),
        Route("GET", "/metrics", metrics, described=_TEXT, extra={"response_class": Response}),
    )
)
