"""What the page Decide shows of questions about a text, as plain JSON values."""

from collections.abc import Hashable, Mapping, Sequence
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
    ScoreAnswer,
    answer_of,
    singles,
)
from lastword.decisions.answer import (
    Probabilities,
    SingleAnswer,
    probabilities_of,
    words_of,
)
from lastword.decisions.question import Single, question_from
from lastword.rule.answer import Answer
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

    def asked(self) -> dict[str, Single]:
        """The questions, named by their places; of several that may apply a predicate an option.

        Raises:
            InputError: One that is none.
        """
        names = [str(place) for place in range(1, len(self.questions) + 1)]
        pairs = zip(names, self.questions, strict=True)
        return singles({name: question_from(own, name) for name, own in pairs})


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
    corrector: Corrector, body: DecideBody, items: Sequence[Item], client: Hashable
) -> list[dict[str, Any]]:
    """The answers in the questions' order, each with what the model says without the text.

    Args:
        corrector: Who answers.
        body: What is asked.
        items: Of its questions (`items_of`).
        client: Whose turn they take.

    Raises:
        Refusal: As `Corrector.decide`.
        TraceError: What the model raised.
    """
    plain = corrector.tracer.decider == "base"
    blind = [replace(item, prompt=item.blind_prompt or "") for item in items]
    how: Read = "base" if plain else "decide"
    made = await corrector.decide(items, client, how, batch=True, bounded=True)
    without = await corrector.decide(blind, client, "base", batch=True, bounded=True)
    pairs = zip(body.asked().values(), made, without, strict=True)
    temperature = corrector.tracer.temperature
    return [
        _told(
            q,
            answer_of(q, d.as_base() if plain else d, temperature),
            probabilities_of(q, b.base_scores),
        )
        for q, (d, _), (b, _) in pairs
    ]


def _told(question: Single, answer: SingleAnswer, without: Probabilities) -> dict[str, Any]:
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


def _sure(answer: SingleAnswer) -> str:
    """How sure the answer is; of a predicate the one that is said, be it yes or no."""
    match answer:
        case ChoiceAnswer():
            return f"with probability {answer.probability:.1%}"
        case PredicateAnswer():
            return f"with probability {answer.probabilities.max():.1%}"
        case ScoreAnswer():
            highest = len(answer.labels) - 1
            likely = f"most probable: {answer.labels[answer.level]}"
            return f"to be expected, of 0 to {highest}; {likely}"


def _tags(
    question: Single, answer: SingleAnswer, without: Probabilities
) -> Sequence[tuple[str, str]]:
    """What stands beside an answer: its class on the page, and the words."""
    calibrated = "calibrated" if answer.calibrated else "not calibrated"
    tags = [("unchanged", f"by {answer.method}"), ("unchanged", f"probabilities {calibrated}")]
    if isinstance(answer.decision, Answer) and answer.corrected:
        alone = answer.decision.base_answer
        tags.append(("changed", f"the model alone says {alone}"))
    if _text(question, answer.probabilities) == _text(question, without):
        tags.append(("unchanged", "the same without the text"))
    if answer.deferred:
        tags.append(("failed", "deferred: too unsure for the certificate"))
    return tags


def _text(question: Single, p: Probabilities) -> str:
    """The most probable option; of equals the one whose text comes first."""
    pairs: Mapping[Option, float] = dict(zip(question.options, p.tolist(), strict=True))
    return min(o.text for o, share in pairs.items() if share == max(pairs.values()))
