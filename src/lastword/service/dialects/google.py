"""Google's decisions: nouls, choices and scores about an input, for its unchanged client.

It posts to the same path as OpenAI's client; a body whose questions are a map is Google's.
"""

from fastapi import Response
from pydantic import BaseModel, Field

from lastword.decide.answer import Answer
from lastword.service.call import Call, plain_answer
from lastword.service.dialect import Dialect, routes
from lastword.service.dialects.question_form import (
    Content,
    answers_by_name,
    criteria_form,
    keyed,
    text_of_parts,
)
from lastword.service.refusal import Refusal
from lastword.service.schema import Object, Text
from lastword.text.question import Predicate

_MIN_NOUL = 0.01  # the maximum is 1 minus this
_STATUS = {422: 400}  # Google's clients know an invalid body by 400
_STATUSES = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    429: "RESOURCE_EXHAUSTED",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}


class GoogleBody(BaseModel, strict=True, extra="forbid"):
    """An input and questions about it, by name."""

    model: Text = Field(description="The model's name here; `models/` may stand before it.")
    input: Content = Field(description="A text, or parts of it.")
    questions: dict[Text, Object] = Field(min_length=1)


async def google_decisions(body: GoogleBody, call: Call) -> Response:
    """Answer questions about an input, in the form of Google's decisions."""
    call.service.require_model(body.model.removeprefix("models/"))
    value = body.input
    text = value if isinstance(value, str) else "\n".join(part.text for part in value)
    answers, usage = await answers_by_name(call, text, body.questions, _FORM, _answer)
    counts = {
        "total_input_tokens": usage.input,
        "total_output_tokens": usage.output,
        "total_tokens": usage.input + usage.output,
    }
    return plain_answer({"answers": answers, "usage": counts})


_FORM = criteria_form(text_of_parts, "true_description", "false_description", optional=False)


def _answer(answer: Answer, question: Object) -> Object:
    if isinstance(answer.question, Predicate):
        noul = min(max(answer.probability, _MIN_NOUL), 1 - _MIN_NOUL)
        return {"type": "noul", "noul": noul, "confidence": max(noul, 1 - noul)}
    return keyed(answer, answer.probability)


def _form(refusal: Refusal) -> Object:
    status = _STATUS.get(refusal.status, refusal.status)
    name = _STATUSES.get(status, "INTERNAL" if status >= 500 else "INVALID_ARGUMENT")
    return {"error": {"code": status, "message": str(refusal), "status": name}}


# No routes: clients post to OpenAI's `/v1/decisions`, and the header `x-goog-api-key` chooses the
# form of the errors (`openai/routes.py`).
GOOGLE = Dialect(routes(), _form, _STATUS)
