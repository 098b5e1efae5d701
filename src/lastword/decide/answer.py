"""Answers to questions: choice, score and confidence, all from the same final probabilities.

Probabilities are softmax(scores / T) by the active correction; T is the temperature of the
calibration (docs/decisions.md). Options with the same text share its probability equally.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from jaxtyping import Float
from scipy.special import softmax

from lastword.decide.item import candidates_of
from lastword.errors import NonFiniteError
from lastword.records.decision import Decision
from lastword.text.question import Choice, Multi, Predicate, Question, Score, Single, Value

Probabilities = Float[np.ndarray, " options"]

MODEL = "model"  # the method of the model's unchanged answers
ERROR = "error"  # the column with the error of a row


@dataclass(frozen=True, eq=False, kw_only=True)
class Answer:
    """The answer to a question.

    Attributes:
        question: The question.
        probabilities: The options' probabilities, in the caller's order [options]. They sum to 1,
            except those of a `Multi`: each of its options has the probability that it applies.
        method: The correction or probe that answered; `model` if the model's answer is unchanged.
        corrected: True if the model's answer was computed and differs.
        deferred: True if the answer is too uncertain to be given, by the certificate or the probe.
        calibrated: True if a certificate's temperature was applied, or a probe answers.
        decision: The model's decision; None for a `Multi`, or if a probe answers without it.
        likeness: Conformal p-value, in (0, 1], of the hypothesis that the text is like those that
            the probe was fitted to; None unless the probe reads states.
        by: `probe` or `model`, the source of the answer; None if the probe always answers.
        trained: True if the probe was fitted to this text.
    """

    question: Question
    probabilities: Probabilities
    method: str
    corrected: bool
    deferred: bool
    calibrated: bool
    decision: Decision | None = None
    likeness: float | None = None
    by: Literal["probe", "model"] | None = None
    trained: bool = False

    @property
    def values(self) -> tuple[Value, ...]:
        """The values of all options, in the caller's order; the labels of a score's levels."""
        return tuple(option.value for option in self.question.options)

    @property
    def choice(self) -> Value | None:
        """The most probable option's value; on ties, the one whose text sorts first.

        None if the question may abstain and the answer is deferred.
        """
        if isinstance(self.question, Choice) and self.question.abstain and self.deferred:
            return None
        p = self.probabilities
        best = [o for o, share in zip(self.question.options, p, strict=True) if share == p.max()]
        return min(best, key=lambda option: (option.text, not isinstance(option.value, str))).value

    @property
    def choices(self) -> tuple[Value, ...]:
        """The options of a `Multi` with a probability above 1/2; possibly none."""
        pairs = zip(self.values, self.probabilities.tolist(), strict=True)
        return tuple(value for value, p in pairs if p > 0.5)

    @property
    def probability(self) -> float:
        """The probability of yes for a predicate, else of the most probable option.

        For a `Multi`, that of the least certain of its answers, be it yes or no.
        """
        p = self.probabilities
        if isinstance(self.question, Multi):
            return float(np.maximum(p, 1 - p).min())
        return float(p[0] if isinstance(self.question, Predicate) else p.max())

    @property
    def confidence(self) -> float:
        """0 if all probabilities are equal, 1 if one option has all of it.

        For a `Multi`, the lowest of its answers.
        """
        if isinstance(self.question, Multi):
            return 2 * self.probability - 1
        ordered = isinstance(self.question, Score)
        return (order_concentration if ordered else concentration)(self.probabilities)

    @property
    def score(self) -> float:
        """The expected level of a score, sum_i i p_i, from 0 to the number of levels minus 1."""
        top_level = len(self.probabilities) - 1  # the sum may be rounded to more than this
        return min(float(np.arange(top_level + 1) @ self.probabilities), float(top_level))

    @property
    def level(self) -> int:
        """The most probable level of a score; the lowest on ties."""
        return int(self.probabilities.argmax())

    @property
    def value(self) -> Value | float | None:
        """The choice, True if yes is more probable than no, or the score.

        For a `Multi`, the options that apply, joined by `|`, or None if none applies.
        """
        match self.question:
            case Choice():
                return self.choice
            case Multi():
                return "|".join(map(str, self.choices)) or None
            case Predicate():
                return self.probability > 0.5
        return self.score

    @property
    def words(self) -> str:
        """The value as text: the option, yes or no, or the score with two decimals."""
        match self.question:
            case Predicate():
                return "yes" if self.value else "no"
            case Score():
                return f"{self.score:.2f}"
            case Choice():
                texts = {option.value: option.text for option in self.question.options}
                return "none of these" if self.choice is None else texts[self.choice]
        return str(self.value or "none of these")

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        numbers = {"probability": self.probability, "confidence": self.confidence}
        pairs = [*zip(self.values, self.probabilities.tolist(), strict=True)]
        shares = {"probabilities": [{"value": value, "probability": p} for value, p in pairs]}
        content: dict[str, Any]
        match self.question:
            case Choice():
                content = {"type": "choice", "choice": self.choice} | numbers | shares
            case Multi():
                content = {"type": "multi", "choices": [*self.choices]} | numbers | shares
            case Predicate():
                content = {"type": "predicate"} | numbers
            case Score():
                content = {"type": "score", "score": self.score, "level": self.level}
                content["confidence"] = self.confidence
                content["probabilities"] = [
                    {"value": i, "label": label, "probability": p}
                    for i, (label, p) in enumerate(pairs)
                ]
        facts = {"likeness": self.likeness, "by": self.by, "trained": self.trained or None}
        origin = ("method", "corrected", "calibrated", "deferred")
        content |= {name: getattr(self, name) for name in origin}
        return content | {name: value for name, value in facts.items() if value is not None}


class Answers(dict[str, Answer]):
    """The answers about one text by the questions' names, in the questions' order."""

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {name: answer.to_dict() for name, answer in self.items()}


def joined(
    questions: Mapping[str, Question], singles: Sequence[Answer | NonFiniteError]
) -> Answers | NonFiniteError:
    """Return the answers by question, or the first error; a `Multi` has one answer per option."""
    sound = [answer for answer in singles if isinstance(answer, Answer)]
    if len(sound) < len(singles):
        return next(error for error in singles if isinstance(error, NonFiniteError))
    answers, rest = Answers(), iter(sound)
    for name, question in questions.items():
        if isinstance(question, Multi):
            answers[name] = several(question, [next(rest) for _ in question.options])
        else:
            answers[name] = next(rest)
    return answers


def several(question: Multi, predicates: Sequence[Answer]) -> Answer:
    """Return the answer to a `Multi` from those to the predicates of its options."""
    methods = [one.method for one in predicates if one.method != MODEL]
    return Answer(
        question=question,
        probabilities=np.array([one.probability for one in predicates]),
        method=methods[0] if methods else MODEL,
        corrected=any(one.corrected for one in predicates),
        deferred=any(one.deferred for one in predicates),
        calibrated=predicates[0].calibrated,
    )


def answered_by(method: str, operator: str | None = None) -> str:
    """Return the method of an answer, or `model` if its operator does not change the model's."""
    return MODEL if "base" in (method, operator) else method


