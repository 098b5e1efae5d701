"""Tracer: a model's choice among candidates, corrected by TRACE or by another correction."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import cached_property, partial
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import numpy as np
from jaxtyping import Float
from transformers import PreTrainedModel

from lastword.decide.batch import Batch, Read, ReadPlan, Scope
from lastword.errors import InvariantError, ItemError, NonFiniteError, TraceError
from lastword.files.strict_json import strict
from lastword.methods.contract import Evidence, Facts, Method
from lastword.methods.correction import Correction
from lastword.methods.trace import Trace
from lastword.model import embedded
from lastword.model.backbone import Backbone
from lastword.model.backend import Backend, Local, Pooled, Profile
from lastword.model.loaded import carried
from lastword.model.options import LoadOptions, refuse_unknown
from lastword.model.readout import Readout
from lastword.model.weights.invariant import Factors, model_invariant
from lastword.records.decision import Decision
from lastword.rule.geometry import Scores
from lastword.rule.operators import OPERATORS, Step
from lastword.rule.router import Ruling, settle
from lastword.rule.scorer import Scorer, ScorerReadings
from lastword.rule.theta import Theta
from lastword.text.branch import Branch
from lastword.text.forest import plan
from lastword.text.items import Blind, Item, as_item, rows_of
from lastword.text.tokens import EncodedItem, Tokenizer, describe_chat, encode, require_settled

if TYPE_CHECKING:
    from lastword.model.blind import BlindScores
    from lastword.text.passages import Passage

OnError = Literal["raise", "return"]
T = TypeVar("T")


class Tracer:
    """Corrects a model's choice among candidate answers.

    Several threads may use one tracer: forward passes take turns, readouts do not. The model keeps
    its weights, config and modes, and has no hook after a call. Run the model yourself only between
    calls. The tracer reads the model's head when it is made: make another after changing the head.

    Args:
        model: A transformers decoder-only language model, in memory.
        tokenizer: Its tokenizer.
        invariant: I(M), if it is known or the model has none; read from the weights otherwise.
        source: What `describe` records of where the model came from.
        options: Fields of `LoadOptions` that say how the model is read: `theta`, `chat`,
            `overflow`, `batch_tokens`, `prefix_cache`, `blind_cache`, `head_dtype`, `attention`.

    Attributes:
        options: How the model is read; with `backend` and `tokenizer` what `over` takes.

    Raises:
        InputError: A keyword that is not an option.
        UnsupportedModelError: The model cannot be read; see `check`.
        InvariantError: I(M) is undefined and none was given, or the given value is not finite.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: Tokenizer,
        *,
        invariant: float | Factors | None = None,
        source: dict[str, Any] | None = None,
        **options: Any,
    ) -> None:
        refuse_unknown("Tracer", options)
        options = {"prefix_cache": 0, "blind_cache": 0} | options  # the weights may change
        load = LoadOptions(model.config.name_or_path or type(model).__name__, **options)
        self._hold(Local(model, load, source), tokenizer, load, invariant)

    @classmethod
    def over(
        cls,
        backend: Backend,
        tokenizer: Tokenizer,
        options: LoadOptions,
        invariant: float | Factors | None = None,
    ) -> "Tracer":
        """Make a tracer of a model in this process or in another.

        Args:
            backend: The source of its states.
            tokenizer: Its tokenizer.
            options: How it is read.
            invariant: I(M); read from the weights if not given, which needs the model here.

        Raises:
            ElsewhereError: I(M) is not given, and the model is in another process.
        """
        tracer = cls.__new__(cls)
        tracer._hold(backend, tokenizer, options, invariant)
        return tracer

    def _hold(
        self,
        backend: Backend,
        tokenizer: Tokenizer,
        options: LoadOptions,
        invariant: float | Factors | None,
    ) -> None:
        profile = backend.profile
        self.backend, self.tokenizer, self.options = backend, tokenizer, options
        require_settled(tokenizer, options.chat)
        self.theta = options.theta or Theta()
        self.overflow, self.chat, self.head_dtype = (
            options.overflow,
            options.chat,
            options.head_dtype,
        )
        self.source, self.checked = backend.source, backend.checked
        self.factors, self.invariant = _invariant_of(backend, invariant, self.theta)
        self.scorer = Scorer(self.theta, profile.depth, profile.vocabulary)
        self._trace = Trace(self.facts)
        self._blind_budget = options.blind_cache * 2**20
        self.batch_tokens = options.batch_tokens or backend.batch_tokens

    @classmethod
    def from_pretrained(cls, model: str | Path | LoadOptions, **options: Any) -> "Tracer":
        """Load a checkpoint: a hub name, a local folder, a GGUF file, or a LoRA adapter's folder.

        Args:
            model: Its name or path, or a `LoadOptions` with everything.
            options: Fields of `LoadOptions`.

        Raises:
            InputError: A keyword that is not an option; nothing has been loaded yet.
            ModelError: The checkpoint is missing, unreadable or cannot be used.
        """
        if not isinstance(model, LoadOptions):
            refuse_unknown("Tracer.from_pretrained", options)
            model = LoadOptions(model, **options)
        request = model
        invariant: float | Factors | None = request.invariant
        if request.embedded is not None:
            loaded = carried(request)
            if invariant is None:
                theta = request.theta or Theta()
                invariant = model_invariant(loaded.model, theta=theta, readings=True)
        else:
            from lastword.model import loading  # much, and nothing of it for what is carried

            loaded = loading.load(request)
            invariant = loading.invariant_of(loaded, request)
        # What was asked for is loaded, though transformers may know it by another name.
        attention = "auto" if request.attention == "auto" else "model"
        local = Local(loaded.model, replace(request, attention=attention), loaded.source)
        return cls.over(local, loaded.tokenizer, request, invariant)

    @classmethod
    def demo(cls, name: str = "organism", **options: Any) -> "Tracer":
        """Load an embedded model.

        Args:
            name: `organism`, `mix`, or the control of either: `control`, `mix-control`.
            options: As `from_pretrained`, of those that change something here.

        Raises:
            InputError: An unknown name or keyword.
        """
        refuse_unknown("Tracer.demo", options)
        return cls.from_pretrained(LoadOptions(embedded.EMBEDDED + name, **options))

    @property
    def profile(self) -> Profile:
        """Return the model's profile."""
        return self.backend.profile

    @cached_property
    def digests(self) -> dict[str, str]:
        """Return digests of the model by part: of its files, or of the tensors that were given."""
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
        """The model's head; see `Backend.local`."""
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
        """Return the corrected choice among the candidates of one prompt.

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
        decision: Decision = next(self.correct_many([item], read=read))
        return decision

    def correct_many(
        self,
        items: Iterable[Any],
        read: Read = "decide",
        methods: Mapping[str, Method] | None = None,
        *,
        blind: Blind = "base",
        correction: Correction | None = None,
        ahead: int = 1024,
        on_error: OnError = "raise",
    ) -> Iterator[Any]:
        """Return decisions in the order of the items, computed as they are taken.

        A sequence is checked whole before any of it is answered. Any other iterable is read as its
        decisions are taken, at most `ahead` items before them: it may be endless.

        Args:
            items: Each an `Item`, a dictionary with its fields, or (prompt, candidates); or their
                rows: a pandas or Polars frame, a `datasets.Dataset`.
            read: As in `Scope`.
            methods: As in `Scope`.
            blind: As in `Scope`.
            correction: As in `Scope`.
            ahead: Items of a generator that are read, checked and planned together.
            on_error: `return` gives an item's error in its place; `raise` raises the first.

        Raises:
            InputError: No items at all: one dictionary.
            ItemError: An item that cannot be answered, before any of those read together is.
            NonFiniteError: Logits that are not finite.
        """
        scope = Scope(read, blind, methods or {}, correction)
        return answered(
            items, self.encode, partial(self.correct_encoded, scope=scope), ahead, on_error
        )

    def correct_encoded(
        self,
        encoded: Sequence[EncodedItem],
        scope: Scope = Scope(),  # noqa: B008 - frozen
    ) -> Iterator[Decision | NonFiniteError]:
        """Return decisions in the order of the encoded items; batches are computed as needed."""
        return grouped(encoded, self.plan, partial(self.decide_group, scope=scope))

    def pooled(self, passages: "Sequence[Passage]", depths: Sequence[int]) -> Pooled:
        """Return the mean state of each passage at some depths, in float32.

        The trunk stops at the deepest of the depths; no head is run. A state may be NaN or
        infinite: `not_finite` tells.
        """
        branches = [Branch((*p.tokens, p.tokens[0]), p.start + 1) for p in passages]
        out = np.empty((len(branches), len(depths), self.profile.width), dtype=np.float32)
        for group in plan([[[branch]] for branch in branches], self.batch_tokens):
            some = [branches[i] for i in group]
            compute = partial(self.backend.pooled, some, depths, self.batch_tokens)
            out[group] = self.backend.transact(compute)
        return out

    def encode(self, items: Sequence[Item], first: int = 0) -> list[EncodedItem | ItemError]:
        """Return every item as token ids, or as the error that names it.

        Args:
            items: The items.
            first: Place of the first among all that are read, for the names of those without id.
        """
        return encode(
            items,
            self.tokenizer,
            theta=self.theta,
            context=self.profile.context,
            overflow=self.overflow,
            chat=self.chat,
            first=first,
            vocabulary=self.profile.vocabulary,
        )

    def plan(self, encoded: Sequence[EncodedItem]) -> list[list[int]]:
        """Return groups of items that are computed together, as places.

        Shared prefixes stay together. A group holds at most `batch_tokens` distinct tokens, or one
        item that is larger.
        """
        return plan([[p.branches for p in e.prompts] for e in encoded], self.batch_tokens)

    def decide_group(
        self,
        encoded: Sequence[EncodedItem],
        scope: Scope = Scope(),  # noqa: B008 - frozen
    ) -> list[Decision | NonFiniteError]:
        """Return the decisions of one group, in order, from one pass of the model.

        An item with logits that are not finite gets its error in the place of a decision.
        """
        self._require_vocabularies(scope.methods)
        return self.backend.transact(lambda: self._decide(encoded, scope))

    def compare(
        self, encoded: Sequence[EncodedItem], methods: Mapping[str, Method]
    ) -> list[dict[str, Scores | None]]:
        """Return every method's scores of one group, in order: one pass reads what they need.

        Returns:
            Scores [candidates] by method; None if a method does not apply to the item.

        Raises:
            NonFiniteError: Logits that are not finite.
        """
        self._require_vocabularies(methods)
        return self.backend.transact(lambda: self._compare(encoded, methods))

    def _decide(
        self, encoded: Sequence[EncodedItem], scope: Scope
    ) -> list[Decision | NonFiniteError]:
        # The trunk runs once and keeps the states of every depth that anything may ask for; the
        # head, which is the dear part, then reads only what each item turns out to need. First
        # what the scope itself wants, of all items together; then the router asks item by item,
        # and items that need the same next step are read in one go (`settle`).
        correction = scope.correction or self._trace
        if not self.backend.vocabularies:  # T alone is computed there
            scope = replace(scope, readings=False)
        plan = ReadPlan.of_scope(scope, correction.needs, self.scorer)
        batch = self._batch(encoded, plan)
        batch.read_plan()

        def ask(item: int) -> Step | Ruling | NonFiniteError:
            return batch.fault(item) or self._next(batch.evidence(item), scope.read, correction)

        verdicts: list[Ruling | NonFiniteError] = settle(len(encoded), ask, batch.read)
        if plan.reuse and self._blind_budget and (scores := [*batch.without_input()]):
            self._blind_scores.keep(scores)
        return [
            verdict
            if isinstance(verdict, NonFiniteError)
            else _decision(self, e, batch, i, verdict, correction.name)
            for i, (e, verdict) in enumerate(zip(encoded, verdicts, strict=True))
        ]

    def _compare(
        self, encoded: Sequence[EncodedItem], methods: Mapping[str, Method]
    ) -> list[dict[str, Scores | None]]:
        batch = self._batch(encoded, ReadPlan.of_methods(methods, self.scorer))
        batch.read_plan()
        for place in range(len(encoded)):
            if (fault := batch.fault(place)) is not None:
                raise fault
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
        """Return one line: the model, how it is run, and the branch that its invariant chooses."""
        profile, high = self.profile, self.invariant > self.theta.tau_I
        parts = [
            repr(str(self.source["model"])),
            f"{profile.model_type} of {profile.depth} blocks",
            f"{profile.precision} on {profile.device}",
            f"I(M) = {self.invariant:.4g} ({'mix' if high else 'early'} branch)",
            *(["theta outside the paper"] if self.theta.outside_paper else []),
        ]
        return f"Tracer({', '.join(parts)})"

    @property
    def invariant_readings(self) -> dict[str, float]:
        """Return I(M) by each reading of it; {} if it was given or its weights are elsewhere."""
        return {} if self.factors is None else dict(self.factors.readings)

    @property
    def facts(self) -> Facts:
        """Return what methods are made from."""
        profile = self.profile
        return Facts(profile.depth, profile.vocabulary, self.invariant, self.theta)

    def _batch(self, encoded: Sequence[EncodedItem], plan: ReadPlan) -> Batch:
        """Compute the states of a group at the depths of a plan; the head has read nothing yet.

        Candidates whose score without the input is known are not computed again.
        """
        encoded = [plan.pared(e) for e in encoded]
        known = self._known(encoded) if plan.reuse and self._blind_budget else {}
        every = (b for e in encoded for p in e.prompts for b in p.branches)
        branches = [b for row, b in enumerate(every) if row not in known]
        states = self.backend.states(branches, sorted(plan.depths) or [0], self.batch_tokens)
        readers = self._readings.token_scorers() if plan.main.readings else {}
        return Batch(encoded, states, self.backend.read, self.scorer, plan, known, readers)

    @cached_property
    def _readings(self) -> ScorerReadings:
        return ScorerReadings(self.scorer, self.theta, self.profile.vocabulary)

    @cached_property
    def _blind_scores(self) -> "BlindScores":
        from lastword.model.blind import BlindScores

        return BlindScores(self._blind_budget)

    def _known(self, encoded: Sequence[EncodedItem]) -> dict[int, float]:
        """Return depth L of branches without the input that were read before, by place."""
        known: dict[int, float] = {}
        row = 0
        for e in encoded:
            row += len(e.prompt.branches)
            branches = [*chain.from_iterable(p.branches for p in e.prompts[1:])]
            if branches:
                scores = enumerate(self._blind_scores.find(branches), row)
                known |= {place: score for place, score in scores if score is not None}
            row += len(branches)
        return known

    def _next(self, evidence: Evidence, read: Read, correction: Correction) -> Step | Ruling:
        """Return what a reading mode still needs of an item, or the verdict."""
        trajectory = evidence.trajectory
        every = range(trajectory.depth + 1)
        if read == "all" and (trajectory.t is None or not trajectory.has(every)):
            return Step(frozenset(every), scorer=True)
        if read == "base":
            base = OPERATORS["base"]
            return base.needs(trajectory, self.theta) or Ruling(
                "scalar", np.nan, base.correct(trajectory, self.theta)
            )
        return correction.next(evidence)

    def describe(self) -> dict[str, Any]:
        """Return what a run records of the model and the method, as plain JSON values."""
        profile = self.profile
        factors = {} if self.factors is None else asdict(self.factors)
        readings = factors.pop("readings", {})
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
            "invariant_factors": factors or None,
            "invariant_readings": strict(readings),
            "theta": self.theta.to_dict(),
            "outside_paper": self.theta.outside_paper,
        }


def _invariant_of(
    backend: Backend, given: float | Factors | None, theta: Theta
) -> tuple[Factors | None, float]:
    """Return I(M), given or from the weights, and its factors if they are known."""
    if given is None:
        given = model_invariant(backend.local("reading I(M)").backbone.model, theta=theta)
    factors = given if isinstance(given, Factors) else None
    value = given.value if isinstance(given, Factors) else float(given)
    if not 0 <= value < np.inf:
        raise InvariantError(f"I(M) is a finite number from 0, not {value:g}")
    return factors, value


def grouped(
    encoded: Sequence[EncodedItem],
    plan: Callable[[Sequence[EncodedItem]], list[list[int]]],
    decide: Callable[[Sequence[EncodedItem]], list[T]],
) -> Iterator[T]:
    """Decide items group by group, and yield the decisions in the order of the items."""
    done: dict[int, T] = {}
    groups = iter(plan(encoded))
    for place in range(len(encoded)):
        while place not in done:
            group = next(groups)
            decisions = decide([encoded[i] for i in group])
            done.update(zip(group, decisions, strict=True))
        yield done.pop(place)


def answered(
    items: Iterable[Any],
    encode: Callable[[Sequence[Item], int], list[EncodedItem | ItemError]],
    answer: Callable[[Sequence[EncodedItem]], Iterator[Any]],
    ahead: int,
    on_error: OnError,
) -> Iterator[Any]:
    """Encode items and answer them, in order; see `Tracer.correct_many`."""
    first = 0
    pieces = [items] if isinstance(items, Sequence) else _pieces(rows_of(items), ahead)
    for piece in pieces:
        items_or_errors = [_as_item(value, first + i, on_error) for i, value in enumerate(piece)]
        valid = [item for item in items_or_errors if isinstance(item, Item)]
        encoded = iter(encode(valid, first))
        results = [next(encoded) if isinstance(one, Item) else one for one in items_or_errors]
        if on_error == "raise":
            for result in results:
                if isinstance(result, ItemError):
                    raise result
        decisions = answer([one for one in results if isinstance(one, EncodedItem)])
        for result in results:
            outcome = next(decisions) if isinstance(result, EncodedItem) else result
            if on_error == "raise" and isinstance(outcome, TraceError):
                raise outcome
            yield outcome
        first += len(piece)


def _as_item(value: Any, place: int, on_error: OnError) -> Item | ItemError:
    try:
        return as_item(value, place)
    except ItemError as error:
        if on_error == "raise":
            raise
        return error


def sound(decision: Decision | NonFiniteError) -> Decision:
    """Return a decision, or raise the error in its place."""
    if isinstance(decision, NonFiniteError):
        raise decision
    return decision


def not_finite(
    states: Float[np.ndarray, "*batch depths width"], depths: Sequence[int]
) -> NonFiniteError | None:
    """Return the error of states [..., depths, width] that are not all finite, or None."""
    bad = ~np.isfinite(states)
    if not bad.any():
        return None
    return NonFiniteError(
        depths[int(bad.any(axis=-1).reshape(-1, len(depths)).any(axis=0).argmax())]
    )


def _pieces(items: Iterable[Any], size: int) -> Iterator[list[Any]]:
    rest = iter(items)
    while piece := list(islice(rest, size)):
        yield piece


def _decision(
    tracer: Tracer, encoded: EncodedItem, batch: Batch, place: int, verdict: Ruling, method: str
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
        t_readings=batch.readings(place),
        truncated=encoded.prompt.truncated,
        id=encoded.item.id,
        method=method,
        methods=batch.scores(place),
    )
