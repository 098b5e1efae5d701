"""Decider: answers typed questions with a model, a correction of it, or probes."""

import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from lastword.decide.answer import Answer, Answers, joined
from lastword.decide.answerers import (
    Answerer,
    ByLinear,
    ByModel,
    ByTrajectory,
    Query,
    States,
    answers_of,
)
from lastword.decide.batch import Read, Scope
from lastword.decide.item import Input, inputs_of, text_of
from lastword.decide.options import DecideOptions
from lastword.decide.questionnaire import Questionnaire, prepare, singles
from lastword.decide.served import NearMissWarning, Served, read_probes
from lastword.decide.stream import OnError, answered
from lastword.decide.subject import encoders_of, subject_of
from lastword.decide.table_certificate import TableCertificate
from lastword.decide.templates import template_in_force
from lastword.decide.tracer import Tracer
from lastword.errors import CertificateError, InputError, ItemError, NonFiniteError
from lastword.files.strict_json import to_json
from lastword.methods import certified, correction_of, entry
from lastword.methods.contract import Method
from lastword.model import embedded
from lastword.model.encoder import Encoder, load_encoder
from lastword.model.options import refuse_unknown
from lastword.model.weights.identity import text_digest
from lastword.probes.probe import Probe
from lastword.records.decision import Decision
from lastword.text.items import Item
from lastword.text.prompt_template import Blind
from lastword.text.question import Choice, Multi, Question, question_digest
from lastword.text.tokens import EncodedItem
from lastword.trust.certificate import Certificate
from lastword.trust.subject import Predictions, Subject

TOGETHER = 256  # texts per call of `answer`


