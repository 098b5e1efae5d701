"""Answerers: a model, or a probe of states or of scores. Each answers some questions.

An answerer first plans the work of a question for many texts, without running a model. It then
answers many works in one pass. `pooled_once` reads the states of all probes before, so that probes
of one text share a forward pass.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from jaxtyping import Float
from scipy.special import softmax

from lastword.decide.answer import Answer, Probed, answer_of, by_option
from lastword.decide.batch import Scope
from lastword.decide.item import Input, candidates_of, item_of, text_of
from lastword.decide.states import read_passages
from lastword.decide.stream import encode_valid
from lastword.decide.tracer import Tracer
from lastword.errors import InputError, ItemError, NonFiniteError
from lastword.methods import resolve
from lastword.methods.contract import Method
from lastword.model.encoder import Encoder
from lastword.probes.probe import Probe
from lastword.probes.state import Block, LinearProbe
from lastword.probes.threshold import answers_by_itself, needs_no_model
from lastword.probes.trajectory import TrajectoryProbe, features_of
from lastword.records.decision import Decision
from lastword.text.items import Item
from lastword.text.prompt_template import Blind, Template
from lastword.text.question import Question, Single, question_digest
from lastword.text.tokens import EncodedItem, Passage
from lastword.trust.certificate import Certificate

Texts = Sequence[tuple[str, str | None]]  # texts with their names
State = Float[np.ndarray, " width"]


@dataclass(frozen=True)
class Reading:
    """The extent of a reading: `whole`, every depth; `blind`, every depth without the input."""

    whole: bool = False
    blind: bool = False


@dataclass(frozen=True)
class StateRead:
    """A state to read: the source, its tokens and the depth."""

    source: Tracer | Encoder
    passage: Passage
    depth: int


@dataclass(frozen=True, eq=False)
class Work:
    """The work of one question about one text, planned by the answerer that does it.

    Attributes:
        name: The question's name.
        text: The text.
        item: The prompt with its options; None if the model's scores are never needed.
        scope: How much of `item` is read.
        reads: The states to read.
        whole: True to read `item` even where the answer does not depend on it.
    """

    name: str
    question: Single
    answerer: "Answerer"
    text: str
    item: EncodedItem | None = None
    scope: Scope | None = None
    reads: tuple[StateRead, ...] = ()
    whole: bool = False

    @property
    def probe(self) -> Probe | None:
        """The probe that answers; None if the model does."""
        return self.answerer.probe

    @property
    def tokens(self) -> int:
        """The number of tokens to compute, in the prompt with its options and in passages."""
        items = 0 if self.item is None else self.item.tokens
        return items + sum(len(read.passage.tokens) for read in self.reads)


@dataclass(eq=False)
class ByScores:
    """Answers by the model's scores of the options; base of the answerers that read nothing else.

    An answerer has the `probe` that answers, or None; `plan`, which needs no model; and `answer`,
    which takes one pass, with the states of `pooled_once`.
    """

    tracer: Tracer

    def answer(
        self, works: Sequence[Work], states: Mapping[StateRead, State]
    ) -> list[Answer | NonFiniteError]:
        """Return the answer of each work."""
        decisions = decisions_of(self.tracer, works)
        return [
            decision if isinstance(decision, NonFiniteError) else self._answer(work, decision)
            for work, decision in zip(works, decisions, strict=True)
        ]

    def _answer(self, work: Work, decision: Decision) -> Answer:
        raise NotImplementedError


@dataclass(eq=False)
class ByModel(ByScores):
    """Answers by the model's scores, with a correction and a certificate.

    Attributes:
        named: True if the user named the correction; questions then get its answers even without
            a certificate.
    """

    correction: Method
    certificate: Certificate | None
    named: bool
    probe: None = None

    @property
    def method(self) -> str:
        """The method that answers; `base` for the model."""
        certified = self.certificate is not None and self.certificate.probe is None
        return self.correction.name if self.named or certified else "base"

    @property
    def temperature(self) -> float | None:
        """T of the certificate's calibration; None without one."""
        calibration = None if self.certificate is None else self.certificate.calibration
        return None if calibration is None else calibration.temperature

    def plan(
        self, name: str, question: Single, texts: Texts, template: Template, reading: Reading
    ) -> list[Work | ItemError]:
        """Return the work of a question for each text, or the text's error."""
        needs, read = self.correction.needs, "base" if self.method == "base" else "decide"
        blind: Blind = "all" if reading.blind else "none"
        scope = Scope(
            "all" if reading.whole else read,  # type: ignore[arg-type]
            blind,
            correction=self.correction,
            certificate=self.certificate,
        )
        named = [(text, name if id is None else f"{id}: {name}") for text, id in texts]
        ask = partial(_encoded, self.tracer, named, question, template, scope)
        items = ask(blind=bool(needs.blind) or reading.blind, free=needs.content_free)
        return _works(self, name, question, texts, items, scope, whole=reading.whole)

    def _answer(self, work: Work, decision: Decision) -> Answer:
        question = work.question
        decision = decision.as_base() if self.method == "base" else decision
        certified = () if self.certificate is None else self.certificate.questions
        if not certified or question_digest(question) in certified:
            return answer_of(question, decision, self.temperature)
        if decision.corrected:
            decision = decision.withhold("the certificate is for another question")
        return answer_of(question, replace(decision, deferred=False))


