"""Decider: answers typed questions with a model, a correction of it, or probes."""

import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Literal, cast

from lastword.decide.answer import Answers, MultiAnswer, PredicateAnswer, SingleAnswer, answer_of
from lastword.decide.batch import Read, Scope
from lastword.decide.item import Input, inputs_of, item_of, text_of
from lastword.decide.options import DecideOptions
from lastword.decide.plan import Part, Plan
from lastword.decide.probed import PooledStates, from_depths, from_states, is_sure, state_of
from lastword.decide.questionnaire import Questionnaire, prepare, singles
from lastword.decide.served import NearMissWarning, Served, probe_name
from lastword.decide.states import read_passages
from lastword.decide.templates import template_in_force
from lastword.decide.tracer import (
    OnError,
    Tracer,
    answered,
    encode_valid,
    grouped,
)
from lastword.errors import CertificateError, InputError, ItemError, NonFiniteError
from lastword.methods import certified, correction_of, entry, resolve
from lastword.methods.contract import Method
from lastword.model.encoder import Encoder, installed
from lastword.model.named import published
from lastword.model.options import refuse_unknown
from lastword.probes.probe import Probe
from lastword.probes.stacked import StackedProbe
from lastword.probes.state import OWN
from lastword.probes.trajectory import TrajectoryProbe
from lastword.records.decision import Decision
from lastword.rule.theta import Theta
from lastword.text.items import Item
from lastword.text.passages import Passage
from lastword.text.prompt_template import Blind
from lastword.text.question import Choice, Multi, Question, Single, question_digest
from lastword.text.tokens import EncodedItem
from lastword.trust.certificate import Certificate
from lastword.trust.subject import Subject

TOGETHER = 256  # texts per call of `answer`


