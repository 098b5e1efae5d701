"""TypeSafe's System One: nouls, choices and scores about a state, for its unchanged client.

docs/decisions.md has the details that TypeSafe's documents leave open.
"""

import json
from collections.abc import Mapping

from fastapi import Response
from pydantic import BaseModel, Field

from lastword.decide.answer import Answer
from lastword.errors import InputError
from lastword.service.call import ThisCall, plain_answer
from lastword.service.dialect import Dialect, routes
from lastword.service.dialects.question_form import answers_by_name, criteria_form, keyed
from lastword.service.refusal import Refusal
from lastword.service.schema import Json, Object, Text
from lastword.text.question import Predicate

ALIAS = "jev-latest"  # the default model of its clients
_TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}


class SystemOneBody(BaseModel, strict=True, extra="ignore"):
    """A state and named questions about it."""

    model: Text = Field(description=f"The model's name here, or `{ALIAS}`.")
    state: Text | Object | list[Json] = Field(description="A text, or JSON.")
    questions: dict[str, Object] = Field(min_length=1, description="By name.")
    assets: Object | None = Field(None, description="Refused: the model reads text alone.")


router = routes()


@router.post("/v1/systemone")
async def system_one(body: SystemOneBody, call: ThisCall) -> Response:
    """Answer questions about a state, in the form of TypeSafe's System One."""
    call.service.require_model(body.model, ALIAS)
    if body.assets:
        raise Refusal("invalid_body", "assets: this model reads text alone; leave images out")
    answers, usage = await answers_by_name(call, body.state, body.questions, _FORM, _answer)
    counts = {"input_tokens": usage.input, "output_tokens": usage.output}
    return plain_answer({"model": call.service.name, "answers": answers, "usage": counts})


def _text(value: Json) -> str:
    if isinstance(value, str):
        return value
    if not isinstance(value, Mapping | list):
        raise InputError(f"expected a text, an object or a list, not {json.dumps(value):.40}")
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


_FORM = criteria_form(_text, "true", "false", optional=True)


def _answer(answer: Answer, question: Object) -> Object:
    if isinstance(answer.question, Predicate):
        return {"type": "noul", "noul": answer.probability}
    return keyed(answer, answer.confidence, question.get("criteria"))


def _form(refusal: Refusal) -> Object:
    if refusal.status == 422:
        return {"detail": [{"loc": ["body"], "msg": str(refusal), "type": refusal.code}]}
    bad = "server_error" if refusal.status >= 500 else "invalid_request_error"
    kind = _TYPES.get(refusal.status, bad)
    return {"detail": {"error_type": kind, "message": str(refusal)}}


TYPESAFE = Dialect(router, _form)