@dataclass(eq=False)
class ByTrajectory(ByScores):
    """Answers by a probe of the model's scores at every depth; `least` is that of `ByLinear`."""

    probe: Probe
    least: float | None = None

    def plan(
        self, name: str, question: Single, texts: Texts, template: Template, reading: Reading
    ) -> list[Work | ItemError]:
        """Return the work of a question for each text, or the text's error."""
        scope = Scope("all", "all", resolve(["contextual"], self.tracer.facts))
        items = _encoded(self.tracer, texts, question, template, scope, blind=True, free=True)
        return _works(self, name, question, texts, items, scope)

    def _answer(self, work: Work, decision: Decision) -> Answer:
        fit = self.probe.fit
        assert isinstance(fit, TrajectoryProbe) and work.item is not None
        features = features_of(decision, work.item.prompt.candidate_tokens)
        if features.shape[1] != len(fit.weights):
            raise InputError(
                f"{fit.name} has {len(fit.weights)} weights and an option of this model "
                f"{features.shape[1]} features: fit it again, with this model and this version"
            )
        p = softmax(fit.scores(features) / fit.temperature)
        probed = Probed(
            self.probe.name,
            None,
            corrected=int(p.argmax()) != decision.base_index,
            trained=self.probe.was_fitted_to(work.text),
            candidates=decision.candidates,
            trajectory=decision.trajectory,
        )
        by_text = dict(zip(decision.candidates, p.tolist(), strict=True))
        return _given(work.question, by_text, probed, self.least)


