"""A question without candidates: sample answers, then correct among them. Our extension.

The paper scores candidates that it is given. Here the model makes them: its greedy answer and K
samples, each up to the end of its first line, duplicates dropped. The rule then chooses among them
as among any candidates, so the answer can be no better than the best of what was sampled.

Sampling adds Gumbel noise to the scores of each step and takes the highest, which draws exactly
from softmax(scores / temperature) without touching any global random state.
"""

import string
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, cast

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from transformers import GenerationConfig, LogitsProcessor, LogitsProcessorList, StoppingCriteria

from lastword.decide.batch import Read
from lastword.decide.tracer import Tracer
from lastword.errors import InputError, ItemError
from lastword.generation.sampling import Sampling
from lastword.records.decision import Decision
from lastword.text.items import Item
from lastword.text.tokens import Encoded, encode_prompt

TEMPLATE = "Question: {question} Answer:"  # for a model without a chat template


@dataclass(frozen=True)
class Asked:
    """The corrected choice among answers that the model gave itself.

    Attributes:
        prompt: The question in its template, as it was scored.
        decision: The choice among the distinct answers, the greedy one first.
        counts: How many of the samples gave each of them.
        greedy: Whether the model's greedy answer is the first candidate; false where it was blank.
        dropped: Distinct answers that were left out: read with the question they do not fit the
            context, or are no tokens of their own.
    """

    question: str
    prompt: str
    decision: Decision
    counts: tuple[int, ...]
    greedy: bool
    sampling: Sampling
    dropped: int = 0

    @property
    def answer(self) -> str:
        """Return the corrected answer."""
        return self.decision.answer

    @property
    def alternatives(self) -> tuple[str, ...]:
        """Return the other answers, the best first."""
        order = np.argsort(-self.decision.scores, kind="stable")
        return tuple(self.decision.candidates[i] for i in order if i != self.decision.index)

    def to_dict(self, *, full: bool = False) -> dict[str, Any]:
        """Return the decision's JSON, with the question, the candidates and how they were drawn."""
        return {
            **self.decision.to_dict(full=full),
            "question": self.question,
            "prompt": self.prompt,
            "candidates": list(self.decision.candidates),
            "counts": list(self.counts),
            "greedy": self.greedy,
            "k": self.sampling.k,
            "temperature": self.sampling.temperature,
            "seed": self.sampling.seed,
            "dropped": self.dropped,
        }

    def _repr_html_(self) -> str:
        return self.decision._repr_html_()


def ask(
    tracer: Tracer,
    question: str,
    sampling: Sampling = Sampling(),  # noqa: B008 - frozen
    *,
    template: str | None = None,
    read: Read = "decide",
) -> Asked:
    """Sample answers to a question and correct among them.

    Args:
        tracer: The model.
        question: The question.
        sampling: How answers are drawn.
        template: Text around `{question}`; `TEMPLATE` unless told otherwise, and the question
            alone where prompts go into the tokenizer's chat template.
        read: As in `Tracer.correct`.

    Raises:
        InputError: A blank question, one too long for the context, a template without
            `{question}`, or nothing but answers that are blank or do not fit.
    """
    tracer.backend.local("asking")
    prompt = _prompt(tracer, question, template)
    Item(prompt, ("?",))  # what is no text is refused before anything is drawn
    ids = encode_prompt(prompt, tracer.tokenizer, tracer.chat)
    _require_room(tracer, len(ids), sampling.max_new_tokens)
    hot = sampling.temperature > 0
    rows = sampling.k if hot else 1
    (greedy,) = _generate(tracer, ids, [], sampling.max_new_tokens)
    noise = [GumbelNoise(sampling.k, sampling.temperature, sampling.seed)] if hot else []
    samples = _generate(tracer, ids, noise, sampling.max_new_tokens, rows)
    texts = _distinct([greedy], samples)
    if not texts:
        raise InputError(
            "the model gave only blank answers; raise max_new_tokens or k, or try a template"
        )
    counts = _readable(tracer, prompt, texts)
    decision = tracer.correct(prompt, list(counts), read=read)
    rest = len(texts) - len(counts)
    return Asked(
        question, prompt, decision, tuple(counts.values()), greedy in counts, sampling, rest
    )


class GumbelNoise(LogitsProcessor):
    """Makes greedy decoding sample from softmax(scores / temperature), each row by its own seed.

    Args:
        rows: Sequences in a batch.
        temperature: Above 0.
        seed: With a row's place, the seed of its noise.
    """

    def __init__(self, rows: int, temperature: float, seed: int) -> None:
        self.temperature = temperature
        # One a row: how many others there are changes nothing.
        self.generators = [np.random.default_rng([seed, row]) for row in range(rows)]

    def __call__(
        self, input_ids: Int[Tensor, "batch length"], scores: Float[Tensor, "batch vocab"]
    ) -> Float[Tensor, "batch vocab"]:
        """Return scores / temperature + Gumbel noise, whose argmax is a sample."""
        noise = np.stack([rng.gumbel(size=scores.shape[1]) for rng in self.generators])
        return scores.float() / self.temperature + torch.from_numpy(noise).to(scores.device).float()


