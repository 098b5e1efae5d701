"""Deciding: typed questions answered on top of a tracer's `correct_many`, or by probes."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from lastword.errors import InputError
from lastword.text.items import Item
from lastword.text.tokens import Chat

if TYPE_CHECKING:
    from lastword.decide.answer import Answers
    from lastword.decide.item import Input
    from lastword.decide.questionnaire import Questionnaire
    from lastword.methods.correction import Correction
    from lastword.probes.probe import Probe
    from lastword.text.question import Question
    from lastword.trust.certificate import Certificate


class Deciding:
    """The part of a tracer that answers questions; the tracer sets the fields.

    Attributes:
        template: Of prompts, where a call names none; the certificate's, else by `chat`, if None.
    """

    template: str | None = None

    chat: Chat | None
    certificate: "Certificate | None"
    correction: "Correction"
    probes: "Sequence[Probe]"
    unlike: float
    named: bool

    def decide(
        self,
        input: "Input",
        questions: "Mapping[str, Question] | Questionnaire",
        *,
        template: str | None = None,
    ) -> "Answers":
        """Return typed answers with probabilities to questions about one input.

        Args:
            input: A text, messages, or other JSON.
            questions: `Choice`, `Predicate` and `Score` by name, or what `prepare` gave.
            template: `decide/plain`, `decide/listed`, `decide/chat`, or a file of Jinja.

        Raises:
            InputError: No input, no questions or no template.
            ItemError: A question that cannot be answered: it does not fit the context.
        """
        from lastword.probes.answering import answers

        return next(answers(self, [(input, None)], self.prepare(questions, template=template)))

    def decide_many(
        self,
        inputs: "Iterable[Input]",
        questions: "Mapping[str, Question] | Questionnaire",
        *,
        template: str | None = None,
    ) -> "Iterator[Answers]":
        """Return answers in the order of the inputs, computed as they are taken; else as `decide`.

        The inputs, a column of a frame too, may be endless; an error names one by its place.
        """
        from lastword.probes.answering import answers

        ready = self.prepare(questions, template=template)
        return answers(self, ((value, str(i)) for i, value in enumerate(inputs)), ready)

    def prepare(
        self, questions: "Mapping[str, Question] | Questionnaire", *, template: str | None = None
    ) -> "Questionnaire":
        """Make questions ready once, for any number of calls of `decide`.

        Raises:
            InputError: No questions or no template; one that may abstain, and nothing says when.
            CertificateError: The certificate is for another template.
        """
        from lastword.decide.questionnaire import prepare
        from lastword.decide.templates import template_in_force
        from lastword.text.question import Choice

        template = template or self.template
        if template is None and self.certificate is not None:
            template = template_in_force(self.certificate.templates)
        ready = prepare(questions, template, chat=self.chat is not None)
        if self.certificate is not None:
            self.certificate.check_template(ready.template_name)
        certified = self.certificate is not None and self.certificate.threshold is not None
        if not certified and not self.unlike:
            for name, question in ready.questions.items():
                if isinstance(question, Choice) and question.abstain:
                    raise InputError(
                        f"question {name!r} may abstain, and nothing says when: give a certificate "
                        "with a threshold (`lastword certify --error 0.1`), or a probe and "
                        "--unlike 0.01"
                    )
        return ready

    @property
    def decider(self) -> str:
        """Name what answers questions: `base`, unless a correction or a certificate is named."""
        return self.correction.name if self.named or self.certificate is not None else "base"

    def trim(self, item: Item) -> Item:
        """Return the item without the prompts that the correction does not read."""
        needs = self.correction.needs
        blind = item.blind_prompt if needs.blind else None
        return replace(
            item, blind_prompt=blind, content_free=item.content_free if needs.content_free else ()
        )

    @property
    def temperature(self) -> float | None:
        """Return T of the certificate's calibration; None without one."""
        calibration = None if self.certificate is None else self.certificate.calibration
        return None if calibration is None else calibration.temperature
