"""Texts -> passages and pooled states, as probes read them at a question's prompt."""

from collections.abc import Sequence
from itertools import chain

import numpy as np
from jaxtyping import Float

from lastword.decide.item import render
from lastword.decide.tracer import Tracer, not_finite
from lastword.errors import ItemError
from lastword.probes.state import Pooling
from lastword.text.prompt_template import Template
from lastword.text.question import Question
from lastword.text.tokens import Passage


def read_passages(
    tracer: Tracer,
    texts: Sequence[tuple[str, str | None]],
    question: Question,
    template: Template,
    pooling: Pooling,
) -> list[Passage | ItemError]:
    """Return the tokens of each text's prompt that a probe pools, or the text's error.

    Texts come with their names. An error gives the name, or the index if that is None.
    """
    prompts = [render(text, question, template) for text, _ in texts]
    read = tracer.passages(prompts, [text for text, _ in texts] if pooling == "mean" else None)
    return [
        ItemError(passage.reason, str(place) if name is None else name)
        if isinstance(passage, ItemError)
        else passage
        for place, (passage, (_, name)) in enumerate(zip(read, texts, strict=True))
    ]


def read_states(
    tracer: Tracer,
    texts: Sequence[str],
    question: Question,
    template: Template,
    poolings: Sequence[Pooling],
) -> Float[np.ndarray, "texts depths poolings width"]:
    """Return the pooled states of some texts at every depth, for a fit.

    Raises:
        ItemError: A text cannot be read.
        NonFiniteError: States are not finite.
    """
    # All poolings of one text stand next to each other, so that they share one forward pass.
    entries: list[tuple[str, str | None]] = [(text, None) for text in texts]
    each = [read_passages(tracer, entries, question, template, pooling) for pooling in poolings]
    passages = list[Passage]()
    for passage in chain.from_iterable(zip(*each, strict=True)):
        if isinstance(passage, ItemError):
            raise passage
        passages.append(passage)
    depths = range(tracer.profile.depth + 1)
    states = tracer.pooled(passages, depths)
    if (fault := not_finite(states, depths)) is not None:
        raise fault
    shape = (len(texts), len(poolings), *states.shape[1:])
    by_text: Float[np.ndarray, "texts depths poolings width"] = np.ascontiguousarray(
        states.reshape(shape).swapaxes(1, 2)
    )
    return by_text
