"""Served questions, which have a name, and questions that are almost one of them.

A probe answers a question only if instructions and options are exactly those that it was fitted
to. A request that differs by one letter gets the model's answer, so `Served.near` finds it.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from lastword.errors import InputError
from lastword.probes.probe import SUFFIX, Probe
from lastword.probes.trajectory import TrajectoryProbe
from lastword.text.question import Choice, Option, Predicate, Question, Score, question_digest
from lastword.trust.groups import normal


class NearMissWarning(UserWarning):
    """A question is almost a served one, but is answered without its probe."""


class Served:
    """Questions that a request can refer to by name."""

    def __init__(
        self, questions: Mapping[str, Question], probes: Iterable[tuple[str, Probe]] = ()
    ) -> None:
        self.questions = dict(questions)
        self._free = set[str]()  # names of questions whose probe accepts any options
        for name, probe in probes:
            names = [name for name, question in self.questions.items() if probe.answers(question)]
            if not names:
                new = [name, *(f"{name}-{i}" for i in range(2, len(self.questions) + 2))]
                names = [next(one for one in new if one not in self.questions)]
                self.questions[names[0]] = probe.question
            self._free |= {*names} if isinstance(probe.fit, TrajectoryProbe) else set()
        self._digests = {question_digest(question) for question in self.questions.values()}

    def get(
        self,
        name: str,
        kind: type[Question],
        instructions: str = "",
        options: Sequence[Option] = (),
    ) -> Question:
        """Return a served question by its name.

        A request gives its kind of question, and may repeat its instructions and options.
        """
        if (served := self.questions.get(name)) is None:
            names = ", ".join(self.questions) or "none"
            raise InputError(f"no question {name!r:.80} is served here; known: {names:.200}")
        blank = not instructions.strip()
        same = {
            "type": kind is type(served),
            "instructions": blank or normal(instructions) == normal(served.instructions),
            "options": not options or name in self._free or _same_options(options, served),
        }
        if differ := [part for part, equal in same.items() if not equal]:
            raise InputError(
                f"the request contradicts the served question {name!r:.80} in its "
                f"{' and '.join(differ)}: leave them out, or send what /v1/models lists"
            )
        if options and name in self._free and isinstance(served, Choice):
            return replace(served, choices=options)
        return served

    def near(self, question: Question) -> str | None:
        """Return the name of a served question with the same instructions, or the same options.

        None if the question is served exactly, or is not similar to any.
        """
        if question_digest(question) in self._digests:
            return None
        instructions, texts = normal(question.instructions), _texts(question.options).keys()
        for name, served in self.questions.items():
            alike = type(question) is type(served)
            if instructions and instructions == normal(served.instructions):
                exact = question.instructions == served.instructions
                return None if exact and alike and name in self._free else name
            named = alike and not isinstance(served, Predicate)
            if named and texts == _texts(served.options).keys():
                return name
        return None


def _same_options(options: Sequence[Option], served: Question) -> bool:
    """Return True if options, and what they describe, are a question's, in order for levels."""
    other, mine = _texts(options), _texts(served.options)
    if any(text and mine.get(name) != text for name, text in other.items()):
        return False
    return [*mine] == [*other] if isinstance(served, Score) else mine.keys() == other.keys()


def _texts(options: Sequence[Option]) -> dict[str, str | None]:
    return {normal(option.text): option.description for option in options}


def read_probes(probes: Sequence[Probe | str | Path]) -> list[tuple[str, Probe]]:
    """Return distinct probes with the names of their files; InputError if two answer alike."""
    by_digest: dict[str, tuple[str, str, Probe]] = {}
    for one in probes:
        probe = one if isinstance(one, Probe) else Probe.read(one)
        name, where = "answer", "the one given"
        if not isinstance(one, Probe):
            name, where = Path(one).name.removesuffix(SUFFIX), str(one)
        for other, (_, place, former) in by_digest.items():
            # Of two trajectory probes, either answers the other's question, whatever its options.
            answers = former.answers(probe.question) or probe.answers(former.question)
            if answers and other != probe.digest:
                raise InputError(
                    f"two probes answer the question {probe.question.instructions!r:.80}: {place} "
                    f"and {where}. Give one; `probe` in a questions file selects one"
                )
        by_digest.setdefault(probe.digest, (name, where, probe))
    return [(name, probe) for name, _, probe in by_digest.values()]
