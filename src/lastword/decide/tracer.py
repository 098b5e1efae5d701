"""Tracer: the road composed, text to decision. The only place where the steps meet."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import cached_property, partial
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from transformers import PreTrainedModel

from lastword.decide.batch import Batch, Read, ReadPlan, Scope, branches_of, prompts_of
from lastword.errors import CertificateError, InvariantError, ItemError, NonFiniteError
from lastword.methods.contract import Evidence, Facts, Method
from lastword.methods.trace import Trace
from lastword.model import embedded
from lastword.model.backbone import Backbone
from lastword.model.backend import Backend, Local, Pooled, Profile
from lastword.model.check import settle_layout
from lastword.model.loaded import carried
from lastword.model.options import HeadDtype, LoadOptions, refuse_unknown, takes_keywords
from lastword.model.readout import Readout
from lastword.model.weights.invariant import Factors, model_invariant
from lastword.probes.deciding import Deciding
from lastword.records.decision import Decision
from lastword.rule.geometry import Scores
from lastword.rule.operators import OPERATORS, Step
from lastword.rule.router import Verdict, settle
from lastword.rule.scorer import Scorer
from lastword.rule.theta import Theta
from lastword.text.forest import Branch, plan
from lastword.text.items import Blind, Item, as_item, rows_of
from lastword.text.tokens import (
    Chat,
    Encoded,
    Overflow,
    Tokenizer,
    describe_chat,
    encode,
)

if TYPE_CHECKING:
    from lastword.methods.correction import Correction
    from lastword.model.blind import BlindScores
    from lastword.probes.probe import Probe
    from lastword.text.passages import Passage
    from lastword.trust.certificate import Certificate, Subject


class Tracer(Deciding):
    """Corrects a model's choice among candidate answers.

    Safe to use from several threads: forwards take turns, readouts do not. The model keeps its
    weights, config and modes, and has no hook after a call; run it yourself between calls only. Its
    head is read when the tracer is made: make another after changing the head.

    Args:
        model: A transformers decoder-only language model, in memory.
        tokenizer: Its tokenizer.
        invariant: I(M), where it is known or the model has none; read from the weights otherwise.
        theta: Constants and switches.
        batch_tokens: Most distinct tokens of one batch; by width, depth and memory if not given.
        prefix_cache: MiB of keys and values of prefixes, and of texts' mean states, that come back;
            the model's weights then have to stay as they are.
        blind_cache: MiB of what candidates score without the input, an option of a frame once; the
            weights have to stay as they are.
        head_dtype: `float32` logits, or the `model`'s dtype for speed.
        attention: What attends: an implementation by its name, which the model must have been
            given; `model` for whichever it has; or `auto`, which on a CUDA device takes flex
            attention on packed forests where that is as right and faster.
        overflow: What to do with an item that does not fit the context.
        chat: Put prompts into the tokenizer's chat template.
        source: What `describe` records of where the model came from.
        certificate: Which overrides are allowed (`lastword certify`), or its file; all without.
        correction: What decides: `trace`, another method by its name (`pmi@0.5`), or a value of
            one's own. Left out, TRACE corrects, and questions get the model's own answers
            (`decide`) unless there is a certificate.
        probes: Probes, or their files: each answers its question in `decide`.
        unlike: Probes' answers to texts whose p-value of being like the labelled ones is below
            this are deferred.

    Raises:
        CertificateError: The certificate cannot be read, or is for another model, Theta or chat.
        UnsupportedModelError: The model cannot be read; see `check`.
        InvariantError: I(M) is undefined and none was given, or what was given is no I(M).
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: Tokenizer,
        *,
        invariant: float | Factors | None = None,
        theta: Theta | None = None,
        batch_tokens: int | None = None,
        prefix_cache: int = 0,
        blind_cache: int = 0,
        head_dtype: HeadDtype = "float32",
        attention: str = "auto",
        overflow: Overflow = "error",
        chat: Chat | None = None,
        source: dict[str, Any] | None = None,
        certificate: "Certificate | str | Path | None" = None,
        correction: "Correction | str | None" = None,
        probes: "Sequence[Probe | str | Path]" = (),
        unlike: float = 0.0,
    ) -> None:
        options = LoadOptions(
            model.config.name_or_path or type(model).__name__,
            theta=theta,
            batch_tokens=batch_tokens,
            prefix_cache=prefix_cache,
            blind_cache=blind_cache,
            head_dtype=head_dtype,
            attention=attention,
            overflow=overflow,
            chat=chat,
            certificate=certificate,
            probes=tuple(probes),
            unlike=unlike,
        )
        self._hold(Local(model, options, source), tokenizer, options, invariant, correction)

    @classmethod
    def over(
        cls,
        backend: Backend,
        tokenizer: Tokenizer,
        options: LoadOptions,
        invariant: float | Factors | None = None,
    ) -> "Tracer":
        """A tracer of a model wherever it computes.

        Args:
            backend: The source of its states.
            tokenizer: Its tokenizer.
            options: How it is read.
            invariant: I(M); read from the weights if not given, where the model is here.

        Raises:
            ElsewhereError: I(M) is not given, and the model is in another process.
            CertificateError: The certificate is for another model, Theta or chat.
        """
        tracer = cls.__new__(cls)
        tracer._hold(backend, tokenizer, options, invariant, options.correction)
        return tracer

    def _hold(
        self,
        backend: Backend,
        tokenizer: Tokenizer,
        options: LoadOptions,
        invariant: float | Factors | None,
        correction: "Correction | str | None",
    ) -> None:
        profile = backend.profile
        self.backend, self.tokenizer = backend, tokenizer
        self.theta = options.theta or Theta()
        self.overflow, self.chat, self.head_dtype = (
            options.overflow,
            options.chat,
            options.head_dtype,
        )
        self.source, self.checked = backend.source, backend.checked
        self.factors, self.invariant = _invariant_of(backend, invariant, self.theta)
        self.scorer = Scorer(self.theta, profile.depth, profile.vocabulary)
        self._blind_budget = options.blind_cache * 2**20
        self._batch_tokens_asked = options.batch_tokens
        self.batch_tokens = options.batch_tokens or backend.batch_tokens
        self.correction = _correction_of(correction or "trace", self.facts)
        self.named = correction is not None
        self.probes = _probes_of(options.probes)
        self.unlike = options.unlike
        self.certificate = cast("Certificate | None", options.certificate)  # no longer a file
        if self.certificate is not None:
            self.certificate.check(self.subject)
            method, means = self.certificate.policy.method, self.certificate.means
            if (own := self.certificate.probe) is not None:
                if own.digest not in [probe.digest for probe in self.probes]:
                    raise CertificateError(
                        f"the certificate is for {method}, a probe: give its file too (--probe)"
                    )
            elif not method == self.correction.name == "trace":
                from lastword.methods import certified

                self.correction = certified(method, means, self.correction, self.facts)
        for probe in self.probes:
            probe.check(self.subject)

    @classmethod
    @takes_keywords(LoadOptions)
    def from_pretrained(cls, options: LoadOptions) -> "Tracer":
        """A tracer for a checkpoint: a hub name, a local folder, or the folder of a LoRA adapter.

        Raises:
            InputError: A keyword that is none of these; nothing has been loaded yet.
            ModelError: The checkpoint is missing, unreadable or cannot be used.
        """
        return cls.open(options)

    @classmethod
    def demo(cls, name: str = "organism", **options: Any) -> "Tracer":
        """A tracer for an embedded model.

        Args:
            name: `organism`, `mix`, or the control of either: `control`, `mix-control`.
            options: As `from_pretrained`, of those that change something here.

        Raises:
            InputError: A name or a keyword that is none.
        """
        refuse_unknown("Tracer.demo", options)
        return cls.open(LoadOptions(embedded.EMBEDDED + name, **options))

    @classmethod
    def open(cls, options: LoadOptions) -> "Tracer":
        """A tracer from what `from_pretrained` takes, as the one object that programs hand on.

        Raises:
            ModelError: The checkpoint is missing, unreadable or cannot be used.
        """
        if options.correction is not None:
            from lastword.methods import entry

            entry(options.correction)  # an unknown one fails before the model is loaded
        invariant: float | Factors | None = options.invariant
        if options.embedded is not None:
            loaded = carried(options)
            if invariant is None:
                invariant = model_invariant(loaded.model, theta=options.theta or Theta())
        else:
            from lastword.model import loading  # much, and nothing of it for what is carried

            loaded = loading.load(options)
            invariant = loading.invariant_of(loaded, options)
        layout = settle_layout(loaded.model, options.layout)  # past I(M), which reads the weights
        # What was asked for is loaded, though transformers may know it by another name.
        attention = "auto" if options.attention == "auto" else "model"
        local = Local(loaded.model, replace(options, attention=attention), loaded.source, layout)
        return cls.over(local, loaded.tokenizer, options, invariant)

    def close(self) -> None:
        """End what was started for the model: vLLM's process, where it is there."""
        self.backend.close()

    def shorten(self, tokens: int) -> None:
        """Take at most that many tokens a batch on a CPU, unless a number was asked for."""
        if self._batch_tokens_asked is None and self.profile.device.type == "cpu":
            self.batch_tokens = min(self.batch_tokens, tokens)

    @property
    def profile(self) -> Profile:
        """Return what the model is, wherever it computes."""
        return self.backend.profile

    @property
    def subject(self) -> "Subject":
        """Return what a certificate of its answers speaks of."""
        from lastword.trust.certificate import Subject

        return Subject.of(self.describe() | {"weights": self.digests})

    @cached_property
    def digests(self) -> dict[str, str]:
        """Digests of the model by part: of its files, or of the tensors that were handed over."""
        from lastword.model.asked import digests

        if "asked" in self.source or not isinstance(self.backend, Local):
            return digests(self.source)
        from lastword.model.weights.identity import tensors_digest

        model = self.backend.backbone.model
        return digests(self.source) or {"weights": tensors_digest(model.state_dict())}

    @property
    def backbone(self) -> Backbone:
        """The model itself as a source of states; see `Backend.local`."""
        return self.backend.local("its trunk").backbone

    @property
    def readout(self) -> Readout:
        """The model's own head; see `Backend.local`."""
        return self.backend.local("its head").readout

    def correct(
        self,
        prompt: str | Sequence[Mapping[str, str]],
        candidates: Sequence[str],
        *,
        separator: str = " ",
        blind_prompt: str | None = None,
        content_free: Sequence[str] = (),
        read: Read = "decide",
    ) -> Decision:
        """The corrected choice among the candidates of one prompt.

        Args:
            prompt: Text before the answer, or the messages of a conversation (role and content),
                which the tokenizer's chat template writes.
            candidates: The answers to choose from; a list, not one text.
            separator: Text between prompt and candidate.
            blind_prompt: The prompt with the question left out, for corrections that read it.
            content_free: The prompt with inputs that say nothing, for `contextual`.
            read: As in `Scope`.

        Raises:
            ItemError: An item that cannot be answered.
            NonFiniteError: Logits that are not finite.
        """
        fields = {"prompt": prompt, "candidates": candidates, "separator": separator}
        more = {"blind_prompt": blind_prompt, "content_free": list(content_free)}
        item = Item.from_dict(fields | more)
        return next(self.correct_many([item], read=read))

    def correct_many(
        self,
        items: Iterable[Any],
        read: Read = "decide",
        methods: Mapping[str, Method] | None = None,
        *,
        blind: Blind = "base",
        ahead: int = 1024,
    ) -> Iterator[Decision]:
        """Decisions in the order of the items; the batches that they share are computed as needed.

        A sequence is checked whole before any of it is answered. Anything else is read as its
        decisions are taken, never more than `ahead` items before them: it may be endless.

        Args:
            items: Each an `Item`, a dictionary with its fields, or (prompt, candidates); or their
                rows: a pandas or Polars frame, a `datasets.Dataset`.
            read: As in `Scope`.
            methods: As in `Scope`.
            blind: As in `Scope`.
            ahead: Items of a generator that are read, checked and planned together.

        Raises:
            InputError: No items at all: one dictionary.
            ItemError: The first item of the sequence, or of those read together, that cannot be
                answered, before any of them is.
        """
        first, scope = 0, Scope(read, blind, methods or {})
        pieces = [items] if isinstance(items, Sequence) else _pieces(rows_of(items), ahead)
        for piece in pieces:
            ready = [as_item(value, first + place) for place, value in enumerate(piece)]
            encoded = []
            for result in self.encode(ready, first):
                if isinstance(result, ItemError):
                    raise result
                encoded.append(result)
            yield from self.correct_encoded(encoded, scope)
            first += len(piece)

    def correct_encoded(
        self,
        encoded: Sequence[Encoded],
        scope: Scope = Scope(),  # noqa: B008 - frozen
    ) -> Iterator[Decision]:
        """Decisions in the order of the encoded items; batches are computed as needed."""
        done: dict[int, Decision] = {}
        groups = iter(self.plan(encoded))
        for place in range(len(encoded)):
            while place not in done:
                group = next(groups)
                decisions = self.decide_group([encoded[i] for i in group], scope)
                done.update(zip(group, decisions, strict=True))
            yield done.pop(place)

    def pooled(self, passages: "Sequence[Passage]", depths: Sequence[int]) -> Pooled:
        """Return the mean state of each passage at some depths, in float32.

        The trunk stops at the deepest of the depths; no head is run.
        """
        branches = [Branch((*p.tokens, p.tokens[0]), p.start + 1) for p in passages]
        out = np.empty((len(branches), len(depths), self.profile.width), dtype=np.float32)
        for group in plan([[[branch]] for branch in branches], self.batch_tokens):
            some = [branches[i] for i in group]
            compute = partial(self.backend.pooled, some, depths, self.batch_tokens)
            out[group] = self.backend.transact(compute)
        if not np.isfinite(out).all():
            raise NonFiniteError(depths[int((~np.isfinite(out)).any(axis=(0, 2)).argmax())])
        return out

    def encode(self, items: Sequence[Item], first: int = 0) -> list[Encoded | ItemError]:
        """Every item as token ids, or as the error that names it.

        Args:
            items: The items.
            first: Place of the first among all that are read, for the names of those without id.
        """
        results = encode(
            items,
            self.tokenizer,
            theta=self.theta,
            context=self.profile.context,
            overflow=self.overflow,
            chat=self.chat,
            first=first,
        )
        return [self._applicable(r, first + i) for i, r in enumerate(results)]

    def _applicable(self, encoded: Encoded | ItemError, place: int) -> Encoded | ItemError:
        """The item, or why the correction does not apply to it."""
        if isinstance(encoded, ItemError) or self.correction.name == "trace":
            return encoded
        from lastword.methods.correction import Scored, lacks

        if not isinstance(self.correction, Scored):
            return encoded
        has = {"blind": bool(encoded.blind_sequences), "free": bool(encoded.content_free_sequences)}
        lack = lacks(self.correction.needs, **has)
        if lack is None:
            return encoded
        name = encoded.item.id or str(place)
        return ItemError(f"{self.correction.name} needs {lack}, and there is none", name)

    def plan(self, encoded: Sequence[Encoded]) -> list[list[int]]:
        """Groups of items that are computed together, as places; shared prefixes stay together.

        A group holds at most `batch_tokens` distinct tokens, or one item that is larger.
        """
        prompts = [prompts_of(e) for e in encoded]
        most = max(map(len, prompts), default=0)
        return plan([[*p, *[[]] * (most - len(p))] for p in prompts], self.batch_tokens)

    def decide_group(
        self,
        encoded: Sequence[Encoded],
        scope: Scope = Scope(),  # noqa: B008 - frozen
    ) -> list[Decision]:
        """Decisions of one group, in order, from one pass of the model.

        Raises:
            NonFiniteError: Logits that are not finite.
        """
        self._require_vocabularies(scope.methods)
        decisions = self.backend.transact(lambda: self._decide(encoded, scope))
        return decisions if self.certificate is None else [*map(self.certificate.obey, decisions)]

    def compare(
        self, encoded: Sequence[Encoded], methods: Mapping[str, Method]
    ) -> list[dict[str, Scores | None]]:
        """Every method's scores of one group, in order: one pass that reads what they need.

        Returns:
            Scores [candidates] by method; None where a method does not apply to the item.

        Raises:
            NonFiniteError: Logits that are not finite.
        """
        self._require_vocabularies(methods)
        return self.backend.transact(lambda: self._compare(encoded, methods))

    def _decide(self, encoded: Sequence[Encoded], scope: Scope) -> list[Decision]:
        # The trunk runs once and keeps the states of every depth that anything may ask for; the
        # head, which is the dear part, then reads only what each item turns out to need. First
        # what the scope itself wants, of all items together; then the router asks item by item,
        # and items that need the same next step are read in one go (`settle`).
        plan = ReadPlan.of_scope(scope, self.correction.needs, self.scorer)
        batch = self._batch(encoded, plan)
        batch.read_plan()
        verdicts = settle(
            len(encoded), lambda i: self._next(batch.evidence(i), scope.read), batch.read
        )
        if plan.reuse and self._blind_budget and (scores := [*batch.without_input()]):
            self._blind_scores.keep(scores)
        return [
            replace(
                _decision(self, e, batch, i, verdicts[i]),
                method=self.correction.name,
                methods=batch.scores(i),
            )
            for i, e in enumerate(encoded)
        ]

    def _compare(
        self, encoded: Sequence[Encoded], methods: Mapping[str, Method]
    ) -> list[dict[str, Scores | None]]:
        batch = self._batch(encoded, ReadPlan.of_methods(methods, self.scorer))
        batch.read_plan()
        return [batch.scores(i) for i in range(len(encoded))]

    def _require_vocabularies(self, methods: Mapping[str, Method]) -> None:
        """Refuse methods by name that look at whole vocabularies where these are out of reach."""
        for name, method in methods.items():
            if method.needs.scorer is not None and not self.backend.vocabularies:
                self.backend.local(f"method {name} reads whole vocabularies and so")

    def __sklearn_clone__(self) -> "Tracer":
        """Return itself: clones of a scikit-learn estimator share the model."""
        return self

    def __repr__(self) -> str:
        """One line: the model, how it is run, and what its invariant chooses."""
        profile, high = self.profile, self.invariant > self.theta.tau_I
        parts = [
            repr(str(self.source["model"])),
            f"{profile.model_type} of {profile.depth} blocks",
            f"{profile.precision} on {profile.device}",
            f"I(M) = {self.invariant:.4g} ({'mix' if high else 'early'} branch)",
            *(["theta outside the paper"] if self.theta.outside_paper else []),
            *(["certified"] if self.certificate is not None else []),
            *([] if self.correction.name == "trace" else [f"corrects by {self.correction.name}"]),
        ]
        return f"Tracer({', '.join(parts)})"

    @property
    def facts(self) -> Facts:
        """Return what methods are made from."""
        profile = self.profile
        return Facts(profile.depth, profile.vocabulary, self.invariant, self.theta)

    def _batch(self, encoded: Sequence[Encoded], plan: ReadPlan) -> Batch:
        """States of a group at the depths of a plan; the head has read nothing yet.

        Candidates whose score without the input is known are not computed again.
        """
        encoded = [plan.pared(e) for e in encoded]
        there = any(e.blind_sequences or e.content_free_sequences for e in encoded)
        known = self._known(encoded) if plan.reuse and there and self._blind_budget else {}
        every = (b for e in encoded for b in branches_of(e))
        branches = [b for row, b in enumerate(every) if row not in known]
        states = self.backend.states(branches, sorted(plan.depths) or [0], self.batch_tokens)
        return Batch(encoded, states, self.backend.read, self.scorer, plan, known)

    @cached_property
    def _blind_scores(self) -> "BlindScores":
        from lastword.model.blind import BlindScores

        return BlindScores(self._blind_budget)

    def _known(self, encoded: Sequence[Encoded]) -> dict[int, float]:
        """Depth L of branches without the input that were read before, by place among all."""
        known: dict[int, float] = {}
        row = 0
        for e in encoded:
            own, *others = prompts_of(e)
            row += len(own)
            branches = [*chain.from_iterable(others)]
            scores = enumerate(self._blind_scores.find(branches), row)
            known |= {place: score for place, score in scores if score is not None}
            row += len(branches)
        return known

    def _next(self, evidence: Evidence, read: Read) -> Step | Verdict:
        """Return what a reading mode still needs of an item, or the verdict."""
        trajectory = evidence.trajectory
        every = range(trajectory.depth + 1)
        if read == "all" and (trajectory.t is None or not trajectory.has(every)):
            return Step(frozenset(every), scorer=True)
        if read == "base":
            base = OPERATORS["base"]
            return base.needs(trajectory, self.theta) or Verdict(
                "scalar", np.nan, base.correct(trajectory, self.theta)
            )
        return self.correction.next(evidence)

    def describe(self) -> dict[str, Any]:
        """Return what a run records of the model and the method, as plain JSON values."""
        profile = self.profile
        return {
            "dtype": profile.precision,
            **self.source,
            "model_type": profile.model_type,
            "depth": profile.depth,
            "vocabulary": profile.vocabulary,
            "context": profile.context,
            "attention": profile.attention,
            "head_dtype": self.head_dtype,
            "overflow": self.overflow,
            "chat": None if self.chat is None else describe_chat(self.tokenizer, self.chat),
            "check": asdict(self.checked),
            "invariant": self.invariant,
            "invariant_factors": None if self.factors is None else asdict(self.factors),
            "theta": self.theta.to_dict(),
            "outside_paper": self.theta.outside_paper,
            "certificate": None if self.certificate is None else self.certificate.describe(),
            **({} if self.correction.name == "trace" else {"correction": self.correction.name}),
        }


