"""Texts -> passages and pooled states, as probes read them at a question's prompt."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
from jaxtyping import Float

from lastword.decide.item import render
from lastword.decide.tracer import Tracer, not_finite
from lastword.errors import ItemError
from lastword.model.backbone import Backbone
from lastword.model.encoder import Encoder
from lastword.probes.state import OWN, Pooling
from lastword.text.forest import Branch
from lastword.text.prompt_template import Template
from lastword.text.question import Question
from lastword.text.tokens import Passage

MOST_BYTES = 2**30  # of the states that are known


@dataclass(eq=False)
class LongText:
    """A text that is read in chunks, with the sums of its states so far.

    Attributes:
        tokens: The input of the model.
        start: States are added from this token on.
        depths: The depths of these states, ascending.
        passage: The passage that a probe reads; None for a prompt, which has no states.
        end: The number of tokens that have been read.
        sums: The sums of the states at `depths`.
    """

    tokens: tuple[int, ...]
    start: int
    depths: tuple[int, ...]
    passage: Passage | None = None
    end: int = 0
    sums: Float[np.ndarray, "depths width"] | float = 0.0

    @property
    def branch(self) -> Branch:
        """The whole text."""
        return self._branch(len(self.tokens), min(self.start, len(self.tokens) - 1))

    def skip(self, backbone: Backbone) -> None:
        """Skip the tokens whose keys are cached, and whose states are not added."""
        if self.end < self.start:
            cached = backbone.cached(self.branch, self.depths[-1])
            self.end = max(self.end, min(cached, self.start))

    def read(self, tracer: Tracer, end: int) -> None:
        """Read the tokens up to `end`, and store their keys in the cache."""
        branches, first = [self._branch(end, end - 1)], max(self.start, self.end)
        if first < end:
            branches.append(self._branch(end, first))
        means = tracer.backbone.pooled(branches, self.depths, tracer.batch_tokens, caches=True)
        self.sums += (end - first) * means[1].astype(np.float64) if first < end else 0.0
        self.end = end

    @property
    def means(self) -> Float[np.ndarray, "depths width"]:
        """The mean states, in float32."""
        return (np.asarray(self.sums) / (len(self.tokens) - self.start)).astype(np.float32)

    def _branch(self, end: int, first: int) -> Branch:
        # The last token of a branch is not fed, so any one is added.
        return Branch((*self.tokens[:end], self.tokens[0]), first + 1)


def read_passages(
    source: Tracer | Encoder,
    texts: Sequence[tuple[str, str | None]],
    question: Question,
    template: Template,
    pooling: Pooling,
) -> list[Passage | ItemError]:
    """Return the tokens that a probe pools of each text, or the text's error.

    Texts come with their names. An error gives the name, or the index if that is None. An encoder
    reads the text alone, a model the question's prompt.
    """
    inputs = [text for text, _ in texts]
    if isinstance(source, Encoder):
        return [*source.encode(inputs)]
    prompts = [render(text, question, template) for text in inputs]
    names = [name for _, name in texts]
    return source.passages(prompts, inputs if pooling == "mean" else None, names)


def read_states(
    source: Tracer | Encoder,
    texts: Sequence[str],
    question: Question,
    template: Template,
    poolings: Sequence[Pooling] = (OWN,),
    known: dict[Passage, np.ndarray] | None = None,
) -> Float[np.ndarray, "texts layers poolings width"]:
    """Return the pooled states of some texts at every layer, for a fit.

    The states of passages that are `known` are not read; the others are added to them.

    Raises:
        ItemError: A text cannot be read.
        NonFiniteError: States are not finite.
    """
    # All poolings of one text stand next to each other, so that they share one forward pass.
    entries: list[tuple[str, str | None]] = [(text, None) for text in texts]
    each = [read_passages(source, entries, question, template, pooling) for pooling in poolings]
    every = [*chain.from_iterable(zip(*each, strict=True))]
    for error in every:
        if isinstance(error, ItemError):
            raise error
    passages = [one for one in every if isinstance(one, Passage)]
    layers = range(source.profile.depth + 1)
    if known is None:
        states = source.pooled(passages, layers)
    else:
        if new := [one for one in dict.fromkeys(passages) if one not in known]:
            known |= zip(new, source.pooled(new, layers), strict=True)
        states = np.stack([known[one] for one in passages])
        for oldest in [*known][: max(0, len(known) - MOST_BYTES // states[0].nbytes)]:
            del known[oldest]
    if (fault := not_finite(states, layers)) is not None:
        raise fault
    rows = states.reshape(len(texts), len(poolings), *states.shape[1:]).swapaxes(1, 2)
    by_text: Float[np.ndarray, "texts layers poolings width"] = np.ascontiguousarray(rows)
    return by_text
