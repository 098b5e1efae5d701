"""The reader of questions for all dialects, and the parts that TypeSafe's and Google's share."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from lastword.decide.answer import Answer
from lastword.decide.item import Input
from lastword.decide.served import Served
from lastword.errors import InputError
from lastword.service.call import Call
from lastword.service.questions import Usage, ask
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
        found = served.get(str(name), kind, instructions, options)
        if question.get("abstain") is True and isinstance(found, Choice):
            return replace(found, abstain=True)
        return found


def criteria_form(text: Callable[[Any], str], yes: str, no: str, *, optional: bool) -> QuestionForm:
    """Return the form of questions whose options are their `criteria`.

    Args:
        text: Function that returns instructions, descriptions and levels as text.
        yes: The key of a predicate's criteria that describes yes.
        no: The key that describes no.
        optional: As in `QuestionForm`.
    """

    def options(kind: type[Single], question: Mapping[str, Any]) -> Sequence[Any]:
        criteria = question.get("criteria")
        if kind is Predicate and (criteria is None or isinstance(criteria, Mapping)):
            described = [(criteria or {}).get(name) for name in (yes, no)]
            return [text(means) if means else None for means in described] if criteria else ()
        if kind is Choice and isinstance(criteria, Mapping):
            pairs = criteria.items()
            return [[Option(value, text(means) if means else None) for value, means in pairs]]
        if kind is not Predicate and isinstance(criteria, list):
            return [[Option(text(entry)) for entry in criteria]]
        need = {Predicate: "an object or none", Score: "a list of levels"}
        example = 'a map of options, such as {"one": "what it means", "other": null}'
        name = next(name for name, other in KINDS.items() if other is kind)
        raise InputError(f"criteria of a {name} are {need.get(kind, example)}")

    return QuestionForm(KINDS, frozenset({"criteria"}), text, options, optional)


async def answers_by_name(
    call: Call,
    model: str,
    read_input: Callable[[], Input],
    questions: Mapping[str, Mapping[str, Any]],
    form: QuestionForm,
    written: Callable[[Answer, Mapping[str, Any]], dict[str, Any]],
    aliases: Sequence[str] = (),
) -> tuple[dict[str, Any], Usage]:
    """Answer a map of questions; `written` returns the JSON of an answer to a question."""
    resolvers = {name: partial(form.resolve, one) for name, one in questions.items()}
    answered = await ask(call, model, read_input, resolvers, aliases=aliases)
    answers = {
        name: written(answer, questions[name]) | {"x_lastword": answered.reasons[name]}
        for name, answer in answered.answers.items()
    }
    return answers, answered.usage


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
