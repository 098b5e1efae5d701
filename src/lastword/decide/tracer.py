"""Tracer: corrects a model's choice among candidates, with TRACE or another correction."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float
from transformers import PreTrainedModel

from lastword.decide.batch import Batch, Read, Scope
from lastword.decide.priors import Priors
from lastword.decide.stream import OnError, answered
from lastword.errors import InvariantError, ItemError, NonFiniteError
from lastword.files.strict_json import strict
from lastword.methods.contract import Facts, ItemReadings, Method
from lastword.methods.trace import trace
from lastword.model import embedded, loading
from lastword.model.backbone import Backbone, Pooled
from lastword.model.backend import LanguageModel, Profile
from lastword.model.digest import digests
from lastword.model.layout import lay_out_if_faster
from lastword.model.options import LoadOptions, refuse_unknown
from lastword.model.own_readout import Lens, OwnReadout
from lastword.model.parts import locate
from lastword.model.readout import Readout
from lastword.model.weights.identity import tensors_digest
from lastword.model.weights.invariant import Factors, model_invariant
from lastword.records.decision import Decision
from lastword.rule.operators import OPERATORS, Ruling, Step
from lastword.rule.router import settle
from lastword.rule.scorer import Scorer
from lastword.rule.theta import Theta
from lastword.text.chat import describe_chat, require_settled
from lastword.text.forest import Branch, plan
from lastword.text.items import Item
from lastword.text.prompt_template import Blind
from lastword.text.tokenizer import Tokenizer
from lastword.text.tokens import EncodedItem, Passage, encode, encode_passages


class Tracer:
    """A model whose choices among candidates can be corrected.

    Several threads may share one tracer: forward passes take turns, readouts run in parallel. A
    call leaves weights, config and modes of the model unchanged, and removes its hooks. Run the
    model yourself only between calls. The head is read once, in the constructor: make a new tracer
    after changing the head.

    Args:
        model: A transformers decoder-only language model, in memory, or one that was checked.
        tokenizer: Its tokenizer.
        invariant: I(M); by default it is computed from the weights.
        source: The origin of the model, as `describe` records it.
        load: All options of running it; needed for a checked model.
        readout: A function of states and their layer that gives logits in the place of the head,
            such as a tuned lens. At the last layer it has to give the model's.
        options: Fields of `LoadOptions` instead: `theta`, `chat`, `overflow`, `batch_tokens`,
            `prefix_cache`, `head_dtype`, `attention`.

    Raises:
        InputError: A keyword is not an option.
        UnsupportedModelError: The model cannot be read; see `check`.
        InvariantError: I(M) is undefined and none was given, or the given value is not finite.
    """

    def __init__(
        self,
        model: PreTrainedModel | LanguageModel,
        tokenizer: Tokenizer,
        *,
        invariant: float | Factors | None = None,
        source: dict[str, Any] | None = None,
        load: LoadOptions | None = None,
        readout: Lens | None = None,
        **options: Any,
    ) -> None:
        if load is None:
            refuse_unknown("Tracer", options)
            assert not isinstance(model, LanguageModel), "a checked model comes with its options"
            name = model.config.name_or_path or type(model).__name__
            # The user may change the weights, so nothing is cached by default.
            load = LoadOptions(name, **{"prefix_cache": 0} | options)
        if not isinstance(model, LanguageModel):
            model = LanguageModel(model, load, source)
        profile = model.profile
        self.model, self.tokenizer, self.options = model, tokenizer, load
        self.lens = readout
        self.readout: Readout | OwnReadout = model.readout
        if readout is not None:
            self.readout = OwnReadout(model.readout, readout, model.backbone)
        require_settled(tokenizer, load.chat)
        self._theta = load.theta or Theta()
        self.overflow, self.chat = load.overflow, load.chat
        self.head_dtype = load.head_dtype
        self.source, self.checked = model.source, model.checked
        self.factors, self._invariant = _invariant_of(model, invariant, self.theta)
        self.scorer = Scorer(self.theta, profile.depth, profile.vocabulary)
        self._trace, self._priors = trace(self.facts), Priors()
        self.batch_tokens = load.batch_tokens or model.batch_tokens

    @property
    def theta(self) -> Theta:
        """The constants and switches of the method; `with_theta` gives a tracer with others."""
        return self._theta

    @property
    def invariant(self) -> float:
        """The model invariant I(M) that selects the scalar branch (Eq. 16)."""
        return self._invariant

    def with_theta(self, theta: Theta) -> "Tracer":
        """Return a tracer of the same model in memory with other constants.

        I(M) is computed again only if `theta` asks for another variant of it.
        """
        same = theta.invariant == self.theta.invariant
        known = (self.factors or self.invariant) if same else None
        load = replace(self.options, theta=theta)
        return Tracer(self.model, self.tokenizer, invariant=known, load=load, readout=self.lens)

    @classmethod
    def from_pretrained(cls, model: str | Path | LoadOptions, **options: Any) -> "Tracer":
        """Load a checkpoint: a hub name, a local folder, a GGUF file, or a LoRA adapter's folder.

        The blocks' weights may be laid out for oneDNN (`model/layout.py`), and then cannot be
        changed; those of a model that is given to `Tracer` are not.

        Args:
            model: Its name or path, or a `LoadOptions` with everything.
            options: Fields of `LoadOptions`.

        Raises:
            InputError: A keyword is not an option. This is checked before anything is loaded.
            ModelError: The checkpoint is missing, unreadable or cannot be used.
        """
        if not isinstance(model, LoadOptions):
            refuse_unknown("Tracer.from_pretrained", options)
            model = LoadOptions(model, **options)
        loaded = loading.load(model)
        invariant = loaded.invariant(model)  # before the check, which may take longer
        lay_out_if_faster(locate(loaded.model).blocks)
        # Record the name that the user gave; transformers may resolve it to another one.
        run = replace(model, attention="auto")
        ready = LanguageModel(loaded.model, run, loaded.source, loaded.source["asked"])
        return cls(ready, loaded.tokenizer, invariant=invariant, load=model)

    @classmethod
    def demo(cls, name: str = "organism", **options: Any) -> "Tracer":
        """Load an embedded model.

        Args:
            name: `organism`, `mix`, or the control of either: `control`, `mix-control`.
            options: As in `from_pretrained`, if they apply to an embedded model.

        Raises:
            InputError: An unknown name or keyword.
        """
        refuse_unknown("Tracer.demo", options)
        return cls.from_pretrained(LoadOptions(embedded.EMBEDDED + name, **options))

    @property
    def profile(self) -> Profile:
        """The sizes and names of the model."""
        return self.model.profile

    @property
    def backbone(self) -> Backbone:
        """The model's trunk."""
        return self.model.backbone

    @property
    def facts(self) -> Facts:
        """The facts of the model that methods are made from."""
        profile = self.profile
        return Facts(profile.depth, profile.vocabulary, self.invariant, self.theta)

    @property
    def invariant_readings(self) -> dict[str, float]:
        """I(M) by each reading of the paper; {} if it was given."""
        return {} if self.factors is None else dict(self.factors.readings)

    @cached_property
    def digests(self) -> dict[str, str]:
        """Digests by part of the model: of its files, or of its tensors if it was in memory."""
        if "asked" in self.source:
            return digests(self.source)
        state = self.backbone.model.state_dict()
        return digests(self.source) or {"weights": tensors_digest(state)}

    def correct(
        self,
        prompt: str | Sequence[Mapping[str, str]],
        candidates: Sequence[str],
        *,
        read: Read = "decide",
        **fields: Any,
    ) -> Decision:
        """Return the corrected choice among the candidates of one prompt.

        Args:
            prompt: Text before the answer, or the messages of a conversation (role and content),
                which are rendered with the tokenizer's chat template.
            candidates: The answers to choose from; a list, not a single text.
            read: As in `Scope`.
            fields: Other fields of an `Item`: `separator`, `blind_prompt`, `content_free`.

        Raises:
            ItemError: The item cannot be answered.
            NonFiniteError: Logits are not finite.
        """
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
        correction: Method | None = None,
        ahead: int = 1024,
        on_error: OnError = "raise",
    ) -> Iterator[Any]:
        """Yield decisions in the order of the items.

        A sequence is checked as a whole before the first answer. Any other iterable is read at
        most `ahead` items before the decisions that are consumed, so it may be endless.

        Args:
            items: `Item`s, dictionaries with their fields, or pairs (prompt, candidates); or a
                table with such rows: a pandas or Polars frame, or a `datasets.Dataset`.
            read: As in `Scope`.
            methods: As in `Scope`.
            blind: As in `Scope`.
            correction: As in `Scope`.
            ahead: Number of items of a generator that are read, checked and planned together.
            on_error: `return` yields an item's error in its place; `raise` raises the first one.

        Raises:
            InputError: `items` is a single dictionary.
            ItemError: An item cannot be answered. It is raised before any item that was read with
                it is answered.
            NonFiniteError: Logits are not finite.
        """
        scope = Scope(read, blind, methods or {}, correction)
        encode = partial(self.encode, correction=correction)
        decide = partial(self.correct_encoded, scope=scope)
        return answered(items, encode, decide, ahead, on_error)

    def token_scores(
        self, prompt: str | Sequence[Mapping[str, str]], candidates: Sequence[str]
    ) -> list[Float[np.ndarray, "_tokens layers"]]:
        """Return log p of each token of each candidate at every layer, in nats.

        Their means over a candidate's tokens are S, its row of `Decision.trajectory`.

        Raises:
            ItemError: The item cannot be read.
        """
        item = Item.from_dict({"prompt": prompt, "candidates": candidates})
        (encoded,) = self.encode([item])
        if isinstance(encoded, ItemError):
            raise encoded
        layers, branches = range(self.profile.depth + 1), encoded.prompt.branches
        states = self.model.backbone.states(branches, layers, self.batch_tokens)
        branch = states.reads.branch
        log_probs = self.readout.read(states, np.arange(len(branch)), layers).log_probs
        table = np.stack([log_probs[layer] for layer in layers], axis=1)
        return [table[branch == place] for place in range(len(branches))]

    def correct_encoded(
        self,
        encoded: Sequence[EncodedItem],
        scope: Scope = Scope(),  # noqa: B008 - frozen
    ) -> Iterator[Decision | NonFiniteError]:
        """Yield decisions in the order of the encoded items; batches are computed as needed."""
        # Groups follow shared prefixes, so decisions wait in `done` until it is their turn.
        done, groups = dict[int, Decision | NonFiniteError](), iter(self.plan(encoded))
        for place in range(len(encoded)):
            while place not in done:
                group = next(groups)
                decisions = self.decide_group([encoded[i] for i in group], scope)
                done.update(zip(group, decisions, strict=True))
            yield done.pop(place)

    def pooled(self, passages: Sequence[Passage], depths: Sequence[int]) -> Pooled:
        """Return the mean state of each passage at some depths, in float32; it may be NaN."""
        # The last token of a branch is not fed, so any one is added. Rows are read from the one
        # before the boundary on, so this is `start`.
        branches = [Branch((*p.tokens, p.tokens[0]), p.start + 1) for p in passages]
        out = np.empty((len(branches), len(depths), self.profile.width), dtype=np.float32)
        for group in plan([[[branch]] for branch in branches], self.batch_tokens):
            group_branches = [branches[i] for i in group]
            out[group] = self.backbone.pooled(group_branches, depths, self.batch_tokens)
        return out

    def passages(
        self,
        prompts: Sequence[str],
        inputs: Sequence[str] | None,
        names: Sequence[str | None] = (),
    ) -> list[Passage | ItemError]:
        """Return the tokens of each prompt to pool states of, or its error.

        `inputs` are the texts over which states are averaged; None for the last token's state.
        """
        return encode_passages(
            prompts,
            inputs,
            self.tokenizer,
            context=self.profile.context,
            overflow=self.overflow,
            chat=self.chat,
            vocabulary=self.profile.vocabulary,
            names=names,
        )

    def encode(
        self, items: Sequence[Item], first: int = 0, correction: Method | None = None
    ) -> list[EncodedItem | ItemError]:
        """Return each item as token ids, or its error."""
        encoded = encode(
            items,
            self.tokenizer,
            theta=self.theta,
            context=self.profile.context,
            overflow=self.overflow,
            chat=self.chat,
            first=first,
            vocabulary=self.profile.vocabulary,
        )
        if correction is None:
            return encoded
        for place, one in enumerate(encoded):
            if isinstance(one, ItemError):
                continue
            if lack := correction.lacks(one.blind is not None, bool(one.content_free)):
                name = one.item.id or str(first + place)
                reason = f"{correction.name} needs {lack}, and there is none"
                encoded[place] = ItemError(reason, name)
        return encoded

    def plan(self, encoded: Sequence[EncodedItem]) -> list[list[int]]:
        """Return groups of at most `batch_tokens` distinct tokens, as indices of the items."""
        return plan([[p.branches for p in e.prompts] for e in encoded], self.batch_tokens)

    def decide_group(
        self,
        encoded: Sequence[EncodedItem],
        scope: Scope = Scope(),  # noqa: B008 - frozen
    ) -> list[Decision | NonFiniteError]:
        """Return the decisions of one group, in order, from one forward pass.

        An item with logits that are not finite gets an error instead of a decision.
        """
        # The blocks run once, and the states of every depth that may be needed are stored. The
        # head is expensive, so it is applied only where a decision needs it: first to everything
        # in the scope, for all items together; then to the steps that the router requests, where
        # items with the same next step are read together (`settle`).
        correction = scope.correction or self._trace
        batch = self._batch(encoded, scope, correction)

        def ask(item: int) -> Step | Ruling | NonFiniteError:
            return batch.fault(item) or self._next(batch.evidence(item), scope.read, correction)

        verdicts: list[Ruling | NonFiniteError] = settle(len(encoded), ask, batch.read)
        answers = list[Decision | NonFiniteError]()
        for place, verdict in enumerate(verdicts):
            if isinstance(verdict, Ruling):
                decision = batch.decision(place, verdict, self.invariant, correction.name)
                certificate = scope.certificate
                answers.append(decision if certificate is None else certificate.obey(decision))
            else:
                answers.append(verdict)
        return answers

    def __sklearn_clone__(self) -> "Tracer":
        """Return itself: clones of a scikit-learn estimator share the model."""
        return self

    def _batch(self, encoded: Sequence[EncodedItem], scope: Scope, correction: Method) -> Batch:
        depths, step = scope.plan(correction.needs, self.scorer)
        encoded = [
            replace(
                one,
                blind=one.blind if step.blind else None,
                content_free=one.content_free if step.content_free else (),
            )
            for one in encoded
        ]
        branches = [b for e in encoded for p in e.prompts for b in p.branches]
        # Priors have no other depth than L, and like prefixes need a model that does not change.
        deeper = step.blind_t or not step.blind | correction.needs.blind <= {self.scorer.last}
        priors = Priors(0) if deeper or self.backbone.prefixes is None else self._priors
        known = priors.of(encoded)
        branches = [b for b, score in zip(branches, known, strict=True) if np.isnan(score)]
        # A method that reads nothing needs the places of the rows all the same.
        states = self.backbone.states(branches, sorted(depths) or [0], self.batch_tokens)
        batch = Batch(encoded, states, self.readout.read, self.scorer, scope.methods, step, known)
        priors.keep(encoded, batch.base_scores)
        return batch

    def _next(self, evidence: ItemReadings, read: Read, correction: Method) -> Step | Ruling:
        trajectory = evidence.trajectory
        every = range(trajectory.depth + 1)
        if read == "all" and (trajectory.t is None or not trajectory.has(every)):
            return Step(frozenset(every), t=True)
        if read == "base":
            return OPERATORS["base"](trajectory, self.theta)
        return correction.next(evidence)

    def describe(self) -> dict[str, Any]:
        """Return the record of the model and the method, as plain JSON values."""
        profile = self.profile
        factors = {} if self.factors is None else asdict(self.factors)
        readings = factors.pop("readings", {})
        shape = ("model_type", "depth", "vocabulary", "context", "attention")
        return {
            "dtype": profile.precision,
            **self.source,
            **{name: getattr(profile, name) for name in shape},
            # Certificates and probes of the head do not hold for another readout.
            "head_dtype": self.head_dtype if self.lens is None else "own readout",
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
    model: LanguageModel, invariant: float | Factors | None, theta: Theta
) -> tuple[Factors | None, float]:
    """Return the factors of I(M), or None if only its value is given, and its value."""
    if invariant is None:
        invariant = model_invariant(model.backbone.model, theta=theta)
    factors = invariant if isinstance(invariant, Factors) else None
    value = invariant.value if isinstance(invariant, Factors) else float(invariant)
    if not 0 <= value < np.inf:
        raise InvariantError(f"I(M) must be a finite number of at least 0, not {value:g}")
    return factors, value


def sound(decision: Decision | NonFiniteError) -> Decision:
    """Return a decision, or raise the error that stands in its place."""
    if isinstance(decision, NonFiniteError):
        raise decision
    return decision


def not_finite(
    states: Float[np.ndarray, "*batch depths width"], depths: Sequence[int]
) -> NonFiniteError | None:
    """Return an error with the first depth whose states are not all finite, or None."""
    bad = ~np.isfinite(states).all(axis=-1).reshape(-1, len(depths)).all(axis=0)
    return NonFiniteError(depths[int(bad.argmax())]) if bad.any() else None
