"""Google's decisions: nouls, choices and scores about an input, for its unchanged client.

It posts to the same path as OpenAI's client; a body whose questions are a map is Google's.
"""

import unicodedata
from typing import Any, Literal

from fastapi import Response
from pydantic import BaseModel, Field

from lastword.decide.answer import PredicateAnswer, SingleAnswer
from lastword.decide.served import Served
from lastword.errors import InputError
from lastword.service.call import Call, plain_answer
from lastword.service.dialect import Dialect
from lastword.service.dialects.criteria import keyed, served_or_new
from lastword.service.questions import ask
from lastword.service.refusal import Refusal
from lastword.service.schema import Text
from lastword.text.question import Choice, Option, Predicate, Question, Score, Single

MOST_QUESTIONS = 1000
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

Content = Text | dict[str, Any] | list[dict[str, Any]]


class NoulCriteria(BaseModel, strict=True, extra="ignore"):
    """When a statement holds, and when it does not."""

    true_description: Text | None = None
    false_description: Text | None = None


class GoogleQuestion(BaseModel, strict=True, extra="ignore"):
    """One question; `criteria` are options by id, levels, or when a statement holds.

    A question that names a served one needs no instructions and no criteria.
    """

    type: Literal["noul", "choice", "score"]
    instructions: Content | None = None
    question: Text | None = Field(None, description="Name of a served question.")
    criteria: dict[Text, Text | None] | list[Text] | None = None

    def resolve(self, served: Served, name: str | None) -> Question:
        """Return the question, or the served one of this name or of the body's.

        Raises:
            InputError: There is no such question, its criteria do not fit its type, or the body
                contradicts it.
        """
        instructions = "" if self.instructions is None else _text(self.instructions)
        name = name or self.question
        if name is None and self.instructions is None:
            raise InputError("instructions are missing")
        return served_or_new(served, name, self.type, instructions, self.criteria, self._new)

    def _new(self, instructions: str) -> Single:
        criteria, instructions = self.criteria, instructions or "-"  # a predicate needs some
        if self.type == "noul" and not isinstance(criteria, list):
            noul = NoulCriteria.model_validate(criteria or {})
            yes, no = noul.true_description or None, noul.false_description or None
            return Predicate(instructions, yes, no)
        if self.type == "choice" and isinstance(criteria, dict):
            for id in criteria:
                if id != id.strip() or any(unicodedata.category(letter) == "Cc" for letter in id):
                    raise InputError(
                        f"option {id!r:.80} has spaces around it or control characters"
                    )
            return Choice(
                instructions,
                [Option(id, description or None) for id, description in criteria.items()],
            )
        if self.type == "score" and isinstance(criteria, list):
            return Score(instructions, [Option(level) for level in criteria])
        kinds = {
            "noul": "an object or none",
            "choice": 'a map of options, such as {"one": "what it means", "other": null}',
            "score": "a list of levels",
        }
        raise InputError(f"criteria of a {self.type} are {kinds[self.type]}")


class GoogleBody(BaseModel, strict=True, extra="forbid"):
    """An input and 1 to 1,000 questions about it, by name."""

    model: Text = Field(description="The model's name here; `models/` may stand before it.")
    input: Content = Field(description="A text, or parts of it.")
    questions: dict[Text, GoogleQuestion] = Field(min_length=1, max_length=MOST_QUESTIONS)


async def google_decisions(body: GoogleBody, call: Call) -> Response:
    """Answer questions about an input, in the form of Google's decisions."""
    model = body.model.removeprefix("models/")
    resolvers = {name: question.resolve for name, question in body.questions.items()}
    answered = await ask(call, model, lambda: _text(body.input), resolvers, most=MOST_QUESTIONS)
    answers = {
        name: _answer(answer) | {"x_lastword": answered.reasons[name]}
        for name, answer in answered.answers.items()
    }
    total = answered.input_tokens + answered.output_tokens
    usage = {
        "total_input_tokens": answered.input_tokens,
        "total_output_tokens": answered.output_tokens,
        "total_tokens": total,
    }
    return plain_answer({"answers": answers, "usage": usage})


def _form(refusal: Refusal) -> dict[str, Any]:
    status = _STATUS.get(refusal.status, refusal.status)
    name = _STATUSES.get(status, "INTERNAL" if status >= 500 else "INVALID_ARGUMENT")
    return {"error": {"code": status, "message": str(refusal), "status": name}}


def _answer(answer: SingleAnswer) -> dict[str, Any]:
    if isinstance(answer, PredicateAnswer):
        noul = min(max(answer.probability, _MIN_NOUL), 1 - _MIN_NOUL)
        return {"type": "noul", "noul": noul, "confidence": max(noul, 1 - noul)}
    return keyed(answer, answer.probability)


def _text(value: Content) -> str:
    if isinstance(value, str):
        return value
    parts = [value] if isinstance(value, dict) else value
    texts = [part.get("text") for part in parts]
    if not texts or not all(isinstance(text, str) for text in texts):
        raise Refusal("invalid_body", "expected a text or parts of type text: only text is read")
    return "\n".join(map(str, texts))


# No routes: clients post to OpenAI's `/v1/decisions`, and the header `x-goog-api-key` chooses the
# form of the errors (`openai/routes.py`).
GOOGLE = Dialect((), _form, _STATUS)
