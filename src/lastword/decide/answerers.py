"""Answerers: a model, or a probe of states or of scores. Each answers some questions.

An answerer first plans the queries of a question for many texts, without running a model. It then
answers many queries in one pass. `pooled_once` reads the states of all probes before, so that
probes of one text share a forward pass.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from jaxtyping import Float
from scipy.special import softmax

from lastword.decide.answer import Answer, answer_of, by_option
from lastword.decide.batch import Read, Scope
from lastword.decide.item import candidates_of, item_of
from lastword.decide.states import read_passages
from lastword.decide.stream import encode_valid
from lastword.decide.tracer import Tracer
from lastword.errors import InputError, ItemError, NonFiniteError
from lastword.methods import resolve
from lastword.methods.contract import Method
from lastword.model.encoder import Encoder
from lastword.probes.probe import Probe
from lastword.probes.state import LinearProbe
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
class StateRead:
    """A state to read: the source, its tokens and the depth."""

    source: Tracer | Encoder
    passage: Passage
    depth: int


States = Mapping[StateRead, State]
Column = Sequence[StateRead | EncodedItem | ItemError]  # one entry a text


@dataclass(frozen=True, eq=False)
class Query:
    """One question about one text, planned by the answerer that answers it."""

    name: str
    question: Single
    answerer: "Answerer"
    text: str
    item: EncodedItem | None  # None if the model's scores are never needed
    scope: Scope | None
    reads: tuple[StateRead, ...]
    whole: bool  # `item` is read even where the answer does not depend on it

    @property
    def probe(self) -> Probe | None:
        """The probe that answers; None if the model does."""
        return self.answerer.probe

    @property
    def may_need_model(self) -> bool:
        """True if the model's scores are read only if states do not answer (`needs_model`)."""
        threshold = None if self.probe is None else self.probe.threshold
        return self.item is not None and threshold is not None and not self.whole

    @property
    def tokens(self) -> int:
        """The number of tokens to compute, in the prompt with its options and in passages."""
        items = 0 if self.item is None else self.item.tokens
        return items + sum(len(read.passage.tokens) for read in self.reads)


@dataclass(eq=False)
class Answerer:
    """Answers questions by the model's scores of the options, or by more than them."""

    tracer: Tracer | None  # None if a probe reads an encoder alone
    probe: Probe | None = None  # None if the model answers
    least: float | None = None  # a probe's answers with a lower confidence are deferred

    def scope(self, read: Read, blind: Blind) -> Scope | None:
        """Return how much of the model's scores is read; None if they are never needed."""
        raise NotImplementedError

    def plan(
        self,
        name: str,
        question: Single,
        texts: Texts,
        template: Template,
        read: Read = "decide",
        blind: Blind = "none",
    ) -> list[Query | ItemError]:
        """Return the query of a question for each text, or the text's error."""
        scope, columns = self.scope(read, blind), self._reads(texts, template)
        if scope is not None:
            asked: Question = question
            named = texts
            if self.probe is None:
                named = [(text, name if id is None else f"{id}: {name}") for text, id in texts]
            elif self.probe.linear is not None:  # its options may be in another order
                asked = self.probe.question
            columns.append(self._items(asked, named, template, scope))
        queries = list[Query | ItemError]()
        for (text, _), *row in zip(texts, *columns, strict=True):
            item = next((one for one in row if isinstance(one, EncodedItem)), None)
            reads = tuple(one for one in row if isinstance(one, StateRead))
            error = next((one for one in row if isinstance(one, ItemError)), None)
            query = Query(name, question, self, text, item, scope, reads, whole=read == "all")
            queries.append(error or query)
        return queries

    def _reads(self, texts: Texts, template: Template) -> list[Column]:
        return []

    def _items(
        self, question: Question, texts: Texts, template: Template, scope: Scope
    ) -> list[EncodedItem | ItemError]:
        """Return the item of a question for each text as token ids, or its error."""
        assert self.tracer is not None
        methods = [*scope.methods.values(), *([scope.correction] if scope.correction else [])]
        blind = scope.blind != "none" or any(method.needs.blind for method in methods)
        free = any(method.needs.content_free for method in methods)
        items = list[Item | ItemError]()
        for text, id in texts:
            try:
                item = item_of(text, question, template, id=id, blind=blind, content_free=free)
                items.append(item)
            except ItemError as error:
                items.append(error)
        return encode_valid(items, partial(self.tracer.encode, correction=scope.correction))

    def answer(self, queries: Sequence[Query], states: States) -> list[Answer | NonFiniteError]:
        """Return the answer of each query, given the states that they read."""
        return [
            one if isinstance(one, NonFiniteError) else self._answer(query, one)
            for query, one in zip(queries, self._decisions(queries), strict=True)
        ]

    def needs_model(self, query: Query, states: States) -> bool:
        """Return True if the answer of a query needs the model's scores, given its states."""
        return query.item is not None

    def _answer(self, query: Query, decision: Decision) -> Answer:
        raise NotImplementedError

    def _decisions(self, queries: Sequence[Query]) -> list[Decision | NonFiniteError]:
        """Return the model's decision on each item; equal scopes are decided together."""
        decisions = dict[int, Decision | NonFiniteError]()
        while waiting := [i for i in range(len(queries)) if i not in decisions]:
            scope = queries[waiting[0]].scope
            assert scope is not None and self.tracer is not None
            alike = [i for i in waiting if queries[i].scope == scope]
            items = [item for i in alike if (item := queries[i].item) is not None]
            decisions |= zip(alike, self.tracer.correct_encoded(items, scope), strict=True)
        return [decisions[i] for i in range(len(queries))]

    def _probed(
        self,
        query: Query,
        options: Sequence[str],
        p: Float[np.ndarray, " options"],
        **facts: Any,
    ) -> Answer:
        """Return a probe's answer, deferred if its confidence is below `least`."""
        assert self.probe is not None
        new = facts.pop("deferred", False)
        by_text = dict(zip(options, p.tolist(), strict=True))
        return Answer(
            question=query.question,
            probabilities=by_option(query.question, by_text),
            method=self.probe.name,
            deferred=new or (self.least is not None and max(by_text.values()) < self.least),
            calibrated=True,
            trained=self.probe.was_fitted_to(query.text),
            **facts,
        )


