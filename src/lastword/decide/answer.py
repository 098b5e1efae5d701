"""Answers to questions: choice, score and confidence, all from the same final probabilities.

Probabilities are softmax(scores / T) by the active correction; T is the temperature of the
calibration (method, section 18). Options with the same text share its probability equally.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from jaxtyping import Float
from scipy.special import softmax

from lastword.decide.item import candidates_of
from lastword.records.decision import Decision
from lastword.text.question import Choice, Predicate, Score, Single, Value

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
        candidates: Texts of the options in `trajectory`.
        trajectory: S, if a trajectory probe answers and the plan asks for it [candidates, depths].
    """

    method: str
    likeness: float | None
    deferred: bool = False
    corrected: bool = False
    by: Literal["probe", "model"] | None = None
    model: str | None = None
    candidates: tuple[str, ...] = ()
    trajectory: Float[np.ndarray, "candidates depths"] | None = None


@dataclass(frozen=True, eq=False, kw_only=True)
class _AnswerFields:
    """Fields that every answer has.

    Attributes:
        probabilities: The options' probabilities, in the caller's order; they sum to 1 [options].
        confidence: 0 if all probabilities are equal, 1 if one option has all of it.
        calibrated: True if a certificate's temperature was applied.
        decision: The model's decision with scores, gates and operator, or the probe's.
    """

    probabilities: Probabilities
    confidence: float
    calibrated: bool
    decision: Decision | Probed

    @property
    def probability(self) -> float:
        """The probability of the most probable option."""
        return float(self.probabilities.max())

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

    def _origin(self) -> dict[str, Any]:
        """Return the part of the JSON form that every answer ends with."""
        origin = {name: getattr(self, name) for name in _ORIGIN}
        if isinstance(self.decision, Probed):
            facts = {"likeness": self.decision.likeness, "by": self.decision.by}
            origin |= {name: value for name, value in facts.items() if value is not None}
        return origin


