"""Decoding by TRACE's rule, by DoLa or by SLED: our extension, experimental, without claims.

At each step of generation the model's top tokens are a set of single-token candidates, and the rule
re-ranks them by that step's states; DoLa and SLED rewrite the step's whole distribution. It is a
stock logits processor, and needs the context manager for the states:

    with decoding(tracer, "trace") as processors:
        model.generate(**inputs, logits_processor=processors)

or, as a whole, `model.generate(**inputs, custom_generate=decoder(tracer, "trace"))`. Without a
tracer at hand, `custom_generate` is `generate` itself, and what `lastword export` hands to others.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol, cast, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers import LogitsProcessor, LogitsProcessorList

from lastword.errors import InputError
from lastword.methods.dola import Contrast, Filtered, Plausible, premature_depths
from lastword.methods.sled import Evolution
from lastword.model.backbone import watching
from lastword.model.reading import States, read
from lastword.model.readout import Readout
from lastword.rule.geometry import Trajectory
from lastword.rule.operators import Step
from lastword.rule.router import Verdict, next_step, settle
from lastword.rule.tile import Logits, Tile
from lastword.text.forest import Reads
from lastword.theta import Theta
from lastword.tracer import Tracer

DECODERS = ("base", "trace", "dola", "sled")
TOP = 8  # candidates of a step

Layers = str | Sequence[int]


@runtime_checkable
class Rewriter(Protocol):
    """Rewrites the scores of the next token from the states that gave them."""

    @property
    def depths(self) -> tuple[int, ...]:
        """Depths whose states it looks at."""

    def rewrite(
        self, hidden: dict[int, Float[Tensor, "batch width"]], scores: Float[Tensor, "batch vocab"]
    ) -> Float[Tensor, "batch vocab"]:
        """New scores; -inf for tokens that are out of the question."""


@dataclass(frozen=True)
class Reranked:
    """TRACE's rule over the top tokens of a step.

    Attributes:
        tracer: The model and its rule.
        top: How many tokens are candidates.
    """

    tracer: Tracer
    top: int = TOP

    @property
    def depths(self) -> tuple[int, ...]:
        """All of them: the rule says at each step which it needs read."""
        return tuple(range(self.tracer.facts.depth + 1))

    def rewrite(
        self, hidden: dict[int, Float[Tensor, "batch width"]], scores: Float[Tensor, "batch vocab"]
    ) -> Float[Tensor, "batch vocab"]:
        """U of the candidates, -inf for every other token."""
        # Lowest ids first: the order of equal candidates does not come from their scores.
        tokens = scores.topk(min(self.top, scores.shape[-1])).indices.sort(dim=-1).values
        u = torch.from_numpy(self.scores(hidden, tokens.cpu().numpy()))
        blank = torch.full_like(scores, -torch.inf)
        bans = ~torch.isfinite(scores.gather(1, tokens))  # another processor's
        u = u.to(scores).masked_fill(bans, -torch.inf)
        return blank.scatter_(1, tokens, u)

    def scores(
        self, hidden: dict[int, Float[Tensor, "batch width"]], tokens: Int[np.ndarray, "batch top"]
    ) -> Float[np.ndarray, "batch top"]:
        """U of single-token candidates at each step of a batch, reading what the rule asks for."""
        batch, top = tokens.shape
        rows = np.arange(batch)
        places = np.arange(batch * top)
        reads = Reads(rows, np.repeat(rows, top), tokens.reshape(-1), places)
        states = States(hidden, reads)
        S = np.full((batch, top, self.tracer.facts.depth + 1), np.nan)
        t = np.full((batch, top), np.nan)

        def ask(row: int) -> Step | Verdict:
            trajectory = Trajectory(S[row], None if np.isnan(t[row]).any() else t[row])
            return next_step(trajectory, self.tracer.invariant, self.tracer.theta)

        verdicts = settle(batch, ask, lambda those, step: self._read(states, those, step, S, t))
        return np.stack([verdict.correction.scores for verdict in verdicts])

    def _read(
        self, states: States, rows: Sequence[int], step: Step, S: np.ndarray, t: np.ndarray
    ) -> None:
        """Fill what a step asks for into S [batch, top, depths] and t [batch, top]."""
        top = t.shape[1]
        targets = (np.asarray(rows)[:, None] * top + np.arange(top)).reshape(-1)
        scorers = [self.tracer.scorer] if step.scorer else []
        reading = read(self.tracer.readout, states, targets, sorted(step.depths), scorers)
        for depth, log_probs in reading.log_probs.items():
            S[rows, :, depth] = log_probs.reshape(-1, top)
        for log_probs in reading.scores:
            t[rows] = log_probs.reshape(-1, top)


@runtime_checkable
class VocabularyScorer(Protocol):
    """What scores every token: DoLa and SLED."""

    @property
    def depths(self) -> tuple[int, ...]:
        """Depths that it reads through the final norm."""

    @property
    def raw_depths(self) -> tuple[int, ...]:
        """Depths that it reads without."""

    def vocabulary_scores(self, tile: Tile) -> Logits:
        """Its score of every token."""


@dataclass(frozen=True)
class Rewritten:
    """A peer's distribution instead of the model's.

    Attributes:
        readout: The head.
        scorer: The peer.
    """

    readout: Readout
    scorer: VocabularyScorer

    @property
    def depths(self) -> tuple[int, ...]:
        """What the peer reads."""
        return tuple(sorted({*self.scorer.depths, *self.scorer.raw_depths}))

    def rewrite(
        self, hidden: dict[int, Float[Tensor, "batch width"]], scores: Float[Tensor, "batch vocab"]
    ) -> Float[Tensor, "batch vocab"]:
        """The peer's scores; -inf where another processor said no."""
        logits = {d: self.readout.logits(hidden[d]) for d in self.scorer.depths}
        log_z = {d: z.logsumexp(dim=-1, keepdim=True) for d, z in logits.items()}
        raw = {d: self.readout.logits(hidden[d], norm=False) for d in self.scorer.raw_depths}
        nothing = torch.zeros(0, dtype=torch.int64, device=scores.device)
        new = self.scorer.vocabulary_scores(Tile(logits, log_z, raw, nothing, nothing))
        return new.to(scores).masked_fill(~torch.isfinite(scores), -torch.inf)