@dataclass(eq=False, kw_only=True)
class ByModel(Answerer):
    """Answers by the model's scores, with a correction and a certificate."""

    tracer: Tracer
    correction: Method
    certificate: Certificate | None
    named: bool  # the user named the correction, so it answers questions without a certificate

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

    def scope(self, read: Read, blind: Blind) -> Scope:
        """Return how much of the model's scores is read."""
        if read == "decide" and self.method == "base":
            read = "base"
        return Scope(read, blind, correction=self.correction, certificate=self.certificate)

    def _answer(self, query: Query, decision: Decision) -> Answer:
        question = query.question
        decision = decision.as_base() if self.method == "base" else decision
        certified = () if self.certificate is None else self.certificate.questions
        if not certified or question_digest(question) in certified:
            return answer_of(question, decision, self.temperature)
        if decision.corrected:
            decision = decision.withhold("the certificate is for another question")
        return answer_of(question, replace(decision, deferred=False))


@dataclass(eq=False)
class ByTrajectory(Answerer):
    """Answers by a probe of the model's scores at every depth."""

    def scope(self, read: Read, blind: Blind) -> Scope:
        """Return how much of the model's scores is read."""
        assert self.tracer is not None
        return Scope("all", "all", resolve(["contextual"], self.tracer.facts))

    def _answer(self, query: Query, decision: Decision) -> Answer:
        assert self.probe is not None and query.item is not None
        fit = self.probe.fit
        assert isinstance(fit, TrajectoryProbe)
        features = features_of(decision, query.item.prompt.candidate_tokens)
        if features.shape[1] != len(fit.weights):
            raise InputError(
                f"{fit.name} has {len(fit.weights)} weights and an option of this model "
                f"{features.shape[1]} features: fit it again, with this model and this version"
            )
        p = softmax(fit.scores(features) / fit.temperature)
        corrected = int(p.argmax()) != decision.base_index
        return self._probed(query, decision.candidates, p, corrected=corrected, decision=decision)


