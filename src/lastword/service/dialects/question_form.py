"""The reader of questions for all dialects, and answers keyed by text."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lastword.decide.answer import Answer
from lastword.decide.served import Served
from lastword.errors import InputError
from lastword.text.question import Choice, Option, Predicate, Question, Score, Single

# The kinds of questions that TypeSafe and Google have in common.
KINDS: dict[str, type[Single]] = {"noul": Predicate, "choice": Choice, "score": Score}
_KEYS = frozenset({"type", "instructions", "question"})
_OPTIONS = ("choices", "levels", "criteria")  # the lists or maps of options in the dialects


@dataclass(frozen=True)
class QuestionForm:
    """A dialect's form of a question.

    Attributes:
        kinds: The kinds of questions by their names in the dialect.
        keys: The keys of a question beside `type`, `instructions` and `question`.
        text: Function that returns instructions as text.
        options: Function that returns the arguments of a new question after its instructions, of
            the kind and the question's JSON; () if the question has no options.
        optional: True if a new question may have no instructions.
    """

    kinds: Mapping[str, type[Single]]
    keys: frozenset[str]
    text: Callable[[Any], str]
    options: Callable[[type[Single], Mapping[str, Any]], Sequence[Any]]
    optional: bool = False

    def resolve(self, question: Mapping[str, Any], served: Served, name: str | None) -> Question:
        """Return a new question, or the served one of this name or of the question's.

        Raises:
            InputError: An unknown key or type, no served question of this name, options that do
                not fit the type, or a contradiction with the served question.
        """
        if unknown := question.keys() - self.keys - _KEYS:
            known = ", ".join(sorted(self.keys | _KEYS))
            raise InputError(f"the key {min(unknown)!r:.80} is not known here; known: {known}")
        kind = self.kinds.get(str(question.get("type")))
        if kind is None:
            names = ", ".join(self.kinds)
            raise InputError(f"type is one of {names}, not {question.get('type')!r:.40}")
        content, name = question.get("instructions"), name or question.get("question")
        instructions = "" if content is None else self.text(content)
        is_asked = name is None or any(question.get(key) for key in _OPTIONS)
        more = self.options(kind, question) if is_asked else ()
        if name is None:
            if content is None and not self.optional:
                raise InputError("instructions are missing")
            return kind(instructions, *more)
        # A predicate without instructions would be refused.
        options = kind(instructions or "-", *more).options if more else ()
        return served.get(str(name), kind, instructions, options)


def refuse_criteria(kind: type[Single]) -> InputError:
    """Return the error of criteria that do not fit the kind of question."""
    forms = {
        Predicate: "a noul are an object or none",
        Choice: 'a choice are a map of options, such as {"one": "what it means", "other": null}',
        Score: "a score are a list of levels",
    }
    return InputError(f"criteria of {forms[kind]}")


def described(options: Mapping[str, Any], text: Callable[[Any], str]) -> list[Option]:
    """Return options from a map of their texts to descriptions or null."""
    return [
        Option(value, None if means in (None, "") else text(means))
        for value, means in options.items()
    ]


def keyed(answer: Answer, confidence: float, levels: Any = None) -> dict[str, Any]:
    """Return a choice or a score with its probabilities by option or level.

    The legend of a score has the request's levels, or the answer's labels without them.
    """
    shares = answer.probabilities.tolist()
    if isinstance(answer.question, Choice):
        probabilities = dict(zip(map(str, answer.values), shares, strict=True))
        written: dict[str, Any] = {"type": "choice", "choice": answer.choice}
        return written | {"probabilities": probabilities, "confidence": confidence}
    return {
        "type": "score",
        "score": answer.score,
        "probabilities": {str(level): share for level, share in enumerate(shares)},
        "confidence": confidence,
        "legend": {str(level): text for level, text in enumerate(levels or answer.values)},
    }
