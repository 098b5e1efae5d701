"""Reading ahead: what a model says of texts is kept, so that nobody waits for it later."""

from collections.abc import Hashable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

import numpy as np

from lastword.decide.batch import Scope
from lastword.decide.decider import read_states
from lastword.decide.item import item_of
from lastword.decide.tracer import Tracer
from lastword.errors import ItemError, NonFiniteError
from lastword.model.backend import Pooled
from lastword.probes.state import POOLINGS
from lastword.records.decision import Decision
from lastword.text.prompt_template import Template
from lastword.text.question import Choice
from lastword.text.tokens import EncodedItem

if TYPE_CHECKING:
    from lastword.text.passages import Passage

BASE = Scope("base", "base")  # the model's scores of the options, with the text and without


class ReadAhead(Tracer):
    """A tracer that keeps the states and decisions of each text, and reads no text twice.

    Args:
        tracer: The model; its weights stay as they are.
    """

    def __init__(self, tracer: Tracer) -> None:
        invariant = tracer.factors or tracer.invariant
        self._hold(tracer.backend, tracer.tokenizer, tracer.options, invariant)
        self._states: dict[Passage, np.ndarray] = {}
        self._decisions: dict[Hashable, Decision] = {}

    def read(
        self, texts: Sequence[str], question: Choice, template: Template, scope: Scope = BASE
    ) -> None:
        """Read some texts: every depth for a probe, and what the scope wants of the options.

        Texts that cannot be read are passed over; whoever needs them later gets the error.
        """
        items = [
            item_of(text, question, template, blind=True, content_free=bool(scope.methods))
            for text in texts
        ]
        pairs = [*zip(texts, self.encode(items), strict=True)]
        sound = [(text, one) for text, one in pairs if not isinstance(one, ItemError)]
        for _ in self.correct_encoded([one for _, one in sound], scope):
            pass
        with suppress(ItemError, NonFiniteError):
            read_states(self, [text for text, _ in sound], question, template, POOLINGS)

    def pooled(self, passages: "Sequence[Passage]", depths: Sequence[int]) -> Pooled:
        """Return the mean states of passages at some depths; see `Tracer.pooled`."""
        if new := [one for one in dict.fromkeys(passages) if one not in self._states]:
            self._states |= zip(
                new, super().pooled(new, range(self.profile.depth + 1)), strict=True
            )
        return np.stack([self._states[one][list(depths)] for one in passages])

    def decide_group(
        self,
        encoded: Sequence[EncodedItem],
        scope: Scope = BASE,
    ) -> list[Decision | NonFiniteError]:
        """Return the decisions of a group; see `Tracer.decide_group`."""
        keys = [_key(one, scope) for one in encoded]
        new = [i for i, key in enumerate(keys) if key not in self._decisions]
        made = super().decide_group([encoded[i] for i in new], scope) if new else []
        results = {keys[i]: one for i, one in zip(new, made, strict=True)}
        self._decisions |= {k: one for k, one in results.items() if isinstance(one, Decision)}
        return [results.get(key) or self._decisions[key] for key in keys]


def _key(encoded: EncodedItem, scope: Scope) -> Hashable:
    """Return what a decision depends on; what is read without the text is the same for all."""
    return encoded.prompt.branches, scope.read, tuple(scope.methods)