@dataclass(eq=False, kw_only=True)
class ByLinear(Answerer):
    """Answers by a linear probe of states, which may need the model's scores too."""

    probe: Probe
    fit: LinearProbe
    encoder: Encoder | None
    novelty: float  # answers with a lower p-value of being like the labelled texts are deferred

    def __post_init__(self) -> None:
        """Refuse a level below 1/(n+1), the smallest p-value of a probe with n labels."""
        likeness = self.fit.likeness
        if 0 < self.novelty <= likeness.least_p:
            raise InputError(
                f"--novelty {self.novelty:g} would never defer an answer of {self.probe.name}: its "
                f"{len(likeness.distances)} labelled texts allow no p-value below "
                f"{likeness.least_p:.3g}. Use --novelty {likeness.level(self.novelty):g}, or label "
                "more texts"
            )

    def scope(self, read: Read, blind: Blind) -> Scope | None:
        """Return how much of the model's scores is read; None if they are never needed."""
        if self.fit.stack is not None:
            return Scope("base", "base")
        return None if self.probe.threshold is None else Scope("base", "none")

    def _reads(self, texts: Texts, template: Template) -> list[Column]:
        columns = list[Column]()
        for block in self.fit.blocks:
            source = self.encoder if block.encoder else self.tracer
            assert source is not None
            read = read_passages(source, texts, self.probe.question, template, block.pooling)
            columns.append(
                [p if isinstance(p, ItemError) else StateRead(source, p, block.layer) for p in read]
            )
        return columns

    def answer(self, queries: Sequence[Query], states: States) -> list[Answer | NonFiniteError]:
        """Return the answer of each query, given the states that they read."""
        rows = _rows(queries, states)
        scores, likeness = self.fit.scores(rows), self.fit.likeness_p(rows)
        asked = [i for i in range(len(queries)) if self._needs_model(queries[i], scores[[i]])]
        read = dict(zip(asked, self._decisions([queries[i] for i in asked]), strict=True))
        answers = list[Answer | NonFiniteError]()
        for i, query in enumerate(queries):
            bad = [one.depth for one in query.reads if not np.isfinite(states[one]).all()]
            decision = NonFiniteError(bad[0]) if bad else read.get(i)
            if isinstance(decision, NonFiniteError):
                answers.append(decision)
            else:
                answers.append(self._by_states(query, scores[[i]], decision, float(likeness[i])))
        return answers

    def needs_model(self, query: Query, states: States) -> bool:
        """Return True if the answer of a query needs the model's scores, given its states."""
        return self._needs_model(query, self.fit.scores(_rows([query], states)))

    def _needs_model(self, query: Query, scores: Float[np.ndarray, "1 classes"]) -> bool:
        if query.scope is None or query.whole or self.fit.stack is not None:
            return query.scope is not None
        assert self.probe.threshold is not None
        table = self.fit.table(scores, candidates_of(self.probe.question))
        return not needs_no_model(table, self.probe.threshold)[0]

    def _by_states(
        self,
        query: Query,
        scores: Float[np.ndarray, "1 classes"],
        decision: Decision | None,
        likeness: float,
    ) -> Answer:
        options, base, blind = candidates_of(self.probe.question), None, None
        if self.fit.stack is not None:
            assert decision is not None and decision.blind_scores is not None
            base, blind = decision.base_scores[None], decision.blind_scores[None]
        table = self.fit.table(scores, options, base, blind)
        p = self.fit.probabilities(table, options)[0]
        facts: dict[str, Any] = {"likeness": likeness, "deferred": likeness < self.novelty}
        facts["corrected"] = decision is not None and int(p.argmax()) != decision.base_index
        if self.probe.threshold is not None:
            facts |= {"decision": decision, "by": "probe"}
            if decision is not None:
                place, best = decision.base_index, int(table.argmax())
                certain = answers_by_itself(table, np.array([place]), self.probe.threshold)[0]
                facts["corrected"] = best != place and bool(certain)
                if best != place and not certain:
                    facts["by"], p = "model", softmax(decision.base_scores)
        return self._probed(query, options, p, **facts)


def _rows(queries: Sequence[Query], states: States) -> Float[np.ndarray, "queries features"]:
    read = np.stack([np.concatenate([states[r] for r in query.reads]) for query in queries])
    return np.nan_to_num(read.astype(np.float64), posinf=0.0, neginf=0.0)


def answers_of(queries: Sequence[Query], known: States) -> list[Answer | NonFiniteError]:
    """Return the answer of each query, given the states that are known.

    Those of one answerer are answered together.
    """
    states, places = pooled_once(queries, known), dict[int, list[int]]()
    for place, query in enumerate(queries):
        places.setdefault(id(query.answerer), []).append(place)
    answers = dict[int, Answer | NonFiniteError]()
    for each in places.values():
        some = [queries[place] for place in each]
        answers |= zip(each, some[0].answerer.answer(some, states), strict=True)
    return [answers[place] for place in range(len(queries))]


def new_tokens(queries: Sequence[Query]) -> Iterator[int]:
    """Yield the number of tokens of each query, without passages that one before it reads."""
    seen = set[Passage]()
    for query in queries:
        passages = [read.passage for read in query.reads]
        yield query.tokens - sum(len(passage.tokens) for passage in passages if passage in seen)
        seen.update(passages)


def depths_by_passage(
    queries: Sequence[Query], known: States
) -> dict[tuple[Tracer | Encoder, Passage], set[int]]:
    """Return the depths of each passage at which queries read states that are not known."""
    depths = dict[tuple[Tracer | Encoder, Passage], set[int]]()
    for read in (read for query in queries for read in query.reads):
        if read not in known:
            depths.setdefault((read.source, read.passage), set()).add(read.depth)
    return depths


def pooled_once(queries: Sequence[Query], known: States) -> dict[StateRead, State]:
    """Return the states that queries read; those of one passage share a forward pass.

    It runs up to the deepest of their depths: further blocks do not change lower states.
    """
    together = dict[tuple[Tracer | Encoder, tuple[int, ...]], list[Passage]]()
    for (source, passage), each in depths_by_passage(queries, known).items():
        together.setdefault((source, tuple(sorted(each))), []).append(passage)
    states = dict(known)
    for (source, chosen), passages in together.items():
        for passage, rows in zip(passages, source.pooled(passages, chosen), strict=True):
            reads = [StateRead(source, passage, depth) for depth in chosen]
            states |= zip(reads, rows, strict=True)
    return states