class Decider:
    """A model with a correction, a certificate and probes, which answers questions about texts.

    Args:
        tracer: The model.
        correction: The method that decides, by name (`pmi@0.5`) or as a `Method`. By default
            items are corrected by TRACE and questions get the model's answers, unless a
            certificate names a method.
        certificate: A certificate or its file; it limits the overrides that are applied.
        probes: Probes, or their files. Each answers its question.
        readers: Sentence encoders that probes read: an `Encoder`, or what it takes. `minilm` and
            `mpnet` need not be listed.
        unlike: A probe's answer is deferred if the p-value of the text being like the labelled
            texts is below this; in [0, 1].
        template: Prompt template of questions; by default the certificate and `chat` choose it.

    Raises:
        CertificateError: The certificate cannot be read, or is for another model, Theta or chat.
        InputError: `unlike` is not in [0, 1]. A probe cannot be read, is for another model, or has
            too few labels for any text to be below `unlike`; or two probes answer one question.
    """

    def __init__(
        self,
        tracer: Tracer,
        *,
        correction: Method | str | None = None,
        certificate: Certificate | str | Path | None = None,
        probes: Sequence[Probe | str | Path] = (),
        readers: Sequence[Encoder | str | Path] = (),
        unlike: float = 0.0,
        template: str | None = None,
    ) -> None:
        if not 0 <= unlike <= 1:
            raise InputError(f"unlike is a p-value, a number from 0 to 1, not {unlike:g}")
        self.tracer, self.unlike, self.template = tracer, unlike, template
        self.named = correction is not None  # a correction by default decides no questions
        self.correction = _correction_of(correction or "trace", tracer)
        self._probes = _read_probes(probes)
        self.served = Served({}, self._probes)
        if isinstance(certificate, str | Path):
            certificate = Certificate.read(certificate)
        self.certificate = certificate
        if certificate is not None:
            self._obey(certificate)
        for probe in self.probes:
            probe.check(self.subject)
            _check_unlike(probe, unlike)
        self.readers = _readers_of(self.probes, readers)

    @property
    def probes(self) -> list[Probe]:
        """The probes; each answers the question that it was fitted to."""
        return [probe for _, probe in self._probes]

    def serve(self, questions: Mapping[str, Question]) -> None:
        """Replace the served questions by these; the questions of the probes are added."""
        self.served = Served(questions, self._probes)

    def _obey(self, certificate: Certificate) -> None:
        certificate.check(self.subject)
        method = certificate.policy.method
        if (certified_probe := certificate.probe) is not None:
            if certified_probe.digest not in [probe.digest for probe in self.probes]:
                raise CertificateError(
                    f"the certificate is for {method}, a probe: give its file too"
                )
        # TRACE exists already; other methods may need the frozen means of the certificate.
        elif not method == self.correction.name == "trace":
            means, facts = certificate.means, self.tracer.facts
            self.correction = certified(method, means, self.correction, facts)

    @classmethod
    def from_pretrained(cls, model: str | Path | DecideOptions, **options: Any) -> "Decider":
        """Load a model with its correction, certificate and probes.

        Args:
            model: Its name or path as `Tracer.from_pretrained` takes it, or a `DecideOptions`.
            options: Fields of `DecideOptions`: those of `LoadOptions`, and `correction`,
                `certificate`, `probes` and `unlike`.

        Raises:
            InputError: A keyword is not an option. This is checked before anything is loaded.
            ModelError: The checkpoint is missing, unreadable or cannot be used.
            CertificateError: The certificate is for another model.
        """
        if not isinstance(model, DecideOptions):
            refuse_unknown("Decider.from_pretrained", options, DecideOptions)
            model = DecideOptions(model, **options)
        if model.correction is not None:
            entry(model.correction)  # raises for an unknown method before the model is loaded
        return cls.over(Tracer.from_pretrained(model), model)

    @classmethod
    def over(cls, tracer: Tracer, options: DecideOptions) -> "Decider":
        """Return a decider of a loaded model, with these options."""
        return cls(
            tracer,
            correction=options.correction,
            certificate=options.certificate,
            probes=options.probes,
            readers=[
                one if isinstance(one, Encoder) else Encoder(one, options.device)
                for one in options.readers
            ],
            unlike=options.unlike,
        )

    @classmethod
    def demo(cls, name: str = "organism", **options: Any) -> "Decider":
        """Load an embedded model, as `Tracer.demo` does.

        `options` are keyword arguments of `Decider` and fields of `LoadOptions`.
        """
        names = ("correction", "certificate", "probes", "readers", "unlike", "template")
        arguments = {key: options.pop(key) for key in names if key in options}
        return cls(Tracer.demo(name, **options), **arguments)

    @property
    def subject(self) -> Subject:
        """The identity of this model, as certificates and probes store it."""
        return subject_of(self.tracer)

    @property
    def method(self) -> str:
        """The method that answers questions without a probe; `base` for the model."""
        certified = self.certificate is not None and self.certificate.probe is None
        return self.correction.name if self.named or certified else "base"

    @property
    def temperature(self) -> float | None:
        """T of the certificate's calibration; None without one."""
        calibration = None if self.certificate is None else self.certificate.calibration
        return None if calibration is None else calibration.temperature

    def describe(self) -> dict[str, Any]:
        """Return the record of the model, its correction and certificate, as plain JSON values."""
        certificate = None if self.certificate is None else self.certificate.describe()
        description = self.tracer.describe() | {"certificate": certificate}
        if self.correction.name != "trace":
            description["correction"] = self.correction.name
        return description

    def __repr__(self) -> str:
        """Return one line: the model, the certificate, the correction and the probes."""
        parts = [repr(self.tracer)]
        parts += ["certified"] if self.certificate is not None else []
        parts += [] if self.correction.name == "trace" else [f"corrects by {self.correction.name}"]
        parts += [probe.name for probe in self.probes]
        return f"Decider({', '.join(parts)})"

    def __sklearn_clone__(self) -> "Decider":
        """Return itself: clones of a scikit-learn estimator share the model."""
        return self

    # Items

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
        ahead: int = 1024,
        on_error: OnError = "raise",
    ) -> Iterator[Any]:
        """Yield decisions in order, limited by the certificate; see `Tracer.correct_many`."""
        answer = partial(self.correct_encoded, scope=self.scope(read, blind, methods))
        return answered(items, self.encode, answer, ahead, on_error)

    def scope(
        self,
        read: Read = "decide",
        blind: Blind = "base",
        methods: Mapping[str, Method] | None = None,
    ) -> Scope:
        """Return a scope with this decider's correction."""
        return Scope(read, blind, methods or {}, self.correction)

    def encode(self, items: Sequence[Item], first: int = 0) -> list[EncodedItem | ItemError]:
        """Return each item as token ids, or its error; see `Tracer.encode`."""
        results = self.tracer.encode(items, first)
        return [self._applicable(r, first + i) for i, r in enumerate(results)]

    def _applicable(self, encoded: EncodedItem | ItemError, place: int) -> EncodedItem | ItemError:
        if isinstance(encoded, ItemError):
            return encoded
        lack = self.correction.lacks(encoded.blind is not None, bool(encoded.content_free))
        if lack is None:
            return encoded
        name = encoded.item.id or str(place)
        return ItemError(f"{self.correction.name} needs {lack}, and there is none", name)

    def correct_encoded(
        self, encoded: Sequence[EncodedItem], scope: Scope | None = None
    ) -> Iterator[Decision | NonFiniteError]:
        """Yield decisions in the order of the encoded items; batches are computed as needed."""
        return grouped(encoded, self.tracer.plan, partial(self.decide_group, scope=scope))

    def decide_group(
        self, encoded: Sequence[EncodedItem], scope: Scope | None = None
    ) -> list[Decision | NonFiniteError]:
        """Return the decisions of one group, limited by the certificate; see `Tracer`."""
        decisions = self.tracer.decide_group(encoded, scope or self.scope())
        if self.certificate is None:
            return decisions
        obey = self.certificate.obey
        return [one if isinstance(one, NonFiniteError) else obey(one) for one in decisions]

    # Questions

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
        answers: Answers = self.answer([self.plan(input, ready)])[0]
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
            plans = self.plan_many(piece, ready)
            if on_error == "raise":
                for plan in plans:
                    if not isinstance(plan, Plan):
                        raise plan
            results = iter(self.answer([p for p in plans if isinstance(p, Plan)], on_error))
            for plan in plans:
                yield next(results) if isinstance(plan, Plan) else plan

    def prepare(
        self,
        questions: Mapping[str, Question] | Questionnaire,
        *,
        template: str | None = None,
        warn: bool = True,
    ) -> Questionnaire:
        """Check and prepare questions once, for any number of calls of `decide` and `plan`.

        Args:
            questions: As in `decide`.
            template: As in `decide`.
            warn: True to warn of questions that are almost a served one. The result lists them in
                `near`.

        Raises:
            InputError: No questions, no such template, or a question that may abstain although
                neither a certificate nor `unlike` sets a limit.
            CertificateError: The certificate is for another template.
        """
        template, certificate = template or self.template, self.certificate
        if template is None and certificate is not None:
            template = template_in_force(certificate.templates)
        ready = questions
        if not isinstance(ready, Questionnaire):
            ready = prepare(ready, template, chat=self.tracer.chat is not None)
        if certificate is not None:
            certificate.check_template(ready.template_name)
        if (certificate is None or certificate.threshold is None) and not self.unlike:
            for name, question in ready.questions.items():
                if isinstance(question, Choice) and question.abstain:
                    raise InputError(
                        f"question {name!r} may abstain, but no threshold is set: give a "
                        "certificate with one (`lastword certify --error 0.1`), or a probe and "
                        "--unlike 0.01"
                    )
        if ready is questions:
            return ready
        found = {name: self.served.near(question) for name, question in ready.questions.items()}
        near = {name: served for name, served in found.items() if served is not None}
        for name, served in near.items() if warn else ():
            # The warning is about the line that calls `decide`, which called this method.
            warnings.warn(
                f"question {name!r} is almost the served question {served!r}, but answered "
                "without it",
                NearMissWarning,
                stacklevel=3,
            )
        return replace(ready, near=near)

    def plan(
        self,
        input: Input,
        questions: Mapping[str, Question] | Questionnaire,
        *,
        template: str | None = None,
        read: Literal["decide", "all"] = "decide",
        blind: Literal["none", "all"] = "none",
    ) -> Plan:
        """Return the work needed to answer questions about one input, without running the model.

        Args:
            input: As in `decide`.
            questions: As in `decide`.
            template: As in `decide`.
            read: `all` adds the scores at every depth to the answers.
            blind: `all` also reads every depth after the blind prompt.

        Raises:
            InputError: As in `decide`.
            ItemError: As in `decide`.
        """
        ready = self.prepare(questions, template=template, warn=False)
        (plan,) = self.plan_many([(input, None)], ready, read=read, blind=blind)
        if not isinstance(plan, Plan):
            raise plan
        return plan

    def plan_many(
        self,
        inputs: Sequence[tuple[Input, str | None]],
        ready: Questionnaire,
        *,
        read: Literal["decide", "all"] = "decide",
        blind: Literal["none", "all"] = "none",
    ) -> list[Plan | InputError]:
        """Return one plan per input, or the error of an input that cannot be read.

        Args:
            inputs: Inputs with their names.
            ready: The result of `prepare`.
            read: As in `plan`.
            blind: As in `plan`.

        Raises:
            InputError: A probe was fitted with another prompt template.
        """
        probes = {name: self.probe_of(question) for name, question in ready.questions.items()}
        for probe in filter(None, probes.values()):
            probe.check_template(ready.template_name)
        texts: list[str | InputError] = []
        for value, _ in inputs:
            try:
                texts.append(value if isinstance(value, str) else text_of(value))
            except InputError as error:
                texts.append(error)
        named: list[tuple[str, str | None]] = [
            (text, name)
            for text, (_, name) in zip(texts, inputs, strict=True)
            if isinstance(text, str)
        ]
        columns = [
            self._parts(name, single, probes.get(name), named, ready, read, blind)
            for name, single in ready.singles.items()
        ]
        # The columns are per question over the readable texts; plans are per text.
        rows = iter(zip(*columns, strict=True))
        plans: list[Plan | InputError] = []
        for text in texts:
            if not isinstance(text, str):
                plans.append(text)
                continue
            parts = next(rows)
            bad = next((part for part in parts if isinstance(part, ItemError)), None)
            plans.append(bad or Plan(text, ready.questions, parts, trajectory=read == "all"))
        return plans

    def probe_of(self, question: Question) -> Probe | None:
        """Return the probe that answers a question; None if the model does."""
        if isinstance(question, Multi):
            return None
        return next((probe for probe in self.probes if probe.answers(question)), None)

    def _parts(
        self,
        name: str,
        question: Single,
        probe: Probe | None,
        texts: Sequence[tuple[str, str | None]],
        ready: Questionnaire,
        read: Literal["decide", "all"],
        blind: Literal["none", "all"],
    ) -> list[Part | ItemError]:
        """Return one question's part of the plan, for each text."""
        scope, target, with_blind, with_free = self._reading(question, probe, read, blind)
        part = Part(name, question, probe, scope=scope)
        parts: list[Part | ItemError] = [part] * len(texts)
        if scope is not None:
            prompts = {"blind": with_blind, "content_free": with_free}
            items: list[Item | ItemError] = []
            for text, id in texts:
                if probe is None:
                    id = name if id is None else f"{id}: {name}"
                try:
                    items.append(item_of(text, target, ready.template, id=id, **prompts))
                except ItemError as error:
                    items.append(error)
            encode = self.encode if probe is None else self.tracer.encode
            parts = [_with(part, "item", result) for result in encode_valid(items, encode)]
        if probe is None or probe.state is None:
            return parts
        if (pooling := probe.state.pooling) != OWN:
            passages = read_passages(self.tracer, texts, probe.question, ready.template, pooling)
            parts = [_with(p, "passage", q) for p, q in zip(parts, passages, strict=True)]
        if probe.reader is not None:
            sentences = self.readers[probe.reader.model].encode([text for text, _ in texts])
            parts = [_with(p, "sentence", s) for p, s in zip(parts, sentences, strict=True)]
        return parts

    def _reading(
        self,
        question: Single,
        probe: Probe | None,
        read: Literal["decide", "all"],
        blind: Literal["none", "all"],
    ) -> tuple[Scope | None, Question, bool, bool]:
        """Return how the model reads a question.

        Returns:
            The scope, or None if the model's scores are not needed; the question that is asked;
            and True for each kind of prompt without the input that is read too: the blind one, and
            the content-free ones.
        """
        if probe is None:
            needs = self.correction.needs
            decide: Read = "base" if self.method == "base" else "decide"
            scope = self.scope("all" if read == "all" else decide, blind)
            return scope, question, bool(needs.blind) or blind == "all", needs.content_free
        # Probes need the model's scores for their features, or where they are not certain enough.
        if isinstance(probe.fit, TrajectoryProbe):
            methods = resolve(["contextual"], self.tracer.facts)
            return Scope("all", "all", methods), question, True, True
        if isinstance(probe.fit, StackedProbe):
            return Scope("base", "base"), probe.question, True, False
        answers = None if probe.threshold is None else Scope("base", "none")
        return answers, probe.question, False, False

    def answer(self, plans: Sequence[Plan], on_error: OnError = "raise") -> list[Any]:
        """Answer the questions of many plans in one pass.

        Returns:
            `Answers` per plan. With `on_error="return"`, a plan whose states or logits are not
            finite gets its error instead.

        Raises:
            NonFiniteError: States or logits are not finite.
        """
        # Three stages: the states for all probes; the model's scores, except for parts whose probe
        # is certain enough without them; then the answers, probe by probe.
        parts = [part for plan in plans for part in plan.parts]
        states = self._states(parts)
        every_depth = [plan.trajectory for plan in plans for _ in plan.parts]
        sure = [i for i in states if not every_depth[i] and is_sure(parts[i], states[i])]
        decisions = self._decisions(parts, sure)
        answers = {
            place: self._answer_of(part, decisions[place])
            for place, part in enumerate(parts)
            if part.probe is None
        }
        by_probe: dict[int, list[int]] = {}
        for place, part in enumerate(parts):
            if part.probe is not None:
                by_probe.setdefault(id(part.probe), []).append(place)
        for places in by_probe.values():
            probe = parts[places[0]].probe
            assert probe is not None
            probed = (
                from_depths(probe, places, parts, decisions, every_depth)
                if probe.state is None
                else from_states(probe, places, parts, decisions, states, self.unlike)
            )
            answers |= probed
        results: list[Answers | NonFiniteError] = []
        in_order = (answers[place] for place in range(len(parts)))
        for plan in plans:
            named = {part.name: next(in_order) for part in plan.parts}
            fault = next((a for a in named.values() if isinstance(a, NonFiniteError)), None)
            if fault is not None and on_error == "raise":
                raise fault
            results.append(fault or _joined(plan, cast(dict[str, SingleAnswer], named)))
        return results

    def _decisions(
        self, parts: Sequence[Part], sure: Collection[int]
    ) -> dict[int, Decision | NonFiniteError]:
        """Return the model's decisions on all parts with an item, by index, except `sure` ones."""
        # Parts with equal scopes are decided together, whichever plan they belong to.
        places = set(range(len(parts))).difference(sure)
        waiting = [place for place in sorted(places) if parts[place].item is not None]
        decisions: dict[int, Decision | NonFiniteError] = {}
        while waiting:
            first = parts[waiting[0]]
            alike = [i for i in waiting if parts[i].scope == first.scope]
            encoded = [item for i in alike if (item := parts[i].item) is not None]
            # Probes use the model's scores, to which no correction or certificate applies.
            read = self.correct_encoded if first.probe is None else self.tracer.correct_encoded
            assert first.scope is not None
            decisions |= zip(alike, read(encoded, first.scope), strict=True)
            waiting = [i for i in waiting if i not in decisions]
        return decisions

    def _states(self, parts: Sequence[Part]) -> dict[int, PooledStates]:
        """Return the states that probes need, by index: the model's, then the encoder's."""
        passages = {
            i: (part.passage, state_of(part).depth)
            for i, part in enumerate(parts)
            if part.passage is not None
        }
        states = _read_shared(self.tracer, passages)
        for name, encoder in self.readers.items():
            sentences = {
                i: (part.sentence, state_of(part).reader_depth or 0)
                for i, part in enumerate(parts)
                if part.sentence is not None and _reader_of(part) == name
            }
            for i, read in _read_shared(encoder, sentences).items():
                states[i] = replace(states[i], encoded=read) if i in states else read
        return states

    def _answer_of(
        self, part: Part, decision: Decision | NonFiniteError
    ) -> SingleAnswer | NonFiniteError:
        if isinstance(decision, NonFiniteError):
            return decision
        decision = decision.as_base() if self.method == "base" else decision
        certified = () if self.certificate is None else self.certificate.questions
        if not certified or question_digest(part.question) in certified:
            return answer_of(part.question, decision, self.temperature)
        if decision.corrected:
            decision = decision.withhold("the certificate is for another question")
        return answer_of(part.question, replace(decision, deferred=False))


