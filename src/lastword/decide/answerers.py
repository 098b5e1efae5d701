"""Answerers: a model, or a probe of states or of scores. Each answers some questions.

An answerer first plans the work of a question for many texts, without running a model. It then
answers many works in one pass. `pooled_once` reads the states of all probes before, so that probes
of one text share a forward pass.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

import numpy as np
from jaxtyping import Float
from scipy.special import softmax

from lastword.decide.answer import Answer, Probed, answer_of, by_option
from lastword.decide.batch import Scope
from lastword.decide.item import candidates_of, item_of
from lastword.decide.states import read_passages
from lastword.decide.tracer import Tracer, encode_valid
from lastword.errors import InputError, ItemError, NonFiniteError
from lastword.methods import resolve
from lastword.methods.contract import Method
from lastword.model.encoder import Encoder
from lastword.probes.probe import Probe
from lastword.probes.stacked import StackedProbe
from lastword.probes.state import OWN
from lastword.probes.threshold import answers_by_itself, needs_no_model, of_options
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
    """How much is read: `whole` for every depth, and `blind` for every depth without the input."""

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


class Answerer(Protocol):
    """Answers questions: `plan` needs no model, and `answer` takes one pass."""

    @property
    def probe(self) -> Probe | None:
        """The probe that answers; None if the model does."""

    def plan(
        self, name: str, question: Single, texts: Texts, template: Template, reading: Reading
    ) -> list[Work | ItemError]:
        """Return the work of a question for each text, or the text's error."""

    def answer(
        self, works: Sequence[Work], states: Mapping[StateRead, State]
    ) -> list[Answer | NonFiniteError]:
        """Return the answer of each work; `states` are those of `pooled_once`."""


@dataclass(eq=False)
class ByModel:
    """Answers by the model's scores, with a correction and a certificate.

    Attributes:
        named: True if the user named the correction; questions then get its answers even without
            a certificate.
    """

    tracer: Tracer
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
        return [
            item
            if isinstance(item, ItemError)
            else Work(name, question, self, text, item, scope, whole=reading.whole)
            for (text, _), item in zip(texts, items, strict=True)
        ]

    def answer(
        self, works: Sequence[Work], states: Mapping[StateRead, State]
    ) -> list[Answer | NonFiniteError]:
        """Return the answer of each work."""
        decisions = decisions_of(self.tracer, works)
        return [
            decision
            if isinstance(decision, NonFiniteError)
            else self._answer(work.question, decision)
            for work, decision in zip(works, decisions, strict=True)
        ]

    def _answer(self, question: Single, decision: Decision) -> Answer:
        decision = decision.as_base() if self.method == "base" else decision
        certified = () if self.certificate is None else self.certificate.questions
        if not certified or question_digest(question) in certified:
            return answer_of(question, decision, self.temperature)
        if decision.corrected:
            decision = decision.withhold("the certificate is for another question")
        return answer_of(question, replace(decision, deferred=False))


