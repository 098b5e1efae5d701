"""Answers to questions: choice, score and confidence, all from the same final probabilities.

Probabilities are softmax(scores / T) by the active correction; T is the temperature of the
calibration (method, section 18). Options with the same text share its probability equally.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from jaxtyping import Float
from scipy.special import softmax

from lastword.decide.item import candidates_of
from lastword.errors import NonFiniteError
from lastword.records.decision import Decision
from lastword.text.question import Choice, Multi, Predicate, Question, Score, Single, Value

if TYPE_CHECKING:
    import pandas as pd

Probabilities = Float[np.ndarray, " options"]

MODEL = "model"  # the method of the model's unchanged answers
ERROR = "error"  # the column with the error of a row
_ORIGIN = ("method", "corrected", "calibrated", "deferred")  # fields of every answer's JSON form


@dataclass(frozen=True, eq=False)
class Probed:
    """The decision behind a probe's answer.

    Attributes:
        method: The probe's name, such as `probe@19`.
        likeness: Conformal p-value, in (0, 1], of the hypothesis that the text is like the
            labelled ones; None if the probe reads no state.
        deferred: True if the text is too unlike them to give an answer.
        corrected: True if the model's answer was computed and differs.
        by: `probe` or `model`, the source of the answer; None if the probe always answers.
        model: Text of the model's answer, if a threshold needed it.
        trained: True if the probe was fitted to this text.
        candidates: Texts of the options in `trajectory`.
        trajectory: S, if a trajectory probe answers [candidates, depths].
    """

    method: str
    likeness: float | None
    deferred: bool = False
    corrected: bool = False
    by: Literal["probe", "model"] | None = None
    model: str | None = None
    trained: bool = False
    candidates: tuple[str, ...] = ()
    trajectory: Float[np.ndarray, "candidates depths"] | None = None


@dataclass(frozen=True, eq=False)
class Answer:
    """The answer to a choice, a predicate or a score.

    Attributes:
        question: The question.
        probabilities: The options' probabilities, in the caller's order; they sum to 1 [options].
        decision: The model's decision with scores, gates and operator, or the probe's.
        calibrated: True if a certificate's temperature was applied, or a probe answers.
    """

    question: Single
    probabilities: Probabilities
    decision: Decision | Probed
    calibrated: bool

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
    def probability(self) -> float:
        """The probability of yes for a predicate, else of the most probable option."""
        p = self.probabilities
        return float(p[0] if isinstance(self.question, Predicate) else p.max())

    @property
    def confidence(self) -> float:
        """0 if all probabilities are equal, 1 if one option has all of it."""
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
        """The choice, True if yes is more probable than no, or the score."""
        if isinstance(self.question, Choice):
            return self.choice
        return self.probability > 0.5 if isinstance(self.question, Predicate) else self.score

    @property
    def words(self) -> str:
        """The value as text: the option, yes or no, or the score with two decimals."""
        if isinstance(self.question, Predicate):
            return "yes" if self.value else "no"
        if isinstance(self.question, Score):
            return f"{self.score:.2f}"
        texts = {option.value: option.text for option in self.question.options}
        return "none of these" if self.choice is None else texts[self.choice]

    @property
    def method(self) -> str:
        """The correction or probe that answered; `model` if the model's answer is unchanged."""
        if isinstance(self.decision, Probed):
            return self.decision.method
        return answered_by(self.decision.method, self.decision.operator)

    @property
    def corrected(self) -> bool:
        """True if the correction changed the model's answer."""
        return self.decision.corrected

    @property
    def deferred(self) -> bool:
        """True if the answer is too uncertain to be given, by the certificate or the probe."""
        return self.decision.deferred

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        numbers = {"probability": self.probability, "confidence": self.confidence}
        content: dict[str, Any]
        match self.question:
            case Choice():
                content = {"type": "choice", "choice": self.choice} | numbers
                content["probabilities"] = _by_value(self)
            case Predicate():
                content = {"type": "predicate"} | numbers
            case Score():
                content = {"type": "score", "score": self.score, "level": self.level}
                content["confidence"] = self.confidence
                rows = enumerate(zip(self.values, self.probabilities.tolist(), strict=True))
                content["probabilities"] = [
                    {"value": i, "label": label, "probability": p} for i, (label, p) in rows
                ]
        return content | {name: getattr(self, name) for name in _ORIGIN} | self._facts()

    def _facts(self) -> dict[str, Any]:
        if not isinstance(self.decision, Probed):
            return {}
        facts = {"likeness": self.decision.likeness, "by": self.decision.by}
        facts |= {"trained": self.decision.trained or None}
        return {name: value for name, value in facts.items() if value is not None}


