"""Questionnaire: a fixed set of questions, prepared once for any number of texts."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from lastword.decide.item import item_of
from lastword.decide.templates import CHAT, DEFAULT, TEMPLATES, template_of
from lastword.errors import InputError
from lastword.text.prompt_template import Template, template_name
from lastword.text.question import Multi, Question, Single


@dataclass(frozen=True)
class Questionnaire:
    """Questions by name, their prompt template, and the served question that each is almost."""

    questions: Mapping[str, Question]
    template: Template
    near: Mapping[str, str] = field(default_factory=dict)

    @property
    def singles(self) -> dict[str, Single]:
        """The questions with one answer each; a `Multi` becomes a predicate per option."""
        return singles(self.questions)

    @property
    def template_name(self) -> str:
        """The template's name, as certificates store it."""
        return template_name(self.template.to_dict())


def singles(questions: Mapping[str, Question]) -> dict[str, Single]:
    """Return questions with one answer each, by name; `NAME: OPTION` for those of a `Multi`."""
    parts: dict[str, Single] = {}
    for name, question in questions.items():
        if isinstance(question, Multi):
            each = zip(question.options, question.predicates, strict=True)
            parts |= {f"{name}: {option.value!r}": predicate for option, predicate in each}
        else:
            parts[name] = question
    return parts


def prepare(
    questions: Mapping[str, Question] | Questionnaire,
    template: str | None = None,
    *,
    chat: bool = False,
) -> Questionnaire:
    """Return the questionnaire of some questions."""
    if isinstance(questions, Questionnaire):
        return questions
    if not isinstance(questions, Mapping) or not questions:
        raise InputError('expected questions by name, such as {"team": Choice(...)}')
    for name, question in questions.items():
        if not isinstance(question, Question):
            kind = type(question).__name__
            raise InputError(
                f"question {name!r} is {kind}, expected a Choice, Multi, Predicate or Score"
            )
    if template == CHAT and not chat:
        raise InputError(
            f"{CHAT} goes into the model's chat template: add --chat-template (Chat() in Python)"
        )
    ready = Questionnaire(dict(questions), template_of(template or (CHAT if chat else DEFAULT)))
    if ready.template.name not in TEMPLATES:  # a user's template may fail
        for name, single in ready.singles.items():
            item_of("", single, ready.template, id=name)
    return ready