def subject_of(source: Tracer | Encoder) -> Subject:
    """Return the identity of a model or an encoder, as certificates and probes store it."""
    described = source.describe()
    if isinstance(source, Encoder):
        return Subject.of(described | {"theta": Theta().to_dict()})
    return Subject.of(described | {"weights": source.digests})


def _readers_of(
    probes: Sequence[Probe], readers: Sequence[Encoder | str | Path]
) -> dict[str, Encoder]:
    """Return the encoders that probes read, by name.

    A probe's file is untrusted input: it can only cause the loading of encoders in lastword's list.
    """
    encoders = [one if isinstance(one, Encoder) else Encoder(one) for one in readers]
    by_name = {subject_of(encoder).model: encoder for encoder in encoders}
    for probe in probes:
        if probe.reader is None:
            continue
        if (name := probe.reader.model) not in by_name:
            if not installed(name):
                model = published(name)
                how = "name it among the readers" if model is None else model.advice
                raise InputError(
                    f"the probe reads the encoder {name!r}, which was not found: {how}"
                )
            by_name[name] = Encoder(name)
        probe.check_reader(subject_of(by_name[name]))
    return by_name


def _read_shared(
    source: Tracer | Encoder, wanted: Mapping[int, tuple[Passage, int]]
) -> dict[int, PooledStates]:
    """Return the states of passages by index."""
    # Probes that pool the same tokens share one forward pass, up to the deepest of their depths:
    # running further blocks does not change the states at lower depths.
    shared: dict[Passage, list[int]] = {}
    for place, (passage, _) in wanted.items():
        shared.setdefault(passage, []).append(place)
    readings: dict[tuple[int, ...], dict[Passage, list[int]]] = {}
    for passage, places in shared.items():
        chosen = tuple(sorted({wanted[i][1] for i in places}))
        readings.setdefault(chosen, {})[passage] = places
    states: dict[int, PooledStates] = {}
    for chosen, passages in readings.items():
        pooled = source.pooled([*passages], chosen)
        for rows, places in zip(pooled, passages.values(), strict=True):
            states |= {place: PooledStates(rows, chosen) for place in places}
    return states