@dataclass(frozen=True, eq=False)
class MultiAnswer:
    """The options that apply, each decided by a predicate.

    Attributes:
        values: The values of all options, in the caller's order.
        predicates: One answer per option, in this order.
    """

    values: tuple[Value, ...]
    predicates: tuple[Answer, ...]

    @property
    def choices(self) -> tuple[Value, ...]:
        """The options with a probability above 1/2; possibly none."""
        pairs = zip(self.values, self.probabilities.tolist(), strict=True)
        return tuple(value for value, p in pairs if p > 0.5)

    @property
    def value(self) -> str | None:
        """The options that apply, joined by `|`, or None if none applies."""
        return "|".join(map(str, self.choices)) or None

    @property
    def words(self) -> str:
        """The value as text."""
        return self.value or "none of these"

    @property
    def probabilities(self) -> Float[np.ndarray, " options"]:
        """The probability that each option applies, in the caller's order."""
        return np.array([answer.probability for answer in self.predicates])

    @property
    def probability(self) -> float:
        """The probability of the least certain of its answers, be it yes or no."""
        return float(np.maximum(self.probabilities, 1 - self.probabilities).min())

    @property
    def confidence(self) -> float:
        """The lowest confidence of its answers."""
        return min(answer.confidence for answer in self.predicates)

    @property
    def method(self) -> str:
        """The correction that changed an answer; `model` if none did."""
        methods = [answer.method for answer in self.predicates]
        return next((method for method in methods if method != MODEL), MODEL)

    @property
    def corrected(self) -> bool:
        """True if the correction changed whether an option applies."""
        return any(answer.corrected for answer in self.predicates)

    @property
    def calibrated(self) -> bool:
        """True if a certificate's temperature was applied."""
        return self.predicates[0].calibrated

    @property
    def deferred(self) -> bool:
        """True if one of its answers is too uncertain to be given."""
        return any(answer.deferred for answer in self.predicates)

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {
            "type": "multi",
            "choices": list(self.choices),
            "probability": self.probability,
            "confidence": self.confidence,
            "probabilities": _by_value(self),
        } | {name: getattr(self, name) for name in _ORIGIN}


def _by_value(answer: Answer | MultiAnswer) -> list[dict[str, Any]]:
    pairs = zip(answer.values, answer.probabilities.tolist(), strict=True)
    return [{"value": value, "probability": p} for value, p in pairs]


class Answers(dict[str, Answer | MultiAnswer]):
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
            values = tuple(option.value for option in question.options)
            answers[name] = MultiAnswer(values, tuple(next(rest) for _ in values))
        else:
            answers[name] = next(rest)
    return answers


def answered_by(method: str, operator: str | None = None) -> str:
    """Return the method of an answer, or `model` if its operator does not change the model's."""
    return MODEL if "base" in (method, operator) else method


def answer_of(question: Single, decision: Decision, temperature: float | None = None) -> Answer:
    """Return the answer to a question from the decision among its candidates.

    Args:
        question: The question.
        decision: The decision on the question's item (see `item_of`).
        temperature: T of a calibration; None means T = 1 and an answer that is not calibrated.
    """
    shares = softmax(decision.scores / (temperature or 1.0))
    p = by_option(question, dict(zip(candidates_of(question), shares, strict=True)))
    return Answer(question, p, decision, calibrated=temperature is not None)


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


def to_frame(answers: Iterable[Mapping[str, Answer | MultiAnswer]]) -> "pd.DataFrame":
    """Return one row per text: NAME (the answer), NAME.probability, .confidence, .deferred."""
    import pandas as pd

    return pd.DataFrame([row_of(each) for each in answers])


def columns_of(names: Iterable[str]) -> list[str]:
    """Return the column names for the answers to these questions."""
    suffixes = ("", ".probability", ".confidence", ".deferred")
    return [name + suffix for name in names for suffix in suffixes]


def any_trained(answers: Mapping[str, Answer | MultiAnswer]) -> bool:
    """Return True if a probe that was fitted to this very text answers one of the questions."""
    singles = (answer for answer in answers.values() if isinstance(answer, Answer))
    return any(isinstance(a.decision, Probed) and a.decision.trained for a in singles)


def row_of(answers: Mapping[str, Answer | MultiAnswer]) -> dict[str, Any]:
    """Return one text's answers by column."""
    cells = [
        cell
        for answer in answers.values()
        for cell in (answer.value, answer.probability, answer.confidence, answer.deferred)
    ]
    return dict(zip(columns_of(answers), cells, strict=True))
