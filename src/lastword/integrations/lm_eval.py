"""A model for lm-evaluation-harness whose choices are corrected.

Importing this module registers it under the name `lastword`:

    import lastword.integrations.lm_eval
    lm_eval.simple_evaluate("lastword", "pretrained=Qwen/Qwen3-0.6B", tasks=["arc_easy"])

The harness requests one log-likelihood per choice. Here, the choices of a document are the
candidates of an item, and the answers are the method's scores. Texts are tokenised as in the
harness's model `hf`, so that `method=base-sum` gives the same numbers. Requests that are not
choices under one context get the sum of log-probabilities, as in `hf`.

A task does not mark the question in its prompt, so methods with blind prompts are refused. Methods
that learn from all documents are refused too, because a task's documents come a few at a time.
"""

import copy
import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jaxtyping import Float
from lm_eval.api.instance import Instance
from lm_eval.api.model import CacheHook
from lm_eval.api.registry import register_model
from lm_eval.models.huggingface import HFLM
from torch import Tensor
from tqdm import tqdm

from lastword.decide.batch import Read
from lastword.decide.decider import Decider
from lastword.decide.tracer import Tracer, sound
from lastword.errors import InputError, ItemError
from lastword.methods import entry, resolve
from lastword.methods.contract import Method, by_tokens
from lastword.rule.tile import Tile
from lastword.text.forest import Branch
from lastword.text.items import Item
from lastword.text.tokenizer import Ids
from lastword.text.tokens import Encoded, EncodedItem

NAME = "lastword"
BASE = "base-sum"  # the same number as the harness's
_HARNESS = "batch_size", "max_batch_size", "max_length", "add_bos_token", "prefix_token_id"

_log = logging.getLogger(__name__)

Answer = tuple[float, bool]
Pair = tuple[Ids, Ids]  # the tokens of a context and of its continuation
Choices = tuple[EncodedItem, list[list[int]]]  # with the places of each choice's requests