@dataclass(eq=False)
class ByLinear:
    """Answers by a linear probe of states, which may need the model's scores too.

    Attributes:
        tracer: The model; None if the probe reads an encoder alone.
        encoder: The sentence encoder that the probe reads, if any.
        unlike: Answers are deferred if the p-value of the text being like the labelled texts is
            below this.
        least: Answers with a lower confidence are deferred: the threshold of the probe's
            certificate. None without one.
    """

    probe: Probe
    fit: LinearProbe
    tracer: Tracer | None
    encoder: Encoder | None
    unlike: float
    least: float | None = None

    def plan(
        self, name: str, question: Single, texts: Texts, template: Template, reading: Reading
    ) -> list[Work | ItemError]:
        """Return the work of a question for each text, or the text's error."""
        scope, asked = self._scope, self.probe.question
        columns: list[Sequence[StateRead | EncodedItem | ItemError]]
        columns = [self._reads(block, texts, template) for block in self.fit.blocks]
        if scope is not None:
            assert self.tracer is not None
            blind = scope.blind == "base"
            columns += [_encoded(self.tracer, texts, asked, template, scope, blind=blind)]
        works = list[Work | ItemError]()
        for (text, _), row in zip(texts, zip(*columns, strict=True), strict=True):
            if (bad := next((one for one in row if isinstance(one, ItemError)), None)) is not None:
                works.append(bad)
                continue
            item = next((one for one in row if isinstance(one, EncodedItem)), None)
            reads = tuple(one for one in row if isinstance(one, StateRead))
            works.append(Work(name, question, self, text, item, scope, reads, reading.whole))
        return works

    def answer(
        self, works: Sequence[Work], states: Mapping[StateRead, State]
    ) -> list[Answer | NonFiniteError]:
        """Return the answer of each work."""
        faults = {i: fault for i, work in enumerate(works) if (fault := _fault(work, states))}
        answers: dict[int, Answer | NonFiniteError] = {**faults}
        if finite := [i for i in range(len(works)) if i not in faults]:
            rows = [np.concatenate([states[read] for read in works[i].reads]) for i in finite]
            each = self._answers([works[i] for i in finite], np.stack(rows).astype(np.float64))
            answers |= zip(finite, each, strict=True)
        return [answers[i] for i in range(len(works))]

    def _answers(
        self, works: Sequence[Work], rows: Float[np.ndarray, "texts width"]
    ) -> list[Answer | NonFiniteError]:
        scores, likeness = self.fit.scores(rows), self.fit.likeness_p(rows)
        asked = [i for i in range(len(works)) if self._needs_model(works[i], scores[i : i + 1])]
        decisions = dict[int, Decision | NonFiniteError]()
        if asked:
            assert self.tracer is not None
            read = decisions_of(self.tracer, [works[i] for i in asked])
            decisions |= zip(asked, read, strict=True)
        return [
            decision
            if isinstance(decision := decisions.get(i), NonFiniteError)
            else self._answer(work, scores[i : i + 1], decision, float(likeness[i]))
            for i, work in enumerate(works)
        ]

    @property
    def _scope(self) -> Scope | None:
        """The part of the model's scores that is read; None if they are never needed."""
        if self.fit.stack is not None:
            return Scope("base", "base")
        return None if self.probe.threshold is None else Scope("base", "none")

    def _reads(self, block: Block, texts: Texts, template: Template) -> list[StateRead | ItemError]:
        """Return the state of each text that is a block of the probe, or the text's error."""
        source = self.encoder if block.encoder else self.tracer
        assert source is not None
        passages = read_passages(source, texts, self.probe.question, template, block.pooling)
        return [
            p if isinstance(p, ItemError) else StateRead(source, p, block.layer) for p in passages
        ]

    def _needs_model(self, work: Work, scores: Float[np.ndarray, "1 classes"]) -> bool:
        if work.scope is None or work.whole or self.fit.stack is not None:
            return work.scope is not None
        assert self.probe.threshold is not None
        table = self.fit.table(scores, candidates_of(self.probe.question))
        return not needs_no_model(table, self.probe.threshold)[0]

    def _answer(
        self,
        work: Work,
        scores: Float[np.ndarray, "1 classes"],
        decision: Decision | None,
        likeness: float,
    ) -> Answer:
        options, base, blind = candidates_of(self.probe.question), None, None
        probed = Probed(
            self.probe.name,
            likeness,
            deferred=likeness < self.unlike,
            trained=self.probe.was_fitted_to(work.text),
        )
        if self.fit.stack is not None:
            assert decision is not None and decision.blind_scores is not None
            base, blind = decision.base_scores[None], decision.blind_scores[None]
        table = self.fit.table(scores, options, base, blind)
        p = self.fit.probabilities(table, options)[0]
        if decision is not None:
            probed = replace(probed, corrected=int(p.argmax()) != decision.base_index)
        if self.probe.threshold is not None:
            p, probed = _by_threshold(self.probe.threshold, table, decision, p, probed)
        by_text = dict(zip(options, p.tolist(), strict=True))
        return _given(work.question, by_text, probed, self.least)


Answerer = ByModel | ByTrajectory | ByLinear


def _works(
    answerer: Answerer,
    name: str,
    question: Single,
    texts: Texts,
    items: Sequence[EncodedItem | ItemError],
    scope: Scope,
    *,
    whole: bool = False,
) -> list[Work | ItemError]:
    """Return the work of each text's item, or the text's error."""
    return [
        item
        if isinstance(item, ItemError)
        else Work(name, question, answerer, text, item, scope, whole=whole)
        for (text, _), item in zip(texts, items, strict=True)
    ]


def _given(
    question: Single, by_text: Mapping[str, float], probed: Probed, least: float | None
) -> Answer:
    """Return a probe's answer, deferred if its confidence is below that of its certificate."""
    unsure = least is not None and max(by_text.values()) < least
    probed = replace(probed, deferred=probed.deferred or unsure)
    return Answer(question, by_option(question, by_text), probed, calibrated=True)