@dataclass(eq=False)
class ByTrajectory:
    """Answers by a probe of the model's scores at every depth; `least` is that of `ByState`."""

    tracer: Tracer
    probe: Probe
    least: float | None = None

    def plan(
        self, name: str, question: Single, texts: Texts, template: Template, reading: Reading
    ) -> list[Work | ItemError]:
        """Return the work of a question for each text, or the text's error."""
        scope = Scope("all", "all", resolve(["contextual"], self.tracer.facts))
        items = _encoded(self.tracer, texts, question, template, scope, blind=True, free=True)
        return [
            item if isinstance(item, ItemError) else Work(name, question, self, text, item, scope)
            for (text, _), item in zip(texts, items, strict=True)
        ]

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
class ByState:
    """Answers by a probe of states, which may need the model's scores too.

    Attributes:
        tracer: The model; None if the probe reads an encoder alone.
        encoder: The sentence encoder that the probe reads, if any.
        unlike: Answers are deferred if the p-value of the text being like the labelled texts is
            below this.
        least: Answers with a lower confidence are deferred: the threshold of the probe's
            certificate. None without one.
    """

    probe: Probe
    tracer: Tracer | None
    encoder: Encoder | None
    unlike: float
    least: float | None = None

    def plan(
        self, name: str, question: Single, texts: Texts, template: Template, reading: Reading
    ) -> list[Work | ItemError]:
        """Return the work of a question for each text, or the text's error."""
        scope, asked = self._scope(), self.probe.question
        items: Sequence[EncodedItem | ItemError | None] = [None] * len(texts)
        if scope is not None:
            assert self.tracer is not None
            blind = scope.blind == "base"
            items = _encoded(self.tracer, texts, asked, template, scope, blind=blind)
        works = list[Work | ItemError]()
        for (text, _), item, reads in zip(texts, items, self._reads(texts, template), strict=True):
            if isinstance(item, ItemError) or isinstance(reads, ItemError):
                works.append(item if isinstance(item, ItemError) else reads)  # type: ignore[arg-type]
                continue
            works.append(Work(name, question, self, text, item, scope, reads, reading.whole))
        return works

    def answer(
        self, works: Sequence[Work], states: Mapping[StateRead, State]
    ) -> list[Answer | NonFiniteError]:
        """Return the answer of each work."""
        answers: dict[int, Answer | NonFiniteError] = {}
        for i, work in enumerate(works):
            if (fault := _fault(work, states)) is not None:
                answers[i] = fault
        if not (finite := [i for i in range(len(works)) if i not in answers]):
            return [*answers.values()]
        state = self.probe.state
        assert state is not None
        rows = np.stack([np.concatenate([states[r] for r in works[i].reads]) for i in finite])
        scores = dict(zip(finite, state.scores(rows.astype(np.float64)), strict=True))
        likeness = dict(zip(finite, state.likeness_p(rows.astype(np.float64)), strict=True))
        asked = [i for i in finite if self._needs_model(works[i], scores[i])]
        decisions = dict[int, Decision | NonFiniteError]()
        if asked:
            assert self.tracer is not None
            read = decisions_of(self.tracer, [works[i] for i in asked])
            decisions = dict(zip(asked, read, strict=True))
        for i in finite:
            decision = decisions.get(i)
            answers[i] = (
                decision
                if isinstance(decision, NonFiniteError)
                else self._answer(works[i], scores[i], decision, float(likeness[i]))
            )
        return [answers[i] for i in range(len(works))]

    def _scope(self) -> Scope | None:
        """Return how much of the model's scores is read; None if they are never needed."""
        if isinstance(self.probe.fit, StackedProbe):
            return Scope("base", "base")
        return None if self.probe.threshold is None else Scope("base", "none")

    def _reads(self, texts: Texts, template: Template) -> list[tuple[StateRead, ...] | ItemError]:
        """Return the states of each text that the probe reads: the model's, then the encoder's."""
        state = self.probe.state
        assert state is not None
        columns = list[list[StateRead | ItemError]]()
        if state.pooling != OWN:
            assert self.tracer is not None
            question, pooling = self.probe.question, state.pooling
            passages = read_passages(self.tracer, texts, question, template, pooling)
            columns.append(_reads(self.tracer, passages, state.depth))
        if self.encoder is not None:
            sentences = self.encoder.encode([text for text, _ in texts])
            columns.append(_reads(self.encoder, sentences, state.reader_depth or 0))
        rows = list[tuple[StateRead, ...] | ItemError]()
        for row in zip(*columns, strict=True):
            bad = next((read for read in row if isinstance(read, ItemError)), None)
            rows.append(bad or tuple(read for read in row if isinstance(read, StateRead)))
        return rows

    def _needs_model(self, work: Work, scores: Float[np.ndarray, " classes"]) -> bool:
        if work.scope is None:
            return False
        if work.whole or isinstance(self.probe.fit, StackedProbe):
            return True
        assert self.probe.threshold is not None
        return not needs_no_model(self._table(scores)[None], self.probe.threshold)[0]

    def _table(self, scores: Float[np.ndarray, " classes"]) -> Float[np.ndarray, " options"]:
        """Return the scores of all options, on the ridge's scale."""
        assert self.probe.state is not None
        options = candidates_of(self.probe.question)
        table: Float[np.ndarray, " options"] = of_options(
            scores[None], self.probe.state.classes, options
        )[0]
        return table

    def _answer(
        self,
        work: Work,
        scores: Float[np.ndarray, " classes"],
        decision: Decision | None,
        likeness: float,
    ) -> Answer:
        fit, state = self.probe.fit, self.probe.state
        assert state is not None
        trained = self.probe.was_fitted_to(work.text)
        probed = Probed(self.probe.name, likeness, likeness < self.unlike, trained=trained)
        if isinstance(fit, StackedProbe):
            assert decision is not None and decision.blind_scores is not None
            base, blind = decision.base_scores[None], decision.blind_scores[None]
            logits = fit.scores(scores[None], decision.candidates, base, blind)[0]
            p = softmax(logits / fit.temperature)
            by_text = dict(zip(decision.candidates, p.tolist(), strict=True))
            probed = replace(probed, corrected=int(p.argmax()) != decision.base_index)
            table = logits / 2  # half of the log odds: thresholds are on the ridge's scale
        else:
            p = softmax(scores / state.temperature)
            by_text = dict(zip(state.classes, p.tolist(), strict=True))
            table = self._table(scores)
        if self.probe.threshold is not None:
            by_text, probed = _by_threshold(self.probe.threshold, table, decision, by_text, probed)
        return _given(work.question, by_text, probed, self.least)


def _given(
    question: Single, by_text: Mapping[str, float], probed: Probed, least: float | None
) -> Answer:
    """Return a probe's answer, deferred if its confidence is below that of its certificate."""
    unsure = least is not None and max(by_text.values()) < least
    probed = replace(probed, deferred=probed.deferred or unsure)
    return Answer(question, by_option(question, by_text), probed, calibrated=True)


def _by_threshold(
    threshold: float,
    scores: Float[np.ndarray, " options"],
    decision: Decision | None,
    p: dict[str, float],
    probed: Probed,
) -> tuple[dict[str, float], Probed]:
    """Return the probe's answer, or the model's if the probe's lead is below the threshold.

    `scores` are on the ridge's scale. `decision` is None if the probe was certain without it.
    """
    if decision is None:
        return p, replace(probed, by="probe")
    base, best = decision.base_index, int(scores.argmax())
    probed = replace(probed, model=decision.candidates[base])
    if best == base or answers_by_itself(scores[None], np.array([base]), threshold)[0]:
        return p, replace(probed, by="probe", corrected=best != base)
    shares = softmax(decision.base_scores).tolist()
    by_text = dict(zip(decision.candidates, shares, strict=True))
    return by_text, replace(probed, by="model", corrected=False)


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


def _reads(
    source: Tracer | Encoder, passages: Sequence[Passage | ItemError], depth: int
) -> list[StateRead | ItemError]:
    return [p if isinstance(p, ItemError) else StateRead(source, p, depth) for p in passages]


def _fault(work: Work, states: Mapping[StateRead, State]) -> NonFiniteError | None:
    """Return an error with the first depth whose state is not finite, or None."""
    bad = (read.depth for read in work.reads if not np.isfinite(states[read]).all())
    return next(map(NonFiniteError, bad), None)