def _correction_of(correction: Method | str, tracer: Tracer) -> Method:
    return correction_of(correction, tracer.facts) if isinstance(correction, str) else correction


def _read_probes(probes: Sequence[Probe | str | Path]) -> list[tuple[str, Probe]]:
    """Return distinct probes with the names of their files; InputError if two answer alike."""
    by_digest: dict[str, tuple[str, str, Probe]] = {}
    for one in probes:
        probe = one if isinstance(one, Probe) else Probe.read(one)
        name, where = "answer", "the one given"
        if not isinstance(one, Probe):
            name, where = probe_name(one), str(one)
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


def _with(
    part: Part | ItemError, field: str, value: EncodedItem | Passage | ItemError
) -> Part | ItemError:
    """Return the part with a field set; an error of the value takes the part's place."""
    if isinstance(part, ItemError) or isinstance(value, ItemError):
        return value if isinstance(value, ItemError) else part
    return replace(part, **{field: value})  # type: ignore[arg-type]


def _joined(plan: Plan, named: Mapping[str, SingleAnswer]) -> Answers:
    """Return the answers by question; the predicates of a `Multi` become one answer."""
    answers = Answers()
    for name, question in plan.questions.items():
        if isinstance(question, Multi):
            values = tuple(option.value for option in question.options)
            parts = [named[part] for part in singles({name: question})]
            predicates = tuple(one for one in parts if isinstance(one, PredicateAnswer))
            answers[name] = MultiAnswer(values=values, predicates=predicates)
        else:
            answers[name] = named[name]
    return answers


def _check_unlike(probe: Probe, level: float) -> None:
    """Refuse a level below 1/(n+1), the smallest p-value of a probe with n labels."""
    likeness = None if probe.state is None else probe.state.likeness
    if likeness is not None and 0 < level <= likeness.least_p:
        raise InputError(
            f"--unlike {level:g} would never defer an answer of {probe.name}: its "
            f"{len(likeness.distances)} labelled texts allow no p-value below "
            f"{likeness.least_p:.3g}. Use --unlike {likeness.level(level):g}, or label more texts"
        )


def _reader_of(part: Part) -> str | None:
    return None if part.probe is None or part.probe.reader is None else part.probe.reader.model