def _invariant_of(
    backend: Backend, given: float | Factors | None, theta: Theta
) -> tuple[Factors | None, float]:
    """I(M) as it was given, or from the weights; with its factors where they are there."""
    if given is None:
        given = model_invariant(backend.local("reading I(M)").backbone.model, theta=theta)
    factors = given if isinstance(given, Factors) else None
    value = given.value if isinstance(given, Factors) else float(given)
    if not 0 <= value < np.inf:
        raise InvariantError(f"I(M) is a finite number from 0, not {value:g}")
    return factors, value


def _probes_of(probes: "Sequence[Probe | str | Path]") -> "Sequence[Probe]":
    """Probes as they were given, or read from their files."""
    if not probes:
        return ()
    from lastword.probes.probe import Probe

    return tuple(own if isinstance(own, Probe) else Probe.read(own) for own in probes)


def _correction_of(correction: "Correction | str", facts: Facts) -> "Correction":
    """A correction as it was given, or by its name; TRACE alone needs no table."""
    if not isinstance(correction, str):
        return correction
    if correction == "trace":
        return Trace(facts)
    from lastword.methods import correction_of

    return correction_of(correction, facts)


def _pieces(items: Iterable[Any], size: int) -> Iterator[list[Any]]:
    rest = iter(items)
    while piece := list(islice(rest, size)):
        yield piece


def _decision(
    tracer: Tracer, encoded: Encoded, batch: Batch, place: int, verdict: Verdict
) -> Decision:
    blind = batch.blind(place)
    whole = blind if blind is not None and blind.t is not None else None
    return verdict.answer(
        Decision,
        encoded.item.candidates,
        batch.trajectory(place),
        tracer.invariant,
        blind_scores=None if blind is None else blind.base,
        blind_trajectory=None if whole is None else whole.scores,
        blind_t_scores=None if whole is None else whole.t,
        content_free_scores=batch.content_free(place),
        truncated=encoded.truncated,
        id=encoded.item.id,
    )