class LineEnded(StoppingCriteria):
    """Ends a sequence with the first line that has text, or with a token that ends a text."""

    def __init__(self, tokenizer: Any, start: int, ends: Sequence[int]) -> None:
        self.tokenizer, self.start, self.ends = tokenizer, start, frozenset(ends)

    def __call__(
        self, input_ids: Int[Tensor, "batch length"], scores: Any, **kwargs: Any
    ) -> Bool[Tensor, " batch"]:
        """Return which sequences are done."""
        rows = input_ids[:, self.start :].tolist()
        texts = self.tokenizer.batch_decode(rows, skip_special_tokens=True)
        stops = [
            len(text.lstrip().splitlines()) > 1 or _closed(text) or not self.ends.isdisjoint(row)
            for text, row in zip(texts, rows, strict=True)
        ]
        return torch.tensor(stops, device=input_ids.device)

    def lines(self, input_ids: Int[Tensor, "batch length"]) -> list[str]:
        """Return the first line of each sequence, before whatever follows its end."""
        rows = [
            list(takewhile(lambda token: token not in self.ends, row))
            for row in input_ids[:, self.start :].tolist()
        ]
        texts = self.tokenizer.batch_decode(rows, skip_special_tokens=True)
        return [_first_line(text) for text in texts]


def normalise(text: str) -> str:
    """Return what answers share that differ in case, spacing, width or edge punctuation alone."""
    words = unicodedata.normalize("NFKC", text).casefold().split()
    return " ".join(words).strip(string.punctuation + " ") or " ".join(words)


def _require_room(tracer: Tracer, tokens: int, more: int) -> None:
    context = tracer.profile.context
    if context is not None and tokens + more > context:
        raise InputError(
            f"the question has {tokens} tokens and an answer up to {more}: "
            f"more than the model's context of {context}; shorten it or lower max_new_tokens"
        )


def _prompt(tracer: Tracer, question: str, template: str | None) -> str:
    if not question.strip():
        raise InputError("the question is blank; ask something")
    if template is None:
        template = TEMPLATE if tracer.chat is None else "{question}"
    if "{question}" not in template:
        raise InputError("a template has {question} where the question stands")
    return template.replace("{question}", question.strip())


def _generate(
    tracer: Tracer,
    ids: Sequence[int],
    processors: Sequence[LogitsProcessor],
    max_new_tokens: int,
    rows: int = 1,
) -> list[str]:
    """Give the first lines of `rows` continuations, each step's best token."""
    model, ends = cast(Any, tracer.backbone.model), _ends(tracer)
    stop = LineEnded(tracer.tokenizer, len(ids), ends)
    tokens = torch.tensor([list(ids)] * rows, device=tracer.backbone.device)
    with tracer.backbone.lock, torch.inference_mode():
        output = model.generate(
            tokens,
            attention_mask=torch.ones_like(tokens),
            generation_config=_settings(tracer, ends, max_new_tokens),
            logits_processor=LogitsProcessorList(processors),
            stopping_criteria=[stop],
        )
    return stop.lines(output)


def _settings(tracer: Tracer, ends: list[int], tokens: int) -> GenerationConfig:
    # Explicit where checkpoints bring habits of their own: penalties and cut-offs are not ours.
    return GenerationConfig(
        do_sample=False,
        num_beams=1,
        repetition_penalty=1.0,
        max_new_tokens=tokens,
        eos_token_id=ends or None,
        pad_token_id=_pad(tracer.tokenizer),
    )


def _ends(tracer: Tracer) -> list[int]:
    """List every token that ends a text for the checkpoint or its tokenizer."""
    own = getattr(tracer.backbone.model.generation_config, "eos_token_id", None)
    listed = own if isinstance(own, list) else [own]
    ends = {e for e in [*listed, tracer.tokenizer.eos_token_id] if e is not None}
    return sorted(ends)


def _pad(tokenizer: Any) -> int:
    """Choose what follows an ended sequence; it is cut with the line or skipped as special."""
    tokens = (tokenizer.pad_token_id, tokenizer.eos_token_id, 0)
    return next(int(token) for token in tokens if token is not None)


def _closed(text: str) -> bool:
    """True if a line with text has just been ended."""
    return bool(text.strip()) and text.rstrip(" \t") != text.rstrip()


def _first_line(text: str) -> str:
    # A NUL is no text for an item, and no tokenizer means anything by it.
    lines = text.replace("\0", "").strip().splitlines()
    return lines[0].rstrip() if lines else ""


def _distinct(greedy: Sequence[str], samples: Sequence[str]) -> dict[str, int]:
    """Give texts by first appearance, blank ones dropped, and how many of `samples` said each."""
    texts: dict[str, str] = {}
    counts: dict[str, int] = {}
    for place, text in enumerate([*greedy, *samples]):
        if text:
            key = normalise(text)
            texts.setdefault(key, text)
            counts[key] = counts.get(key, 0) + (place >= len(greedy))
    return {text: counts[key] for key, text in texts.items()}


def _readable(tracer: Tracer, prompt: str, texts: Mapping[str, int]) -> dict[str, int]:
    """Keep of texts with their counts those that the model can read as answers, each by its tokens.

    A text that was drawn token by token may be more tokens when it is read.
    """
    encoded = tracer.encode([Item(prompt, (text,)) for text in texts])
    read = [e for e in encoded if isinstance(e, Encoded)]
    if not read:
        raise next(e for e in encoded if isinstance(e, ItemError))
    # The first of those that are the same tokens.
    distinct = {e.sequences: e.item.candidates[0] for e in reversed(read)}.values()
    return {text: count for text, count in texts.items() if text in distinct}
