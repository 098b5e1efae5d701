"""Served questions, which have a name, and near misses of them.

A probe answers a question only if instructions and options are exactly those that it was fitted
to. A request that differs by one letter gets the model's answer, and a `NearMiss` reports it.
"""

import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from lastword.errors import InputError
from lastword.probes.probe import SUFFIX, Probe
from lastword.probes.trajectory import TrajectoryProbe
from lastword.text.question import Choice, Option, Predicate, Question, Score, question_digest

_ROOM = 64  # texts over twice the longest served one plus this many characters are not normalised


class NearMissWarning(UserWarning):
    """A question almost matches a served one, but is answered without its probe."""


@dataclass(frozen=True)
class NearMiss:
    """The differences of a question from a served one.

    Attributes:
        served: Name of the served question.
        differences: Descriptions by kind of difference: `type`, `instructions`, `options`,
            `order` or `descriptions`.
    """

    served: str
    differences: Mapping[str, str]

    def __str__(self) -> str:
        """Return one line with the served question and the differences."""
        details = "; ".join(self.differences.values())
        return f"almost the served question {self.served!r}, but answered without it: {details}"


@dataclass(frozen=True)
class _Form:
    instructions: str
    options: frozenset[str]


class Served:
    """Questions that a request can refer to by name.

    Args:
        questions: Questions by name, as in a questions file.
        probes: Probes with the names of their files. A probe adds its question under that name,
            unless the question has a name already.
    """

    def __init__(
        self, questions: Mapping[str, Question], probes: Iterable[tuple[str, Probe]] = ()
    ) -> None:
        self.questions = dict(questions)
        self._free = set[str]()  # names of questions whose probe accepts any options
        for name, probe in probes:
            names = [name for name, question in self.questions.items() if probe.answers(question)]
            if not names:
                names = [_new_name(name, self.questions)]
                self.questions[names[0]] = probe.question
            self._free |= {*names} if isinstance(probe.fit, TrajectoryProbe) else set()
        texts = [t for q in self.questions.values() for t in (q.instructions, *_texts(q))]
        self._most = 2 * max(map(len, texts), default=0) + _ROOM
        self._digests = {question_digest(question) for question in self.questions.values()}
        self._forms = {name: self._form(question) for name, question in self.questions.items()}

    def get(
        self,
        name: str,
        kind: type[Question],
        instructions: str = "",
        options: Sequence[Option] = (),
    ) -> Question:
        """Return a served question by its name.

        Args:
            name: Its name.
            kind: The type of question in the request.
            instructions: The request's instructions; blank to use the served ones.
            options: The request's options; () to use the served ones.

        Raises:
            InputError: There is no such question, or the request contradicts it.
        """
        if (served := self.questions.get(name)) is None:
            names = ", ".join(self.questions) or "none"
            raise InputError(f"no question {name!r:.80} is served here; known: {names:.200}")
        requested = options or served.options
        text = instructions if instructions.strip() else served.instructions
        differences = self._differences(
            served, kind, text, served.options if name in self._free else requested
        )
        if differences:
            details = "; ".join(differences.values())
            raise InputError(f"the request contradicts the served question {name!r}: {details}")
        if name in self._free and isinstance(served, Choice):
            return replace(served, choices=requested)
        return served

    def near(self, question: Question) -> NearMiss | None:
        """Return the nearest miss of a question; None if it is served, or similar to none."""
        if not self.questions or question_digest(question) in self._digests:
            return None
        # A difference is looked for in normalised texts, and told in the texts as they are.
        form, misses = self._form(question), list[NearMiss]()
        for name, served in self.questions.items():
            if self._is_near(form, question, name):
                options = served.options if name in self._free else question.options
                text = question.instructions
                differences = self._differences(served, type(question), text, options, exact=True)
                if not differences:
                    return None
                misses.append(NearMiss(name, differences))
        return min(misses, key=lambda miss: len(miss.differences), default=None)

    def _is_near(self, form: _Form, question: Question, name: str) -> bool:
        # Near: equal instructions and a common option, or equal options and type.
        served, its_form = self.questions[name], self._forms[name]
        if form.instructions == its_form.instructions:
            return name in self._free or bool(form.options & its_form.options)
        same = type(question) is type(served) and not isinstance(served, Predicate)
        return same and form.options == its_form.options

    def _differences(
        self,
        served: Question,
        kind: type[Question],
        instructions: str,
        options: Sequence[Option],
        *,
        exact: bool = False,
    ) -> dict[str, str]:
        """Describe the differences from a served question; texts are normalised unless `exact`."""
        form: Callable[[str], str] = str if exact else self.normalised
        differences = {}
        if kind is not type(served):
            differences["type"] = f"it is a {type(served).__name__}, not a {kind.__name__}".lower()
        if form(instructions) != form(served.instructions):
            words = f"{_short(served.instructions)}, not {_short(instructions)}"
            differences["instructions"] = f"its instructions are {words}"
        mine = {form(option.text): option for option in served.options}
        other = {form(option.text): option for option in options}
        missing = [option.text for text, option in mine.items() if text not in other]
        extra = [option.text for text, option in other.items() if text not in mine]
        if missing or extra:
            parts = [f"it has {_names(missing)}"] if missing else []
            parts += [f"it does not have {_names(extra)}"] if extra else []
            differences["options"] = ", and ".join(parts)
        elif isinstance(served, Score) and [*mine] != [*other]:
            differences["order"] = (
                f"the order of its levels is {_names([o.text for o in served.options])}"
            )
        elif changed := [
            mine[text].text
            for text, option in other.items()
            if (exact or option.description) and mine[text].description != option.description
        ]:
            differences["descriptions"] = f"its descriptions of {_names(changed)} are others"
        return differences

    def _form(self, question: Question) -> _Form:
        options = frozenset(map(self.normalised, _texts(question)))
        return _Form(self.normalised(question.instructions), options)

    def normalised(self, text: str) -> str:
        """Return a text in NFKC, casefolded, without repeated spaces and final punctuation.

        A text far longer than any served one is not normalised: NFKC of a hostile text is slow.
        """
        text = " ".join(text.split())
        if len(text) > self._most:
            return text
        text = " ".join(unicodedata.normalize("NFKC", text).casefold().split())
        end = len(text)
        while end and (text[end - 1] == " " or unicodedata.category(text[end - 1])[0] == "P"):
            end -= 1
        return text[:end] or text


def probe_name(path: str | Path) -> str:
    """Return the name of a probe's question: the file's name without its suffix."""
    return Path(path).name.removesuffix(SUFFIX)


def _new_name(name: str, questions: Mapping[str, Question]) -> str:
    names = [name, *(f"{name}-{i}" for i in range(2, len(questions) + 2))]
    return next(one for one in names if one not in questions)


def _texts(question: Question) -> list[str]:
    return [option.text for option in question.options]


def _short(text: str) -> str:
    return repr(text if len(text) <= 80 else f"{text[:77]}...")


def _names(names: Sequence[str]) -> str:
    rest = f" and {len(names) - 4} more" if len(names) > 4 else ""
    return ", ".join(map(_short, names[:4])) + rest