@dataclass(frozen=True, eq=False, kw_only=True)
class ChoiceAnswer(_AnswerFields):
    """The most probable option.

    Attributes:
        choice: The option's value; on ties, the one whose text sorts first by code point. None
            if the question may abstain and the certificate defers.
        values: The values of all options, in the caller's order.
    """

    choice: Value | None
    values: tuple[Value, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {
            "type": "choice",
            "choice": self.choice,
            "probability": self.probability,
            "confidence": self.confidence,
            "probabilities": _by_value(self),
        } | self._origin()


@dataclass(frozen=True, eq=False, kw_only=True)
class PredicateAnswer(_AnswerFields):
    """The probability that the statement holds."""

    @property
    def probability(self) -> float:
        """The probability of yes."""
        return float(self.probabilities[0])

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        entries = {"probability": self.probability, "confidence": self.confidence}
        return {"type": "predicate", **entries} | self._origin()


@dataclass(frozen=True, eq=False, kw_only=True)
class ScoreAnswer(_AnswerFields):
    """The expected level.

    Attributes:
        labels: The levels' labels, from level 0 upwards.
    """

    labels: tuple[str, ...]

    @property
    def score(self) -> float:
        """The expected level, sum_i i p_i, from 0 to the number of levels minus 1."""
        top_level = len(self.probabilities) - 1  # the sum may be rounded to more than this
        return min(float(np.arange(top_level + 1) @ self.probabilities), float(top_level))

    @property
    def level(self) -> int:
        """The most probable level; the lowest on ties."""
        return int(self.probabilities.argmax())

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        pairs = enumerate(zip(self.labels, self.probabilities.tolist(), strict=True))
        each = [{"value": i, "label": label, "probability": p} for i, (label, p) in pairs]
        entries = {"score": self.score, "level": self.level, "confidence": self.confidence}
        return {"type": "score", **entries, "probabilities": each} | self._origin()


SingleAnswer = ChoiceAnswer | PredicateAnswer | ScoreAnswer


@dataclass(frozen=True, eq=False, kw_only=True)
class MultiAnswer:
    """The options that apply, each decided by a predicate.

    Attributes:
        values: The values of all options, in the caller's order.
        predicates: One answer per option, in this order.
    """

    values: tuple[Value, ...]
    predicates: tuple[PredicateAnswer, ...]

    @property
    def choices(self) -> tuple[Value, ...]:
        """The options with a probability above 1/2; possibly none."""
        pairs = zip(self.values, self.probabilities.tolist(), strict=True)
        return tuple(value for value, p in pairs if p > 0.5)

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


def _by_value(answer: ChoiceAnswer | MultiAnswer) -> list[dict[str, Any]]:
    pairs = zip(answer.values, answer.probabilities.tolist(), strict=True)
    return [{"value": value, "probability": p} for value, p in pairs]


QuestionAnswer = SingleAnswer | MultiAnswer


class Answers(dict[str, QuestionAnswer]):
    """The answers about one text by the questions' names, in the questions' order."""

    @property
    def singles(self) -> list["SingleAnswer"]:
        """All single answers; a `MultiAnswer` contributes its predicates."""
        each = (a.predicates if isinstance(a, MultiAnswer) else (a,) for a in self.values())
        return [answer for answers in each for answer in answers]

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {name: answer.to_dict() for name, answer in self.items()}


def answered_by(method: str, operator: str | None = None) -> str:
    """Return the method of an answer, or `model` if its operator does not change the model's."""
    return MODEL if "base" in (method, operator) else method


def answer_of(
    question: Single, decision: Decision, temperature: float | None = None
) -> SingleAnswer:
    """Return the answer to a question from the decision among its candidates.

    Args:
        question: The question.
        decision: The decision on the question's item (see `item_of`).
        temperature: T of a calibration; None means T = 1 and an answer that is not calibrated.
    """
    p = probabilities_of(question, decision.scores, temperature)
    return answer_from(question, p, decision, calibrated=temperature is not None)


def answer_from(
    question: Single, p: Probabilities, decision: Decision | Probed, *, calibrated: bool
) -> SingleAnswer:
    """Return the answer with these final probabilities.

    Args:
        question: The question.
        p: The options' probabilities, in the question's order [options].
        decision: The decision that they come from.
        calibrated: True if they are calibrated.
    """
    common: dict[str, Any] = {"probabilities": p, "calibrated": calibrated, "decision": decision}
    match question:
        case Choice():
            values = tuple(option.value for option in question.options)
            best = [o for o, share in zip(question.options, p, strict=True) if share == p.max()]
            first = min(best, key=lambda option: (option.text, isinstance(option.value, bool)))
            choice = None if question.abstain and decision.deferred else first.value
            return ChoiceAnswer(choice=choice, values=values, confidence=concentration(p), **common)
        case Predicate():
            return PredicateAnswer(confidence=concentration(p), **common)
        case Score():
            labels = tuple(option.text for option in question.options)
            return ScoreAnswer(labels=labels, confidence=order_concentration(p), **common)


def probabilities_of(
    question: Single, scores: Float[np.ndarray, " candidates"], temperature: float | None = None
) -> Probabilities:
    """Return softmax(scores / T) by option; options with the same text share it equally."""
    p = softmax(scores / (temperature or 1.0))
    return by_option(question, dict(zip(candidates_of(question), p, strict=True)))


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


def to_frame(answers: Iterable[Mapping[str, QuestionAnswer]]) -> "pd.DataFrame":
    """Return one row per text: NAME (the answer), NAME.probability, .confidence, .deferred."""
    import pandas as pd

    return pd.DataFrame([row_of(each) for each in answers])


def columns_of(names: Iterable[str]) -> list[str]:
    """Return the column names for the answers to these questions."""
    suffixes = ("", ".probability", ".confidence", ".deferred")
    return [name + suffix for name in names for suffix in suffixes]


def row_of(answers: Mapping[str, QuestionAnswer]) -> dict[str, Any]:
    """Return one text's answers by column."""
    cells = [
        cell
        for answer in answers.values()
        for cell in (value_of(answer), answer.probability, answer.confidence, answer.deferred)
    ]
    return dict(zip(columns_of(answers), cells, strict=True))


def value_of(answer: QuestionAnswer) -> Value | float | None:
    """Return the answer's value: the choice, True if yes is more probable than no, or the score.

    A `MultiAnswer` gives the options that apply, joined by `|`, or None if none applies.
    """
    match answer:
        case ChoiceAnswer():
            return answer.choice
        case MultiAnswer():
            return "|".join(map(str, answer.choices)) or None
        case PredicateAnswer():
            return answer.probability > 0.5
        case ScoreAnswer():
            return answer.score


def words_of(answer: QuestionAnswer) -> str:
    """Return the value as text: the option, yes or no, or the score with two decimals."""
    match value := value_of(answer):
        case bool():
            word = ("no", "yes") if isinstance(answer, PredicateAnswer) else ("false", "true")
            return word[value]
        case str():
            return value
        case float():
            return f"{value:.2f}"
        case None:
            return "none of these"
