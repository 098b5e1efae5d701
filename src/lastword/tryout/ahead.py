"""ReadAhead: computes and caches states and decisions before they are needed."""

from collections.abc import Hashable, Sequence
from contextlib import suppress

from lastword.decide.batch import Scope
from lastword.decide.item import item_of
from lastword.decide.states import StateCache, read_states
from lastword.decide.tracer import Tracer
from lastword.errors import ItemError, NonFiniteError
from lastword.model.backbone import Pooled
from lastword.probes.state import POOLINGS
from lastword.records.decision import Decision
from lastword.text.prompt_template import Template
from lastword.text.question import Choice
from lastword.text.tokens import EncodedItem, Passage

BASE = Scope("base", "base")  # the model's scores of the options, with and without the text


class ReadAhead(Tracer):
    """A tracer that caches the states and decisions of each text.

    Args:
        tracer: The model. Its weights must not change.
    """

    def __init__(self, tracer: Tracer) -> None:
        invariant = tracer.factors or tracer.invariant
        super().__init__(tracer.model, tracer.tokenizer, invariant=invariant, load=tracer.options)
        self._cache = StateCache(super().pooled, self.profile.depth)
        self._decisions: dict[Hashable, Decision] = {}

    def read(
        self, texts: Sequence[str], question: Choice, template: Template, scope: Scope = BASE
    ) -> None:
        """Cache some texts: their states at every depth, and their decisions in a scope.

        Texts that cannot be read are skipped; their error is raised when they are used.
        """
        items = [
            item_of(text, question, template, blind=True, content_free=bool(scope.methods))
            for text in texts
        ]
        pairs = [*zip(texts, self.encode(items), strict=True)]
        sound = [(text, one) for text, one in pairs if not isinstance(one, ItemError)]
        if not sound:
            return
        for _ in self.correct_encoded([one for _, one in sound], scope):
            pass
        with suppress(ItemError, NonFiniteError):
            read_states(self, [text for text, _ in sound], question, template, POOLINGS)

    def pooled(self, passages: Sequence[Passage], depths: Sequence[int]) -> Pooled:
        """Return the mean states of passages at some depths; see `Tracer.pooled`."""
        return self._cache.pooled(passages, depths)

    def decide_group(
        self,
        encoded: Sequence[EncodedItem],
        scope: Scope = BASE,
    ) -> list[Decision | NonFiniteError]:
        """Return the decisions of a group; see `Tracer.decide_group`."""
        keys = [_key(one, scope) for one in encoded]
        new = [i for i, key in enumerate(keys) if key not in self._decisions]
        decisions = super().decide_group([encoded[i] for i in new], scope) if new else []
        results = {keys[i]: one for i, one in zip(new, decisions, strict=True)}
        # Errors are not cached: they may be those of the whole batch.
        self._decisions |= {k: one for k, one in results.items() if isinstance(one, Decision)}
        return [results.get(key) or self._decisions[key] for key in keys]


def _key(encoded: EncodedItem, scope: Scope) -> Hashable:
    """Return the cache key of a decision; prompts without the text are the same for all items."""
    return encoded.prompt.branches, scope.read, tuple(scope.methods)
