"""Tracer: the road composed, text to decision. The only place where the steps meet."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import numpy as np
from transformers import PreTrainedModel

from lastword.batch import Batch, branches_of
from lastword.errors import InvariantError, ItemError
from lastword.methods.contract import Facts, Method
from lastword.model import embedded, loading
from lastword.model.backbone import Backbone, evaluating
from lastword.model.check import check, settle_layout
from lastword.model.memory import default_batch_tokens
from lastword.model.options import HeadDtype, LoadOptions, refuse_unknown, takes_keywords
from lastword.model.phases import phase
from lastword.model.prefixes import Prefixes
from lastword.model.readout import Readout
from lastword.rule.decision import Decision
from lastword.rule.geometry import Scores, Trajectory
from lastword.rule.operators import OPERATORS, Step
from lastword.rule.router import Verdict, next_step, settle
from lastword.rule.scorer import Scorer
from lastword.text.forest import plan
from lastword.text.items import Blind, Item, as_item, rows_of
from lastword.text.tokens import Chat, Encoded, Overflow, Tokenizer, describe_chat, encode
from lastword.theta import Theta
from lastword.trust.certificate import Certificate, Subject
from lastword.weights.invariant import Factors, model_invariant

Read = Literal["decide", "all", "base"]


class Tracer:
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
        prefix_cache: MiB of keys and values of prefixes that come back; the model's weights then
            have to stay as they are.
        head_dtype: `float32` logits, or the `model`'s dtype for speed.
        attention: What attends: an implementation by its name, which the model must have been
            given; `model` for whichever it has; or `auto`, which on a CUDA device takes flex
            attention on packed forests where that is as right and faster.
        overflow: What to do with an item that does not fit the context.
        chat: Put prompts into the tokenizer's chat template.
        source: What `describe` records of where the model came from.
        certificate: Which overrides are let through (`lastword certify`), or its file; all without.

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
        head_dtype: HeadDtype = "float32",
        attention: str = "auto",
        overflow: Overflow = "error",
        chat: Chat | None = None,
        source: dict[str, Any] | None = None,
        certificate: Certificate | str | Path | None = None,
    ) -> None:
        if isinstance(certificate, str | Path):
            certificate = Certificate.read(certificate)
        self.theta = theta or Theta()
        self.tokenizer = tokenizer
        self.overflow, self.chat = overflow, chat
        backbone = Backbone(model)
        self.theta.window(backbone.depth)  # a model that is too shallow is refused here
        self.readout = Readout(model, backbone.parts, head_dtype)
        # The check runs the model itself, and shrinks its windows.
        with backbone.lock, evaluating(model):
            self.checked = check(backbone, self.readout, attention)
        if self.checked.fused is not None and self.checked.fused.taken:
            self.readout = self.readout.fused()
        prefixes = Prefixes(prefix_cache * 2**20) if prefix_cache and self.checked.keeps else None
        self.backbone = backbone.on(self.checked.road, self.checked.attention, prefixes)
        self.factors, self.invariant = _invariant_of(model, invariant, self.theta)
        self.scorer = Scorer(self.theta, self.backbone.depth, self.readout.vocabulary)
        self.batch_tokens = batch_tokens or default_batch_tokens(
            self.backbone.config, model.dtype, self.backbone.device
        )
        self.head_dtype = head_dtype
        self.source = source or {"model": model.config.name_or_path or type(model).__name__}
        self.certificate = certificate
        if certificate is not None:
            certificate.check(Subject.of(self.describe()))

    @classmethod
    @takes_keywords(LoadOptions)
    def from_pretrained(cls, options: LoadOptions) -> "Tracer":
        """A tracer for a checkpoint: a hub name, a local folder, or the folder of a LoRA adapter.

        Under torchrun the ranks share the model; each must make the same calls.

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
        loaded = loading.load(options)
        invariant = loading.invariant_of(loaded, options)
        layout = settle_layout(loaded.model, options.layout)  # past I(M), which reads the weights
        tracer = cls(
            loaded.model,
            loaded.tokenizer,
            invariant=invariant,
            theta=options.theta,
            batch_tokens=options.batch_tokens,
            prefix_cache=options.prefix_cache,
            head_dtype=options.head_dtype,
            # What was asked for is loaded, though transformers may know it by another name.
            attention="auto" if options.attention == "auto" else "model",
            overflow=options.overflow,
            chat=options.chat,
            source=loaded.source,
            certificate=options.certificate,
        )
        tracer.checked = replace(tracer.checked, layout=layout)
        return tracer

    def correct(
        self,
        prompt: str | Sequence[Mapping[str, str]],
        candidates: Sequence[str],
        *,
        separator: str = " ",
        read: Read = "decide",
    ) -> Decision:
        """The corrected choice among the candidates of one prompt.

        Args:
            prompt: Text before the answer, or the messages of a conversation (role and content),
                which the tokenizer's chat template writes.
            candidates: The answers to choose from; a list, not one text.
            separator: Text between prompt and candidate.
            read: `decide` reads what the decision needs, `all` every depth and T, `base` depth L.

        Raises:
            ItemError: An item that cannot be answered.
            NonFiniteError: Logits that are not finite.
        """
        given = {"prompt": prompt, "candidates": candidates, "separator": separator}
        item = Item.from_dict(given)
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
            read: As in `correct`.
            methods: As in `decide`.
            blind: As in `decide`.
            ahead: Items of a generator that are read, checked and planned together.

        Raises:
            InputError: No items at all: one dictionary.
            ItemError: The first item of the sequence, or of those read together, that cannot be
                answered, before any of them is.
        """
        first = 0
        pieces = [items] if isinstance(items, Sequence) else _pieces(rows_of(items), ahead)
        for piece in pieces:
            ready = [as_item(value, first + place) for place, value in enumerate(piece)]
            encoded = []
            for result in self.encode(ready, first):
                if isinstance(result, ItemError):
                    raise result
                encoded.append(result)
            yield from self.correct_encoded(encoded, read, methods, blind=blind)
            first += len(piece)

    def correct_encoded(
        self,
        encoded: Sequence[Encoded],
        read: Read = "decide",
        methods: Mapping[str, Method] | None = None,
        *,
        blind: Blind = "base",
    ) -> Iterator[Decision]:
        """Decisions in the order of the encoded items; batches are computed as needed.

        Args:
            encoded: Items that `encode` accepted.
            read: As in `correct`.
            methods: As in `decide`.
            blind: As in `decide`.
        """
        done: dict[int, Decision] = {}
        groups = iter(self.plan(encoded))
        for place in range(len(encoded)):
            while place not in done:
                group = next(groups)
                some = [encoded[i] for i in group]
                decisions = self.decide(some, read, methods, blind=blind)
                done.update(zip(group, decisions, strict=True))
            yield done.pop(place)

    def encode(self, items: Sequence[Item], first: int = 0) -> list[Encoded | ItemError]:
        """Every item as token ids, or as the error that names it.

        Args:
            items: The items.
            first: Place of the first among all that are read, for the names of those without id.
        """
        return encode(
            items,
            self.tokenizer,
            theta=self.theta,
            context=self.backbone.context,
            overflow=self.overflow,
            chat=self.chat,
            first=first,
        )

    def plan(self, encoded: Sequence[Encoded]) -> list[list[int]]:
        """Groups of items that are computed together, as places; shared prefixes stay together.

        A group holds at most `batch_tokens` distinct tokens, or one item that is larger.
        """
        prompts = [
            (branches_of(e)[: len(e.sequences)], branches_of(e)[len(e.sequences) :])
            for e in encoded
        ]
        return plan(prompts, self.batch_tokens)

    def decide(
        self,
        encoded: Sequence[Encoded],
        read: Read = "decide",
        methods: Mapping[str, Method] | None = None,
        blind: Blind = "base",
    ) -> list[Decision]:
        """Decisions of one group, in order, from one pass of the model.

        Args:
            encoded: The items of one group of the plan.
            read: As in `correct`.
            methods: Peers that score the items too, by name (`lastword.methods.resolve`).
            blind: After blind prompts `base` reads depth L, `all` every depth and T, `none` none.

        Raises:
            NonFiniteError: Logits that are not finite.
        """
        methods, depth = methods or {}, self.backbone.depth
        if blind == "none":
            encoded = [*map(_sighted, encoded)]
        every = Step(frozenset(range(depth + 1)), scorer=True)
        step = _step_of(methods.values(), self.scorer)
        if read == "all":
            step = replace(every, peers=step.peers)
        few = read == "base" and blind != "all"
        with phase("trunk"):
            batch = self._batch(encoded, methods, step.depths | {depth} if few else every.depths)
        with phase("readout"):
            batch.read_blind(every if blind == "all" else Step(frozenset([depth])))
            if methods:
                batch.read(range(len(encoded)), step)
            verdicts = settle(
                len(encoded), lambda i: self._next(batch.trajectory(i), read), batch.read
            )
        decisions = [
            replace(_decision(self, e, batch, i, verdicts[i]), methods=_scores(batch, i, methods))
            for i, e in enumerate(encoded)
        ]
        return decisions if self.certificate is None else [*map(self.certificate.obey, decisions)]

    def compare(
        self, encoded: Sequence[Encoded], methods: Mapping[str, Method]
    ) -> list[dict[str, Scores | None]]:
        """Every method's scores of one group, in order: one pass that reads what they need.

        Args:
            encoded: The items of one group of the plan.
            methods: By name (`lastword.methods.resolve`).

        Returns:
            Scores [candidates] by method; None where a method does not apply to the item.

        Raises:
            NonFiniteError: Logits that are not finite.
        """
        needs_blind = any(method.needs.blind for method in methods.values())
        if not needs_blind:
            encoded = [*map(_sighted, encoded)]
        step = _step_of(methods.values(), self.scorer)
        needed = step.depths | {self.backbone.depth} if needs_blind else step.depths
        batch = self._batch(encoded, methods, needed)
        batch.read(range(len(encoded)), step)
        if needs_blind:
            batch.read_blind(Step(frozenset([self.backbone.depth])))
        return [_scores(batch, i, methods) for i in range(len(encoded))]

    def __repr__(self) -> str:
        """One line: the model, how it is run, and what its invariant chooses."""
        config, high = self.backbone.config, self.invariant > self.theta.tau_I
        told = [
            repr(str(self.source["model"])),
            f"{config.model_type} of {self.backbone.depth} blocks",
            f"{str(self.backbone.dtype).removeprefix('torch.')} on {self.backbone.device}",
            f"I(M) = {self.invariant:.4g} ({'mix' if high else 'early'} branch)",
            *(["theta outside the paper"] if self.theta.outside_paper else []),
            *(["certified"] if self.certificate is not None else []),
        ]
        return f"Tracer({', '.join(told)})"

    @property
    def facts(self) -> Facts:
        """What methods are made from."""
        vocabulary = self.readout.vocabulary
        return Facts(self.backbone.depth, vocabulary, self.invariant, self.theta)

    def _batch(
        self, encoded: Sequence[Encoded], methods: Mapping[str, Method], depths: frozenset[int]
    ) -> Batch:
        """States of a group at `depths` and wherever a method looks; nothing is read yet."""
        branches = [b for e in encoded for b in branches_of(e)]
        raw = [m.needs.raw for m in methods.values()]
        captured = depths.union(*raw) or frozenset([0])
        states = self.backbone.states(branches, sorted(captured), self.batch_tokens)
        peers = {n: s for n, m in methods.items() if (s := m.needs.scorer) is not None}
        return Batch(encoded, states, self.readout, self.scorer, self.backbone.depth, peers)

    def _next(self, trajectory: Trajectory, read: Read) -> Step | Verdict:
        """What a reading mode still needs of a trajectory, or the verdict."""
        every = range(trajectory.depth + 1)
        if read == "all" and (trajectory.t is None or not trajectory.has(every)):
            return Step(frozenset(every), scorer=True)
        if read == "base":
            base = OPERATORS["base"]
            return base.needs(trajectory, self.theta) or Verdict(
                "scalar", np.nan, base.correct(trajectory, self.theta)
            )
        return next_step(trajectory, self.invariant, self.theta)

    def describe(self) -> dict[str, Any]:
        """What a run records of the model and the method, as plain JSON values."""
        return {
            "dtype": str(self.backbone.dtype).removeprefix("torch."),
            **self.source,
            "model_type": self.backbone.config.model_type,
            "depth": self.backbone.depth,
            "vocabulary": self.readout.vocabulary,
            "context": self.backbone.context,
            "attention": self.backbone.attention,
            "head_dtype": self.head_dtype,
            "overflow": self.overflow,
            "chat": None if self.chat is None else describe_chat(self.tokenizer, self.chat),
            "check": asdict(self.checked),
            "invariant": self.invariant,
            "invariant_factors": None if self.factors is None else asdict(self.factors),
            "theta": self.theta.to_dict(),
            "outside_paper": self.theta.outside_paper,
            "certificate": None if self.certificate is None else self.certificate.describe(),
        }


def _invariant_of(
    model: PreTrainedModel, given: float | Factors | None, theta: Theta
) -> tuple[Factors | None, float]:
    """I(M) as it was given, or from the weights; with its factors where they are known."""
    found = model_invariant(model, theta=theta) if given is None else given
    factors = found if isinstance(found, Factors) else None
    value = found.value if isinstance(found, Factors) else float(found)
    if not 0 <= value < np.inf:
        raise InvariantError(f"I(M) is a finite number from 0, not {value:g}")
    return factors, value


def _pieces(items: Iterable[Any], size: int) -> Iterator[list[Any]]:
    rest = iter(items)
    while piece := list(islice(rest, size)):
        yield piece


def _sighted(encoded: Encoded) -> Encoded:
    """The item without its blind prompt."""
    return replace(encoded, blind_sequences=(), blind_boundaries=())


def _step_of(methods: Iterable[Method], scorer: Scorer) -> Step:
    """What all of these methods need read together."""
    needs = [method.needs for method in methods]
    t = any(n.t for n in needs)
    depths = frozenset(scorer.depths if t else ()).union(*(n.normed for n in needs))
    return Step(depths, scorer=t, peers=any(n.scorer is not None for n in needs))


def _scores(batch: Batch, item: int, methods: Mapping[str, Method]) -> dict[str, Scores | None]:
    return {name: m.scores(batch.evidence(item, name)) for name, m in methods.items()}


def _decision(
    tracer: Tracer, encoded: Encoded, batch: Batch, place: int, verdict: Verdict
) -> Decision:
    blind = batch.blind(place)
    whole = blind if blind is not None and blind.t is not None else None
    return replace(
        verdict.decision(encoded.item.candidates, batch.trajectory(place), tracer.invariant),
        blind_scores=None if blind is None else blind.base,
        blind_trajectory=None if whole is None else whole.scores,
        blind_t_scores=None if whole is None else whole.t,
        truncated=encoded.truncated,
        id=encoded.item.id,
    )