class Decider:
    """A model with a correction, a certificate and probes, which answers questions about texts.

    Args:
        tracer: The model; None if all probes read sentence encoders alone.
        correction: The method that decides, by name (`pmi@0.5`) or as a `Method`. By default
            items are corrected by TRACE and questions get the model's answers, unless a
            certificate names a method.
        certificate: A certificate or its file. It limits the overrides that are applied, and
            answers below its threshold are deferred, be they the model's or its probe's.
        probes: Probes, or their files. Each answers its question.
        encoders: Sentence encoders that probes read: an `Encoder`, or what it takes. `minilm` and
            `mpnet` need not be listed.
        novelty: A probe's answer is deferred if the p-value of the text being like the labelled
            texts is below this; in [0, 1].
        template: Prompt template of questions; by default the certificate and `chat` choose it.

    Raises:
        CertificateError: The certificate cannot be read, or is for another model, Theta or chat.
        InputError: `novelty` is not in [0, 1]. A probe cannot be read, is for another model, or has
            too few labels for any text to be below `novelty`; or two probes answer one question.
    """

    def __init__(
        self,
        tracer: Tracer | None = None,
        *,
        correction: Method | str | None = None,
        certificate: Certificate | str | Path | None = None,
        probes: Sequence[Probe | str | Path] = (),
        encoders: Sequence[Encoder | str | Path] = (),
        novelty: float = 0.0,
        template: str | None = None,
    ) -> None:
        if not 0 <= novelty <= 1:
            raise InputError(f"novelty is a p-value, a number from 0 to 1, not {novelty:g}")
        if isinstance(certificate, str | Path):
            certificate = Certificate.read(certificate)
        self.novelty, self.template = novelty, template
        self.certificate = certificate
        self._named_probes = read_probes(probes)
        self.probes = [probe for _, probe in self._named_probes]
        self.serve({})
        self._of_table: TableCertificate | None = None
        if certificate is not None and isinstance(certificate.subject, Predictions):
            self._of_table = TableCertificate(certificate, certificate.subject)
            certificate = None  # it allows no overrides, and forbids none
        elif certificate is not None:
            self._check(certificate, tracer)
        self.by_model: ByModel | None = None
        if tracer is not None:
            method = correction or "trace"
            if isinstance(method, str):
                method = correction_of(method, tracer.facts)
            if certificate is not None and certificate.probe is None:
                # Some methods need the frozen means of the certificate.
                policy, means = certificate.policy, certificate.means
                method = certified(policy.method, means, method, tracer.facts)
            named = correction is not None  # a correction by default decides no questions
            self.by_model = ByModel(
                tracer=tracer, correction=method, certificate=certificate, named=named
            )
        self.encoders = encoders_of(self.probes, encoders)
        self._by_probe = [self._answerer(probe, tracer) for probe in self.probes]

    def _check(self, certificate: Certificate, tracer: Tracer | None) -> None:
        """Refuse the certificate of another model, or of a probe that is not here."""
        certified = certificate.probe
        if certified and all(probe.digest != certified.digest for probe in self.probes):
            name = certificate.policy.method
            raise CertificateError(f"the certificate is for {name}, a probe: give its file too")
        if tracer is not None:
            certificate.check(subject_of(tracer))
        elif certified is None:
            raise InputError("the certificate is for a language model: give it (--model)")

    def _answerer(self, probe: Probe, tracer: Tracer | None) -> ByLinear | ByTrajectory:
        if tracer is not None:
            probe.check(subject_of(tracer))
        elif probe.needs_model:
            raise InputError(
                f"{probe.name} needs the language model {probe.subject.model!r:.80}: give it"
            )
        certified = None if self.certificate is None else self.certificate.probe
        is_certified = certified is not None and certified.digest == probe.digest
        least = self.certificate.threshold if self.certificate and is_certified else None
        if probe.linear is None:
            return ByTrajectory(tracer, probe, least)
        encoder = None if probe.encoder is None else self.encoders[probe.encoder.model]
        return ByLinear(
            tracer,
            probe=probe,
            least=least,
            fit=probe.linear,
            encoder=encoder,
            novelty=self.novelty,
        )

    def serve(self, questions: Mapping[str, Question]) -> None:
        """Replace the served questions by these; the questions of the probes are added."""
        self.served = Served(questions, self._named_probes)

    @property
    def _model(self) -> ByModel:
        if self.by_model is None:
            raise InputError("this needs a language model, and the decider has only encoders")
        return self.by_model

    @property
    def tracer(self) -> Tracer:
        """The language model; InputError if there is none, as all probes read encoders."""
        return self._model.tracer

    @property
    def correction(self) -> Method:
        """The correction of items, and of questions if it is named or certified."""
        return self._model.correction

    @classmethod
    def from_pretrained(cls, model: str | Path | DecideOptions | None, **options: Any) -> "Decider":
        """Load a model with its correction, certificate and probes.

        Args:
            model: Its name or path as `Tracer.from_pretrained` takes it, or a `DecideOptions`; None
                or an empty name if all probes read sentence encoders alone.
            options: Fields of `DecideOptions`: those of `LoadOptions`, and `correction`,
                `certificate`, `probes` and `novelty`.

        Raises:
            InputError: A keyword is not an option. This is checked before anything is loaded.
            ModelError: The checkpoint is missing, unreadable or cannot be used.
            CertificateError: The certificate is for another model.
        """
        if model is None:
            return cls(None, **options)
        if not isinstance(model, DecideOptions):
            refuse_unknown("Decider.from_pretrained", options, DecideOptions)
            model = DecideOptions(model, **options)
        if model.correction is not None:
            entry(model.correction)  # raises for an unknown method before the model is loaded
        names = ("correction", "certificate", "probes", "novelty", "template")
        encoders = [
            one if isinstance(one, Encoder) else load_encoder(one, model) for one in model.encoders
        ]
        tracer = Tracer.from_pretrained(model) if model.name else None
        return cls(tracer, encoders=encoders, **{name: getattr(model, name) for name in names})

    @classmethod
    def demo(cls, name: str = "organism", **options: Any) -> "Decider":
        """Load an embedded model, as `Tracer.demo` does; `options` as in `from_pretrained`."""
        return cls.from_pretrained(embedded.EMBEDDED + name, **options)

    @property
    def subject(self) -> Subject:
        """The identity of this model, as certificates and probes store it."""
        return subject_of(self.tracer)

    @property
    def method(self) -> str:
        """The method that answers questions without a probe; `base` for the model."""
        return "base" if self.by_model is None else self.by_model.method

    def describe(self) -> dict[str, Any]:
        """Return the record of the model, its correction and certificate, as plain JSON values."""
        certificate = None if self.certificate is None else self.certificate.describe()
        if self.by_model is None:
            encoders = [encoder.describe() for encoder in self.encoders.values()]
            return {"encoders": encoders, "certificate": certificate}
        description = self.tracer.describe() | {"certificate": certificate}
        if self.correction.name != "trace":
            description["correction"] = self.correction.name
        return description

    def correct(
        self,
        prompt: str | Sequence[Mapping[str, str]],
        candidates: Sequence[str],
        *,
        read: Read = "decide",
        **fields: Any,
    ) -> Decision:
        """Return the corrected choice, limited by the certificate; see `Tracer.correct`."""
        item = Item.from_dict({"prompt": prompt, "candidates": candidates} | fields)
        decision: Decision = next(self.correct_many([item], read=read))
        return decision

    def correct_many(
        self,
        items: Iterable[Any],
        read: Read = "decide",
        methods: Mapping[str, Method] | None = None,
        *,
        blind: Blind = "base",
        **options: Any,
    ) -> Iterator[Any]:
        """Yield decisions in order, limited by the certificate; see `Tracer.correct_many`."""
        decide = partial(self.tracer.correct_encoded, scope=self.scope(read, blind, methods))
        return answered(items, self.encode, decide, **options)

    def scope(
        self,
        read: Read = "decide",
        blind: Blind = "base",
        methods: Mapping[str, Method] | None = None,
    ) -> Scope:
        """Return a scope with this decider's correction and certificate."""
        model = self._model
        return Scope(read, blind, methods or {}, model.correction, certificate=model.certificate)

    def encode(self, items: Sequence[Item], first: int = 0) -> list[EncodedItem | ItemError]:
        """Return each item as token ids, or its error; see `Tracer.encode`."""
        return self.tracer.encode(items, first, self.correction)

    def decide_group(
        self, encoded: Sequence[EncodedItem], scope: Scope | None = None
    ) -> list[Decision | NonFiniteError]:
        """Return the decisions of one group, limited by the certificate; see `Tracer`."""
        return self.tracer.decide_group(encoded, scope or self.scope())

    def decide(
        self,
        input: Input,
        questions: Mapping[str, Question] | Questionnaire,
        *,
        template: str | None = None,
    ) -> Answers:
        """Return typed answers with probabilities to questions about one input.

        Args:
            input: A text, messages, or other JSON.
            questions: `Choice`, `Multi`, `Predicate` and `Score` by name, or the result of
                `prepare`.
            template: `decide/plain`, `decide/listed`, `decide/chat`, or a Jinja file.

        Raises:
            InputError: No input, several texts, no questions, or no such template.
            ItemError: A question cannot be answered, for example because it does not fit the
                context.
        """
        if isinstance(input, list | tuple) and input and all(isinstance(v, str) for v in input):
            raise InputError(
                f"decide answers about one input, and this is a list of {len(input)} texts: use "
                "decide_many"
            )
        ready = self.prepare(questions, template=template)
        answers: Answers
        (answers,) = self._decide([(input, None)], ready, "raise")
        return answers

    def decide_many(
        self,
        inputs: Iterable[Input],
        questions: Mapping[str, Question] | Questionnaire,
        *,
        template: str | None = None,
        on_error: OnError = "raise",
    ) -> Iterator[Any]:
        """Yield the answers to each input, in order; see `decide`.

        The inputs are read as answers are consumed, and may be endless. They may be a column of
        a frame. An error names the input by its index; with `on_error="return"` it is yielded
        instead of the answers.

        Raises:
            InputError: As in `decide`, or the inputs are one text, a dictionary or a whole table.
        """
        ready = self.prepare(questions, template=template)
        rest = ((value, str(place)) for place, value in enumerate(inputs_of(inputs)))
        while piece := list(islice(rest, TOGETHER)):
            yield from self._decide(piece, ready, on_error)

    def _decide(
        self, inputs: Sequence[tuple[Input, str | None]], ready: Questionnaire, on_error: OnError
    ) -> Iterator[Any]:
        plans = self.plan_many(inputs, ready)
        if on_error == "raise" and (bad := [one for one in plans if isinstance(one, InputError)]):
            raise bad[0]
        queries = [query for plan in plans if not isinstance(plan, InputError) for query in plan]
        singles = iter(self.answer(queries))
        for plan in plans:
            if isinstance(plan, InputError):
                yield plan
                continue
            answers = joined(ready.questions, [next(singles) for _ in plan])
            if isinstance(answers, NonFiniteError) and on_error == "raise":
                raise answers
            yield answers

    def prepare(
        self,
        questions: Mapping[str, Question] | Questionnaire,
        *,
        template: str | None = None,
        warn: bool = True,
    ) -> Questionnaire:
        """Check and prepare questions once, for any number of calls of `decide` and `plan`.

        The result lists the questions that are almost a served one in `near`; `warn` warns of them.

        Raises:
            InputError: No questions, no such template, or a question that may abstain although
                neither a certificate nor `novelty` sets a limit.
            CertificateError: The certificate is for another template.
        """
        ready = questions
        if not isinstance(ready, Questionnaire):
            template = template or self.template
            if template is None and self.certificate is not None:
                template = template_in_force(self.certificate.templates)
            chat = self.by_model is not None and self.tracer.chat is not None
            ready = prepare(questions, template, chat=chat)
            served = [(name, self.served.near(one)) for name, one in ready.questions.items()]
            ready = replace(ready, near={name: near for name, near in served if near is not None})
            for name, near in ready.near.items() if warn else ():
                # The warning is about the line that calls `decide`, which called this method.
                text = f"question {name!r} is almost the served question {near!r}, but answered"
                warnings.warn(f"{text} without it", NearMissWarning, stacklevel=3)
        self._admit(ready)
        return ready

    def _admit(self, ready: Questionnaire) -> None:
        """Refuse questions that the certificate is not for, or that may abstain without a limit."""
        certificate = self.certificate
        if self._of_table is not None:
            self._of_table.admit(self.answerers(ready))
        elif certificate is not None and self.by_model is not None:
            certificate.check_template(ready.template_name)
        if self.novelty or (certificate is not None and certificate.threshold is not None):
            return
        for name, question in ready.questions.items():
            if isinstance(question, Choice) and question.abstain:
                raise InputError(
                    f"question {name!r} may abstain, but no threshold is set: give a certificate "
                    "with one (`lastword certify --error 0.1`), or a probe and --novelty 0.01"
                )

    def plan(
        self, input: Input, ready: Questionnaire, read: Read = "decide", blind: Blind = "none"
    ) -> list[Query]:
        """Return the query of each question about one input, without running the model."""
        (queries,) = self.plan_many([(input, None)], ready, read, blind)
        if isinstance(queries, InputError):
            raise queries
        return queries

    def plan_many(
        self,
        inputs: Sequence[tuple[Input, str | None]],
        ready: Questionnaire,
        read: Read = "decide",
        blind: Blind = "none",
    ) -> list[list[Query] | InputError]:
        """Return the queries about each named input, or the error of one that cannot be read.

        With `read="all"` every depth is read, and the model's scores even where a probe is certain.
        """
        texts = [_text_or_error(value) for value, _ in inputs]
        pairs = zip(texts, inputs, strict=True)
        named = [(text, name) for text, (_, name) in pairs if isinstance(text, str)]
        columns = list[list[Query | ItemError]]()
        for name, question in ready.questions.items():
            answerer = self.answerer_of(name, question)
            if answerer.probe is not None:
                answerer.probe.check_template(ready.template_name)
            for part, single in singles({name: question}).items():
                columns.append(answerer.plan(part, single, named, ready.template, read, blind))
        rows, plans = iter(zip(*columns, strict=True)), list[list[Query] | InputError]()
        for text in texts:
            row = next(rows) if isinstance(text, str) else (text,)
            bad = next((one for one in row if isinstance(one, InputError)), None)
            plans.append(bad or [one for one in row if isinstance(one, Query)])
        return plans

    def probe_of(self, question: Question) -> Probe | None:
        """Return the probe that answers a question; None if the model does."""
        if isinstance(question, Multi):
            return None
        return next((probe for probe in self.probes if probe.answers(question)), None)

    def answerer_of(self, name: str, question: Question) -> Answerer:
        """Return the answerer of a question: its probe's, or the model; InputError without one."""
        if (probe := self.probe_of(question)) is not None:
            return self._by_probe[self.probes.index(probe)]
        if self.by_model is None:
            raise InputError(
                f"no probe answers the question {name!r:.80}, and there is no language model: "
                "give one (--model), or ask a probe's question exactly"
            )
        return self.by_model

    def answerers(self, ready: Questionnaire) -> dict[str, Question]:
        """Return each question with one answer, by a digest of all that its answers depend on."""
        digests = dict[str, Question]()
        for name, question in ready.questions.items():
            if isinstance(question, Multi):
                continue
            by: Any = self.answerer_of(name, question).probe
            if by is not None:
                by = by.digest
            else:
                model = self._model
                by = [self.subject.digest, model.method, model.temperature, ready.template.text]
            digests[text_digest(to_json([question_digest(question), by]))] = question
        return digests

    def answer(
        self, queries: Sequence[Query], known: States | None = None
    ) -> list[Answer | NonFiniteError]:
        """Return the answer of each query, or the error of states or logits that are not finite.

        States that are `known` are not computed.
        """
        answers = answers_of(queries, known or {})
        return answers if self._of_table is None else [*map(self._of_table.defer, answers)]


def _text_or_error(value: Input) -> str | InputError:
    try:
        return text_of(value)
    except InputError as error:
        return error
