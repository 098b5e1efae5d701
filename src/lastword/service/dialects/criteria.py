"""Questions with criteria and answers keyed by text: the parts that TypeSafe and Google share."""

from collections.abc import Callable
from typing import Any

from lastword.decide.answer import ChoiceAnswer, ScoreAnswer
from lastword.decide.served import Served
from lastword.text.question import Choice, Predicate, Question, Score, Single

KINDS: dict[str, type[Single]] = {"noul": Predicate, "choice": Choice, "score": Score}


def served_or_new(
    served: Served,
    name: str | None,
    kind: Any,
    instructions: str,
    criteria: Any,
    make: Callable[[str], Single],
) -> Question:
    """Return the served question of a name, or a new one if there is no name.

    `make` returns a question with the request's criteria and the given instructions.

    Raises:
        InputError: There is no such question, or the request contradicts it.
    """
    if name is None:
        return make(instructions)
    if not criteria and str(kind) in KINDS:
        return served.get(name, KINDS[kind], instructions)
    question = make(instructions or "-")  # a predicate without instructions is refused
    return served.get(name, type(question), instructions, question.options)


def keyed(
    answer: ChoiceAnswer | ScoreAnswer, confidence: float, levels: Any = None
) -> dict[str, Any]:
    """Return a choice or a score with its probabilities by option or level.

    The legend of a score has the request's levels, or the answer's labels without them.
    """
    shares = answer.probabilities.tolist()
    if isinstance(answer, ChoiceAnswer):
        probabilities = dict(zip(map(str, answer.values), shares, strict=True))
        written: dict[str, Any] = {"type": "choice", "choice": answer.choice}
        return written | {"probabilities": probabilities, "confidence": confidence}
    return {
        "type": "score",
        "score": answer.score,
        "probabilities": {str(level): share for level, share in enumerate(shares)},
        "confidence": confidence,
        "legend": {str(level): text for level, text in enumerate(levels or answer.labels)},
    }
