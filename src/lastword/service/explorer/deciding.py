"""What the page Decide shows of questions about a text, as plain JSON values."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from lastword.batch import Read
from lastword.decisions import (
    Choice,
    ChoiceAnswer,
    Option,
    PredicateAnswer,
    Question,
    ScoreAnswer,
    answer_of,
)
from lastword.decisions.answer import (
    Probabilities,
    QuestionAnswer,
    probabilities_of,
    words_of,
)
from lastword.decisions.question import question_from
from lastword.records.decision import Decision
from lastword.service.correction import Corrector
from lastword.service.deciding import bounded
from lastword.service.schema import Text
from lastword.text.items import Item

# What the page opens on, and offers.
EXAMPLES: tuple[dict[str, Any], ...] = (
    {
        "name": "a ticket",
        "input": "I ordered a lamp two weeks ago and it has not come. I want my money back today!",
        "questions": [
            {
                "type": "choice",
                "instructions": "Which team should answer?",
                "choices": [
                    "billing",
                    {"value": "shipping", "description": "where parcels are"},
                    "repairs",
                    "sales",
                ],
            },
            {"type": "predicate", "instructions": "The customer is angry."},
            {
                "type": "score",
                "instructions": "How urgent is it?",
                "levels": ["can wait", "this week", "today"],
            },
        ],
    },
    {
        "name": "a review",
        "input": "The soup was cold and we waited an hour, but the view over the bay is lovely.",
        "questions": [
            {"type": "predicate", "instructions": "The reviewer would come again."},
            {
                "type": "choice",
                "instructions": "What is praised?",
                "choices": ["the food", "the service", "the price", "the place"],
            },
        ],
    },
)


class DecideBody(BaseModel):
    """What the page asks: a text and questions about it."""

    model_config = ConfigDict(strict=True, extra="forbid")

    model: Text
    input: Text
    questions: list[dict[str, Any]] = Field(min_length=1)

    def asked(self) -> dict[str, Question]:
        """The questions, named by their places.

        Raises:
            InputError: One that is none.
        """
        return {str(i + 1): question_from(q, str(i + 1)) for i, q in enumerate(self.questions)}


class StoryBody(DecideBody):
    """Which of the questions is told depth by depth."""

    place: int = Field(ge=0)


def items_of(corrector: Corrector, body: DecideBody) -> list[Item]:
    """The items of the questions, in order, within the service's bounds.

    Raises:
        Refusal: Too many questions, or too much text.
        TraceError: What cannot be asked.
    """
    return bounded(corrector, body.input, body.asked())


async def decided(
    corrector: Corrector, body: DecideBody, items: Sequence[Item]
) -> list[dict[str, Any]]:
    """The answers in the questions' order, each with what the model says without the text.

    Args:
        corrector: Who answers.
        body: What is asked.
        items: Of its questions (`items_of`).

    Raises:
        Refusal: As `Corrector.start` and `Corrector.result`.
        TraceError: What the model raised.
    """
    promises = []
    try:
        for item in items:
            blind = replace(item, prompt=item.blind_prompt or "")
            reads: tuple[tuple[Item, Read], ...] = ((item, "decide"), (blind, "base"))
            for own, read in reads:
                start = corrector.start_patiently(own, read, id(body), bounded=True)
                promises.append(await start)
        made: list[Decision] = [await corrector.result(promise) for promise in promises]
    finally:
        for promise in promises:
            promise.cancel()
    pairs = zip(body.asked().values(), made[::2], made[1::2], strict=True)
    temperature = corrector.tracer.temperature
    return [
        _told(q, answer_of(q, d, temperature), probabilities_of(q, b.base_scores))
        for q, d, b in pairs
    ]


def _told(question: Question, answer: QuestionAnswer, without: Probabilities) -> dict[str, Any]:
    p = answer.probabilities
    order = np.argsort(-p, kind="stable") if isinstance(question, Choice) else range(len(p))
    options = [
        {
            "text": question.options[i].text,
            "description": question.options[i].description,
            "probability": round(float(p[i]), 4),
            "without": round(float(without[i]), 4),
        }
        for i in order
    ]
    return {
        "type": type(question).__name__.lower(),
        "instructions": question.instructions,
        "said": words_of(answer),
        "sure": _sure(answer),
        "tags": _tags(question, answer, without),
        "options": options,
    }


def _sure(answer: QuestionAnswer) -> str:
    """How sure the answer is."""
    match answer:
        case ChoiceAnswer():
            return f"with probability {answer.probability:.3f}"
        case PredicateAnswer():
            return f"holds with probability {answer.probability:.3f}"
        case ScoreAnswer():
            highest = len(answer.labels) - 1
            likely = f"most probable: {answer.labels[answer.level]}"
            return f"to be expected, of 0 to {highest}; {likely}"


def _tags(
    question: Question, answer: QuestionAnswer, without: Probabilities
) -> Sequence[tuple[str, str]]:
    """What stands beside an answer: its class on the page, and the words."""
    decision = answer.decision
    alone = decision.candidates[decision.base_index]
    calibrated = "calibrated" if answer.calibrated else "not calibrated"
    tags = [("unchanged", f"by {answer.method}"), ("unchanged", f"probabilities {calibrated}")]
    if answer.corrected:
        tags.append(("changed", f"the model alone says {alone}"))
    if _text(question, answer.probabilities) == _text(question, without):
        tags.append(("unchanged", "the same without the text"))
    if answer.deferred:
        tags.append(("failed", "deferred: too unsure for the certificate"))
    return tags


def _text(question: Question, p: Probabilities) -> str:
    """The most probable option; of equals the one whose text comes first."""
    pairs: Mapping[Option, float] = dict(zip(question.options, p.tolist(), strict=True))
    return min(o.text for o, share in pairs.items() if share == max(pairs.values()))
