"""Questionnaire: a fixed set of questions made ready once, for any number of texts."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from lastword.benchmarks.template import Template, template_name
from lastword.decisions.answer import Answers, answer_of
from lastword.decisions.item import Input, candidates_of, item_of, render, text_of
from lastword.decisions.question import Choice, Predicate, Question, Score
from lastword.decisions.templates import CHAT, DEFAULT, template_of
from lastword.errors import InputError
from lastword.rule.answer import Answer
from lastword.text.items import Item


@dataclass(frozen=True)
class Questionnaire:
    """Questions by name, and what writes their prompts.

    Attributes:
        questions: The questions.
        template: The template.
    """

    questions: Mapping[str, Question]
    template: Template

    @property
    def template_name(self) -> str:
        """The template as a certificate names it."""
        return template_name(self.template.to_dict())

    def items(self, value: Input, id: str | None = None) -> list[Item]:
        """The items of all questions about one input, in order.

        Args:
            value: The input.
            id: Its name, which an error has with the question's.

        Raises:
            InputError: It is no input.
            ItemError: Text that cannot be answered.
        """
        text = text_of(value)
        return [
            item_of(text, question, self.template, id=name if id is None else f"{id}: {name}")
            for name, question in self.questions.items()
        ]

    def answers(self, decisions: Iterable[Answer], temperature: float | None = None) -> Answers:
        """The answers, of the decisions of `items`, in order.

        Args:
            decisions: One a question.
            temperature: Of a calibration, where there is one.
        """
        pairs = zip(self.questions.items(), decisions, strict=True)
        return Answers({n: answer_of(own, made, temperature) for (n, own), made in pairs})


def prepare(
    questions: "Mapping[str, Question] | Questionnaire",
    template: str | None = None,
    *,
    chat: bool = False,
) -> Questionnaire:
    """Questions made ready.

    Args:
        questions: By name.
        template: `decide/plain`, `decide/listed`, `decide/chat`, or a file of Jinja; by whether
            prompts are put into a chat template where it is left out.
        chat: Whether they are, which `decide/chat` needs.

    Raises:
        InputError: No questions, no such template, or one that does not render.
    """
    if isinstance(questions, Questionnaire):
        return questions
    if not isinstance(questions, Mapping) or not questions:
        raise InputError('expected questions by name, such as {"team": Choice(...)}')
    for name, question in questions.items():
        if not isinstance(question, Choice | Predicate | Score):
            kind = type(question).__name__
            raise InputError(f"question {name!r} is {kind}, expected a Choice, Predicate or Score")
    if template == CHAT and not chat:
        raise InputError(
            f"{CHAT} goes into the model's chat template: add --chat (Chat() in Python)"
        )
    questionnaire = Questionnaire(
        dict(questions), template_of(template or (CHAT if chat else DEFAULT))
    )
    for name, question in questionnaire.questions.items():  # what does not render fails here
        Item(render("", question, questionnaire.template), candidates_of(question), id=name)
    return questionnaire