class Processor(LogitsProcessor):
    """A logits processor that sees the states of the step that it processes.

    Args:
        rewriter: What it does with them.
    """

    def __init__(self, rewriter: Rewriter) -> None:
        self.rewriter = rewriter
        self.hidden: dict[int, Tensor] = {}

    def see(self, depth: int, state: Float[Tensor, "batch length width"]) -> None:
        """Keep the states of each sequence's last position."""
        self.hidden[depth] = state[:, -1]

    @torch.inference_mode()
    def __call__(
        self, input_ids: Int[Tensor, "batch length"], scores: Float[Tensor, "batch vocab"]
    ) -> Float[Tensor, "batch vocab"]:
        """The step's scores, rewritten.

        Raises:
            InputError: No states of this step were captured.
        """
        state = next(iter(self.hidden.values()), None)
        if state is None or len(state) != len(scores):
            raise InputError(
                "decoding needs its model's states: use it inside `with decoding(...)`"
            )
        return self.rewriter.rewrite(self.hidden, scores.float()).to(scores.dtype)


def rewriter(
    tracer: Tracer, decode: str, *, top: int = TOP, layers: Layers = "high"
) -> Rewriter | None:
    """What a way of decoding does at each step; None for the model's own.

    Args:
        tracer: The model.
        decode: `base`, `trace`, `dola` (with plausibility, as its equation) or `sled`.
        top: Candidates of a step, for `trace`.
        layers: What `dola` contrasts with: the `high` half, the `low` half, or depths.

    Raises:
        InputError: An unknown way, fewer than two candidates, or layers that are none.
    """
    if decode not in DECODERS:
        raise InputError(f"cannot decode by {decode}; one of {', '.join(DECODERS)}")
    if top < 2:
        raise InputError(f"a step needs at least two candidates, not {top}")
    depth = tracer.backend.local("decoding").backbone.depth
    premature = _premature(tracer, layers)
    if decode == "trace":
        return Reranked(tracer, top)
    if decode == "dola":
        return Rewritten(tracer.readout, Filtered(Plausible(Contrast(depth, premature))))
    if decode == "sled":
        return Rewritten(tracer.readout, Evolution(depth, tuple(range(depth))))
    return None


def _premature(tracer: Tracer, layers: Layers) -> tuple[int, ...]:
    """DoLa's early layers, as transformers counted them: depths, 0 the embeddings."""
    depth = tracer.backbone.depth
    if layers in ("high", "low"):
        tied = bool(tracer.backbone.config.tie_word_embeddings)
        return premature_depths(depth, str(layers), tied=tied)
    if isinstance(layers, str) or not layers or not all(0 <= n < depth for n in layers):
        raise InputError(f"layers are high, low or depths from 0 to {depth - 1}, not {layers}")
    return tuple(layers)