def answer_of(question: Single, decision: Decision, temperature: float | None = None) -> Answer:
    """Return the answer to a question from the decision among its candidates.

    `temperature` is T of a calibration; None means T = 1, and an answer that is not calibrated.
    """
    shares = softmax(decision.scores / (temperature or 1.0))
    return Answer(
        question=question,
        probabilities=by_option(question, dict(zip(candidates_of(question), shares, strict=True))),
        method=answered_by(decision.method, decision.operator),
        corrected=decision.corrected,
        deferred=decision.deferred,
        calibrated=temperature is not None,
        decision=decision,
    )


def by_option(question: Single, p: Mapping[str, float]) -> Probabilities:
    """Return the options' probabilities from those of their texts; 0 for a missing text."""
    texts = [option.text for option in question.options]
    counts = Counter(texts)
    return np.array([p.get(text, 0.0) / counts[text] for text in texts])


def concentration(p: Probabilities) -> float:
    """Return (p_max - 1/n) / (1 - 1/n): 0 for equal probabilities, 1 for a certain option."""
    n = len(p)
    return max(0.0, float((p.max() - 1 / n) / (1 - 1 / n)))


def order_concentration(p: Probabilities) -> float:
    """Return max(0, 1 - sum_i p_i |i - mode| / D).

    D is the mean distance of the levels from their middle, so that a uniform p gives at most 0.
    """
    places = np.arange(len(p))
    spread = np.abs(places - places.mean()).mean()
    return max(0.0, float(1 - p @ np.abs(places - p.argmax()) / spread))


def columns_of(names: Iterable[str]) -> list[str]:
    """Return the column names for the answers to these questions."""
    suffixes = ("", ".probability", ".confidence", ".deferred")
    return [name + suffix for name in names for suffix in suffixes]


def row_of(answers: Mapping[str, Answer]) -> dict[str, Any]:
    """Return one text's answers by column."""
    cells = [
        cell
        for answer in answers.values()
        for cell in (answer.value, answer.probability, answer.confidence, answer.deferred)
    ]
    return dict(zip(columns_of(answers), cells, strict=True))
