"""Flips: whether answers move where nothing has changed that may move them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from lastword.decide.answer import (
    Answers,
    ChoiceAnswer,
    MultiAnswer,
    QuestionAnswer,
    ScoreAnswer,
    value_of,
)
from lastword.decide.item import render
from lastword.decide.questionnaire import Questionnaire
from lastword.text.question import Choice, Question, Value

# Texts of any kind: what is held against one another is answers to the same text.
TEXTS = (
    "I ordered a lamp two weeks ago and it has not come. I want my money back today!",
    "The soup was cold and we waited an hour, but the view over the bay is lovely.",
    "Please send the papers to my new address.",
)


@dataclass(frozen=True)
class Flips:
    """Answers held against their question's alone.

    Attributes:
        flips: How many answers are another option, or another side of one half.
        largest: Largest difference of a probability.
    """

    answers: int
    flips: int
    largest: float


def flips(
    decide: Callable[[str, Questionnaire], Answers],
    ready: Questionnaire,
    texts: Sequence[str] = TEXTS,
) -> Flips:
    """Answers in other company, against the same question's alone.

    All questions together, the same from the last to the first with options from the last to the
    first, and every other question; options keep their order where the template tells it.
    """
    moves = []
    for text in texts:
        alone = {
            name: decide(text, replace(ready, questions={name: own}))[name]
            for name, own in ready.questions.items()
        }
        for asked in _companies(ready):
            answers = decide(text, replace(ready, questions=asked))
            moves += [_move(alone[name], own) for name, own in answers.items()]
    return Flips(len(moves), sum(flip for flip, _ in moves), max(size for _, size in moves))


def _companies(ready: Questionnaire) -> Iterator[Mapping[str, Question]]:
    pairs = [*ready.questions.items()]
    yield dict(pairs)
    yield {name: _turned(own, ready) for name, own in pairs[::-1]}
    yield dict(pairs[::2])


def _turned(question: Question, ready: Questionnaire) -> Question:
    """A choice with its options from the last to the first, where its prompt is the same then."""
    if not isinstance(question, Choice):
        return question
    turned = replace(question, choices=question.options[::-1])
    same = render("", question, ready.template) == render("", turned, ready.template)
    return turned if same else question


def _move(one: QuestionAnswer, other: QuestionAnswer) -> tuple[bool, float]:
    p, q = map(_by_option, (one, other))
    return _said(one) != _said(other), max(abs(p[option] - q[option]) for option in p)


def _said(answer: QuestionAnswer) -> object:
    return answer.level if isinstance(answer, ScoreAnswer) else value_of(answer)


def _by_option(answer: QuestionAnswer) -> dict[Value | int, float]:
    p = answer.probabilities.tolist()
    if isinstance(answer, ChoiceAnswer | MultiAnswer):
        return dict(zip(answer.values, p, strict=True))
    return dict(enumerate(p))