@register_model(NAME)
class CorrectedLM(HFLM):  # type: ignore[misc]  # lm_eval has no types
    """A language model for lm-evaluation-harness whose choices are corrected.

    Args:
        pretrained: A tracer, a hub name, a folder, a GGUF file, or one of lastword's model names.
        method: `trace` for the tracer's correction and certificate, or a method listed by
            `lastword compare --list`.
        options: Options of `Decider.from_pretrained`, such as `dtype`, `device` and `revision`; and
            those of the harness's `hf` in `_HARNESS`. Its batch size is for generation and rolling
            log-likelihoods; choices are packed by `batch_tokens`.

    Raises:
        TraceError: The model, the method or an option cannot be used.
    """

    def __init__(
        self,
        pretrained: str | Tracer | Decider | None = None,
        method: str = "trace",
        **options: Any,
    ) -> None:
        if pretrained is None:
            raise InputError("no model is named: give --model_args pretrained=NAME")
        entry(method)  # raises for an unknown method, before the model is loaded
        if method != "trace" and options.get("certificate") is not None:
            raise InputError("a certificate needs method=trace: leave one of them out")
        harness = {name: options.pop(name) for name in _HARNESS if name in options}
        self.decider = decider = _decider(pretrained, options)
        tracer, corrected_by = decider.tracer, decider.correction.name
        if "trace" not in (method, corrected_by):
            raise InputError(f"the tracer corrects by {corrected_by}: leave method={method} out")
        self.method = corrected_by if method == "trace" else method
        self.scorers = {} if method == "trace" else resolve([method], tracer.facts)
        scorer = self.scorers.get(method, decider.correction)
        if scorer.fit or scorer.needs.blind or scorer.needs.content_free:
            raise InputError(
                f"{self.method} needs more than a task has: prompts without the question, or many "
                "documents. Write its items with blind_prompt, and ask `lastword compare "
                "--benchmark jsonl:FILE`"
            )
        super().__init__(
            pretrained=tracer.backbone.model,
            tokenizer=copy.deepcopy(tracer.tokenizer),  # it may get a pad token
            softmax_dtype="float32",
            **harness,
        )
        self.uncorrected: Counter[tuple[str, str]] = Counter()
        self.truncated = 0

    def loglikelihood(self, requests: list[Instance], disable_tqdm: bool = False) -> list[Answer]:
        """Return the method's score of each choice, and True if it is the greedy continuation."""
        sets, alone = self._documents(requests, [self._tokens(request) for request in requests])
        answers: dict[int, Answer] = {}
        with tqdm(total=len(requests), desc="Correcting choices", disable=disable_tqdm) as bar:
            base = resolve([BASE], self.decider.tracer.facts)
            for work, methods in ((sets, self.scorers), (alone, base)):
                for place, answer in self._answers(work, methods):
                    answers[place] = answer
                    bar.update()
        return [answers[place] for place in range(len(requests))]

    def _tokens(self, request: Instance) -> Pair:
        """Split the tokens of context and continuation as the harness's `hf` does."""
        context, continuation, *more = request.args
        if more:
            raise InputError(f"{request.task_name} has more than text; lastword reads only text")
        if context:
            head, tail = self._encode_pair(context, continuation)
        else:
            tail = self.tok_encode(continuation, add_special_tokens=False)
            head = [self.prefix_token_id]
            if tail[:1] == head:
                tail = tail[1:]
        if not head or not tail:
            name = f"{request.task_name}/{request.doc_id}"
            raise ItemError(f"context or continuation has no token: {continuation!r}", name)
        return tuple(head), tuple(tail)

    def _documents(
        self, requests: Sequence[Instance], tokens: Sequence[Pair]
    ) -> tuple[list[Choices], list[Choices]]:
        """Return candidate sets and single requests; repeated requests are scored once."""
        documents: dict[tuple[Any, ...], dict[Pair, list[int]]] = {}
        for place, (request, pair) in enumerate(zip(requests, tokens, strict=True)):
            key: tuple[Any, ...] = (request.task_name, request.doc_id)
            if request.doc_id is None:  # no document: the request stands alone
                key = (None, None, place)
            documents.setdefault(key, {}).setdefault(pair, []).append(place)
        sets, alone, counts = [], [], Counter[str]()
        for (task, *_), places in documents.items():
            contexts = {requests[p[0]].args[0] for p in places.values()}
            counts[str(task)] += 1
            if len(places) > 1 and len(contexts) == 1:
                sets.append(self._choices(requests, places))
                continue
            reason = "one request" if len(places) == 1 else "choices under different contexts"
            self.uncorrected[str(task), reason] += 1
            alone += [self._choices(requests, {pair: at}) for pair, at in places.items()]
        self._say(counts)
        return sets, alone

    def _choices(self, requests: Sequence[Instance], places: Mapping[Pair, list[int]]) -> Choices:
        first = requests[next(iter(places.values()))[0]]
        name = f"{first.task_name}/{first.doc_id}"
        texts = [requests[p[0]].args[1] for p in places.values()]
        # The delimiter is not part of a candidate's text; a blank text is shown as code.
        candidates = tuple(text.lstrip() or repr(text) for text in texts)
        branches, excess = self._fit(list(places), name)
        self.truncated += excess > 0
        item = Item(first.args[0], candidates, id=name, separator="")
        return EncodedItem(item, Encoded(branches, truncated=excess)), [*places.values()]

    def _fit(self, pairs: Sequence[Pair], name: str) -> tuple[tuple[Branch, ...], int]:
        """Return the branches, cut at the left to fit the context, and the number of cut tokens."""
        # `base-sum` cuts each choice separately, as the harness does. Other methods keep BOS, and
        # cut the same tokens for all choices of a document (method, section 2).
        limit = self.max_length + 1  # the last token is never fed
        excess = [max(0, len(head) + len(tail) - limit) for head, tail in pairs]
        bos = 0
        if len(pairs) > 1 and self.method != BASE:
            excess = [max(excess)] * len(pairs)
            bos = int(all(head[0] == self.prefix_token_id for head, _ in pairs))
        if any(n > len(head) - max(bos, 1) for n, (head, _) in zip(excess, pairs, strict=True)):
            raise ItemError(f"a choice alone fills the context of {limit - 1} tokens", name)
        heads = [head[:bos] + head[bos + n :] for n, (head, _) in zip(excess, pairs, strict=True)]
        joined = zip(heads, pairs, strict=True)
        return tuple(Branch(head + tail, len(head)) for head, (_, tail) in joined), max(excess)

    def _answers(
        self, work: Sequence[Choices], methods: Mapping[str, Method]
    ) -> Iterator[tuple[int, Answer]]:
        """Yield the place of each request with its answer."""
        tracer = self.decider.tracer
        greedy = by_tokens("greedy", FirstChoice(tracer.facts.depth), "mean")
        # Without a named method, the decider's correction gives the scores.
        read: Read = "base" if methods else "decide"
        scope = self.decider.scope(read, methods={**methods, "greedy": greedy})
        decisions = tracer.correct_encoded([encoded for encoded, _ in work], scope)
        for (_, requests), decision in zip(work, map(sound, decisions), strict=True):
            *named, misses = decision.methods.values()
            scores = named[0] if named else decision.scores
            assert scores is not None and misses is not None
            for places, score, miss in zip(requests, scores, misses, strict=True):
                yield from ((place, (float(score), bool(miss == 0))) for place in places)

    def _say(self, counts: Mapping[str, int]) -> None:
        """Log the numbers of documents that were not corrected, or were cut."""
        for (task, reason), count in self.uncorrected.items() if self.method != BASE else ():
            if task in counts:
                what = f"{count} of {counts[task]} documents are no candidate set ({reason})"
                _log.warning("%s: %s: scored as the base", task, what)
        if self.truncated:
            _log.warning("%d documents or requests lost prompt tokens to fit", self.truncated)

    def set_cache_hook(self, cache_hook: CacheHook) -> None:
        """Let the harness cache answers, if each depends only on one choice."""
        if self.method != BASE:
            raise InputError(
                f"use_cache stores choices one by one, and {self.method} scores them together: "
                f"leave it out, or use method={BASE}"
            )
        super().set_cache_hook(cache_hook)

    def get_model_info(self) -> dict[str, Any]:
        """Return the description for the harness's results."""
        uncorrected = {f"{task}: {reason}": n for (task, reason), n in self.uncorrected.items()}
        counts = {"uncorrected": uncorrected, "truncated": self.truncated}
        return {"lastword": {"method": self.method, **counts, **self.decider.describe()}}


@dataclass(frozen=True)
class FirstChoice:
    """A token scorer: 0 for a token with the highest logit at depth L, else -1."""

    depth: int
    raw_depths: tuple[int, ...] = ()

    @property
    def depths(self) -> tuple[int, ...]:
        """Only L."""
        return (self.depth,)

    def log_probs(self, tile: Tile) -> Float[Tensor, " targets"]:
        """Return the scores; their mean over a candidate is 0 if it is the greedy continuation."""
        first = tile.logits[self.depth].argmax(dim=-1)
        return (first[tile.row] == tile.token).float() - 1.0


def _decider(pretrained: str | Tracer | Decider, options: dict[str, Any]) -> Decider:
    if isinstance(pretrained, str):
        return Decider.from_pretrained(pretrained, **options)
    if unused := sorted(name for name, value in options.items() if value is not None):
        raise InputError(f"a tracer has its options already: leave out {unused}")
    return pretrained if isinstance(pretrained, Decider) else Decider(pretrained)