@contextmanager
def decoding(
    tracer: Tracer, decode: str, *, top: int = TOP, layers: Layers = "high"
) -> Iterator[LogitsProcessorList]:
    """Logits processors for the tracer's model, which is watched and locked until the block ends.

    Args:
        tracer: The model.
        decode: As in `rewriter`.
        top: As in `rewriter`.
        layers: As in `rewriter`.

    Raises:
        InputError: As in `rewriter`.
    """
    way = rewriter(tracer, decode, top=top, layers=layers)
    if way is None:
        yield LogitsProcessorList()
        return
    processor = Processor(way)
    backbone = tracer.backbone
    with backbone.lock, watching(backbone.parts, way.depths, processor.see):
        try:
            yield LogitsProcessorList([processor])
        finally:
            processor.hidden.clear()


def decoder(
    tracer: Tracer, decode: str, *, top: int = TOP, layers: Layers = "high"
) -> Callable[..., Any]:
    """The same as a value of `custom_generate`: `model.generate(..., custom_generate=it)`.

    DoLa's and SLED's scores stand instead of the model's, so penalties and sampling act on them.
    The rule re-ranks the tokens that penalties and bans have left; sampling acts on what it gives.

    Args:
        tracer: The model.
        decode: As in `rewriter`.
        top: As in `rewriter`.
        layers: As in `rewriter`.
    """

    def run(
        model: Any,
        input_ids: Tensor,
        logits_processor: LogitsProcessorList,
        stopping_criteria: Any,
        generation_config: Any,
        **options: Any,
    ) -> Any:
        if (generation_config.num_beams or 1) > 1:
            raise InputError(f"cannot decode {decode} by {generation_config.num_beams} beams: one")
        place = 0 if decode in ("dola", "sled") else _before_sampling(logits_processor)
        before, after = logits_processor[:place], logits_processor[place:]
        with decoding(tracer, decode, top=top, layers=layers) as ours:
            return model._sample(
                input_ids,
                logits_processor=LogitsProcessorList([*before, *ours, *after]),
                stopping_criteria=stopping_criteria,
                generation_config=generation_config,
                **options,
            )

    return run


def _before_sampling(processors: LogitsProcessorList) -> int:
    """Find where transformers' temperature, top-k and their like begin, by their names."""
    samplers = (i for i, p in enumerate(processors) if type(p).__name__.endswith("Warper"))
    return next(samplers, len(processors))


class Wordless:
    """A tokenizer in name: decoding reads states and ids, never text."""

    bos_token_id: int | None = None
    eos_token_id: int | None = None
    chat_template: Any = None
    all_special_ids: list[int] = []

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """No text is ever read."""
        raise AssertionError("no tokenizer was given")

    apply_chat_template = __call__


def custom_generate(
    model: Any,
    *,
    decode: str = "trace",
    top: int = TOP,
    dola_layers: Layers = "high",
    invariant: float | None = None,
    theta: Theta | None = None,
    **options: Any,
) -> Any:
    """transformers' `generate` by another way of decoding: a repository's `custom_generate`.

    Args:
        model: The model that generates.
        decode: As in `rewriter`.
        top: As in `rewriter`.
        dola_layers: `layers` of `rewriter`, under the name that transformers gave it.
        invariant: I(M), where it is known or the model has none; read from the weights otherwise.
        theta: Constants and switches of the rule.
        options: As transformers' `generate` takes them.

    Raises:
        InputError: As in `rewriter`, or more than one beam.
    """
    tracer = Tracer(model, Wordless(), invariant=invariant, theta=theta)
    way = decoder(tracer, decode, top=top, layers=dola_layers)
    return model.generate(custom_generate=way, **options)


def generate(
    tracer: Tracer,
    prompt: str,
    decode: str = "trace",
    *,
    top: int = TOP,
    layers: Layers = "high",
    max_new_tokens: int = 32,
    **options: Any,
) -> str:
    """The model's continuation of a prompt, greedy unless `options` say otherwise.

    Args:
        tracer: The model.
        prompt: Text to continue.
        decode: As in `rewriter`.
        top: As in `rewriter`.
        layers: As in `rewriter`.
        max_new_tokens: Most tokens to add.
        options: As transformers' `generate` takes them.

    Raises:
        InputError: As in `rewriter`.
    """
    tokenizer = cast(Any, tracer.tokenizer)
    inputs = tokenizer(prompt, return_tensors="pt", return_token_type_ids=False)
    inputs = inputs.to(tracer.backbone.device)
    options = {"do_sample": False, "pad_token_id": tokenizer.pad_token_id, **options}
    if options["pad_token_id"] is None:
        options["pad_token_id"] = tokenizer.eos_token_id
    with decoding(tracer, decode, top=top, layers=layers) as processors:
        output = cast(Any, tracer.backbone.model).generate(
            **inputs, logits_processor=processors, max_new_tokens=max_new_tokens, **options
        )
    new = output[0, inputs["input_ids"].shape[1] :]
    text: str = tokenizer.decode(new, skip_special_tokens=True)
    return text
