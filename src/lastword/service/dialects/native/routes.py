"""The native routes: one item, a batch, a label, and the model."""

from dataclasses import replace

from fastapi import Response
from fastapi.responses import StreamingResponse

from lastword.service.call import JSON, ThisCall, json_of, kind_of
from lastword.service.dialect import Dialect, Route
from lastword.service.dialects.native.batch import NDJSON, lines_of, read_batch, window_of
from lastword.service.refusal import Refusal
from lastword.service.schema import DecisionAnswer, FeedbackAnswer, FeedbackBody, ItemBody
from lastword.version import __version__


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
    corrector, most = call.corrector, call.corrector.settings.batch_limit
    entries = await corrector.read(call.client, len(body), lambda: read_batch(body, kind, most))
    first = await window_of(call, entries, 0)  # here a stop still refuses the whole batch
    return StreamingResponse(lines_of(call, entries, first), media_type=NDJSON)


async def feedback(body: FeedbackBody, call: ThisCall) -> Response:
    """Label an answer: the right candidates, by its `feedback_id`.

    The choice of the answers that you label must not depend on whether they were right.
    """
    oversight = call.corrector.oversight
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
    corrector = call.corrector
    oversight = None if corrector.oversight is None else corrector.oversight.describe()
    state = {
        "version": __version__,
        "shadow": corrector.shadow,
        "certified": oversight is not None,
        "oversight": oversight,
    }
    return json_of(corrector.decider.describe() | state)


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