def _by_threshold(
    threshold: float,
    table: Float[np.ndarray, "1 options"],
    decision: Decision | None,
    p: Float[np.ndarray, " options"],
    probed: Probed,
) -> tuple[Float[np.ndarray, " options"], Probed]:
    """Return the probe's answer, or the model's if the probe's lead is below the threshold.

    `table` is on the ridge's scale. `decision` is None if the probe was certain without it.
    """
    if decision is None:
        return p, replace(probed, by="probe")
    base, best = decision.base_index, int(table.argmax())
    probed = replace(probed, model=decision.candidates[base])
    if best == base or answers_by_itself(table, np.array([base]), threshold)[0]:
        return p, replace(probed, by="probe", corrected=best != base)
    return softmax(decision.base_scores), replace(probed, by="model", corrected=False)


def decisions_of(tracer: Tracer, works: Sequence[Work]) -> list[Decision | NonFiniteError]:
    """Return the model's decision on the item of each work; equal scopes are decided together."""
    decisions = dict[int, Decision | NonFiniteError]()
    while waiting := [i for i in range(len(works)) if i not in decisions]:
        scope = works[waiting[0]].scope
        assert scope is not None
        alike = [i for i in waiting if works[i].scope == scope]
        items = [item for i in alike if (item := works[i].item) is not None]
        decisions |= zip(alike, tracer.correct_encoded(items, scope), strict=True)
    return [decisions[i] for i in range(len(works))]


def answer_works(works: Sequence[Work]) -> list[Answer | NonFiniteError]:
    """Return the answer of each work; those of one answerer are answered together."""
    states, places = pooled_once(works), dict[int, list[int]]()
    for place, work in enumerate(works):
        places.setdefault(id(work.answerer), []).append(place)
    answers = dict[int, Answer | NonFiniteError]()
    for each in places.values():
        some = [works[place] for place in each]
        answers |= zip(each, some[0].answerer.answer(some, states), strict=True)
    return [answers[place] for place in range(len(works))]


def by_text(
    inputs: Sequence[tuple[Input, str | None]],
    columns: Callable[[Texts], Iterator[list[Work | ItemError]]],
) -> list[list[Work] | InputError]:
    """Return the works of each named input, or the error of one that cannot be read.

    `columns` yields the works of one question after the other, for all readable texts.
    """
    texts = [_text_or_error(value) for value, _ in inputs]
    pairs = zip(texts, inputs, strict=True)
    named = [(text, name) for text, (_, name) in pairs if isinstance(text, str)]
    rows = iter(zip(*columns(named), strict=True))
    plans = list[list[Work] | InputError]()
    for text in texts:
        row = next(rows) if isinstance(text, str) else (text,)
        bad = next((one for one in row if isinstance(one, InputError)), None)
        plans.append(bad or [one for one in row if isinstance(one, Work)])
    return plans


def _text_or_error(value: Input) -> str | InputError:
    try:
        return value if isinstance(value, str) else text_of(value)
    except InputError as error:
        return error


def pooled_once(works: Sequence[Work]) -> dict[StateRead, State]:
    """Return the states that works read; those of one passage share a forward pass.

    It runs up to the deepest of their depths: further blocks do not change lower states.
    """
    depths = dict[tuple[Tracer | Encoder, Passage], set[int]]()
    for read in (read for work in works for read in work.reads):
        depths.setdefault((read.source, read.passage), set()).add(read.depth)
    together = dict[tuple[Tracer | Encoder, tuple[int, ...]], list[Passage]]()
    for (source, passage), each in depths.items():
        together.setdefault((source, tuple(sorted(each))), []).append(passage)
    states = dict[StateRead, State]()
    for (source, chosen), passages in together.items():
        for passage, rows in zip(passages, source.pooled(passages, chosen), strict=True):
            states |= {
                StateRead(source, passage, depth): row
                for depth, row in zip(chosen, rows, strict=True)
            }
    return states


def _encoded(
    tracer: Tracer,
    texts: Texts,
    question: Question,
    template: Template,
    scope: Scope,
    *,
    blind: bool = False,
    free: bool = False,
) -> list[EncodedItem | ItemError]:
    """Return the item of a question for each text as token ids, or its error."""
    items = list[Item | ItemError]()
    for text, id in texts:
        try:
            item = item_of(text, question, template, id=id, blind=blind, content_free=free)
            items.append(item)
        except ItemError as error:
            items.append(error)
    return encode_valid(items, partial(tracer.encode, correction=scope.correction))


def _fault(work: Work, states: Mapping[StateRead, State]) -> NonFiniteError | None:
    """Return an error with the first depth whose state is not finite, or None."""
    bad = (read.depth for read in work.reads if not np.isfinite(states[read]).all())
    return next(map(NonFiniteError, bad), None)
