"""Questionnaire: a fixed set of questions made ready once, for any number of texts."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from lastword.decide.answer import Answers, MultiAnswer, PredicateAnswer, SingleAnswer, answer_of
from lastword.decide.item import Input, candidates_of, item_of, render, text_of
from lastword.decide.templates import CHAT, DEFAULT, template_of
from lastword.errors import InputError
from lastword.rule.answer import Answer, Form
from lastword.text.items import Item
from lastword.text.prompt_template import Template, template_name
from lastword.text.question import Multi, Question, Single, question_digest


@dataclass(frozen=True)
class Questionnaire:
    """Questions by name, and what writes their prompts."""

    questions: Mapping[str, Question]
    template: Template

    @property
    def singles(self) -> dict[str, Single]:
        """The questions of one answer each: of several that may apply a predicate an option."""
        return singles(self.questions)

    @property
    def template_name(self) -> str:
        """The template as a certificate names it."""
        return template_name(self.template.to_dict())

    def items(self, value: Input, id: str | None = None) -> list[Item]:
        """The items of all questions about one input, in order.

        Raises:
            InputError: It is no input.
            ItemError: Text that cannot be answered.
        """
        text = text_of(value)
        return [
            item_of(text, question, self.template, id=name if id is None else f"{id}: {name}")
            for name, question in self.singles.items()
        ]

    def answers(
        self,
        decisions: Iterable[Answer],
        temperature: float | None = None,
        certified: Sequence[str] = (),
    ) -> Answers:
        """Return the answers, of the decisions of `items`, in order.

        Args:
            decisions: One a question.
            temperature: Of a calibration, where there is one.
            certified: Digests of the questions that the certificate in force speaks of; all
                others are answered without it. Where there are none it speaks of any.
        """
        pairs = zip(self.singles.values(), decisions, strict=True)
        made = iter([_answer(*pair, temperature, certified) for pair in pairs])
        answers = Answers()
        for name, question in self.questions.items():
            if isinstance(question, Multi):
                values = tuple(option.value for option in question.options)
                each = islice(made, len(values))
                predicates = tuple(own for own in each if isinstance(own, PredicateAnswer))
                answers[name] = MultiAnswer(values=values, predicates=predicates)
            else:
                answers[name] = next(made)
        return answers


def singles(questions: Mapping[str, Question]) -> dict[str, Single]:
    """Questions of one answer each, by name; NAME: OPTION where several options may apply."""
    parts: dict[str, Single] = {}
    for name, question in questions.items():
        if isinstance(question, Multi):
            each = zip(question.options, question.predicates, strict=True)
            parts |= {f"{name}: {option.value!r}": own for option, own in each}
        else:
            parts[name] = question
    return parts


def _answer(
    question: Single, decision: Answer, temperature: float | None, certified: Sequence[str]
) -> SingleAnswer:
    if speaks_of(question, certified):
        return answer_of(question, decision, temperature)
    return answer_of(question, without_certificate(decision))


def speaks_of(question: Question, certified: Sequence[str]) -> bool:
    """True if a certificate of questions with these digests, or of any, speaks of a question."""
    return not certified or question_digest(question) in certified


def without_certificate(decision: Form) -> Form:
    """Return an answer to a question that the certificate does not speak of: the model's own."""
    if decision.corrected:
        decision = decision.withhold("the certificate is for another question")
    return replace(decision, deferred=False)


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
        if not isinstance(question, Question):
            kind = type(question).__name__
            raise InputError(
                f"question {name!r} is {kind}, expected a Choice, Multi, Predicate or Score"
            )
    if template == CHAT and not chat:
        raise InputError(
            f"{CHAT} goes into the model's chat template: add --chat-template (Chat() in Python)"
        )
    questionnaire = Questionnaire(
        dict(questions), template_of(template or (CHAT if chat else DEFAULT))
    )
    for name, single in questionnaire.singles.items():  # what does not render fails here
        Item(render("", single, questionnaire.template), candidates_of(single), id=name)
    return questionnaire
