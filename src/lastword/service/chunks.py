"""Long texts are read in chunks, so that other requests have turns in between.

The keys and values of a chunk stay in the model's cache of prefixes, where the next chunk and the
pass that answers find them. The chunks show how fast the model reads, and so which requests cannot
be answered before their deadline.
"""

import math
import time

from lastword.decide.answerers import StateRead, States, depths_by_passage, pooled_once
from lastword.decide.states import LongText
from lastword.decide.tracer import Tracer
from lastword.model.prefixes import BLOCK
from lastword.service.queue import Order
from lastword.text.forest import build
from lastword.text.tokens import EncodedItem

CHUNK = 256  # tokens on a CPU without others before them: all other requests wait for it
FRESH = 10  # seconds after which a measured speed is forgotten: the machine may have been busy
CACHE_BYTES = 144 * 2**20  # of prefixes on a CPU by default: 3,200 tokens of SmolLM2
_NEWEST = 0.3  # share of the newest chunk in the mean rate


class Chunks:
    """Reads the texts of orders in chunks; only the model's thread calls most methods.

    A chunk takes about as long as `size` tokens at the start of a text. Later chunks have fewer
    tokens, because attention to the tokens before them takes time too.
    """

    def __init__(self, tracer: Tracer) -> None:
        self._tracer, self._measured = tracer, (0.0, -math.inf)
        self._backbone, self._prefixes = tracer.backbone, tracer.backbone.prefixes
        self.size, self._on_cpu = tracer.batch_tokens, tracer.profile.device.type == "cpu"
        if self._on_cpu:
            self.size = CHUNK
            if self._prefixes is not None and tracer.options.prefix_cache is None:
                self._prefixes.budget = CACHE_BYTES
        # Attention to so many tokens takes as long as the rest of a block.
        self._attended = 3 * tracer.profile.width

    @property
    def rate(self) -> float | None:
        """The speed in tokens per second at the start of a text; None if it is not known."""
        rate, since = self._measured
        return rate if time.monotonic() < since + FRESH else None

    @rate.setter
    def rate(self, measured: float) -> None:
        self._measured = measured, time.monotonic()

    def unread(self, order: Order) -> list[LongText]:
        """Return the long texts of an order of which a chunk has to be read before its pass."""
        if order.texts is None:
            order.texts = self._texts(order)
        for text in order.texts:
            text.skip(self._backbone)  # others may have read its beginning
        return [text for text in order.texts if self._is_unread(text)]

    def _is_unread(self, text: LongText) -> bool:
        # The pass that answers reads the last tokens of a prompt.
        least = 0 if text.passage is not None else self._count(text.end)
        return len(text.tokens) - text.end > least

    def _count(self, start: int) -> int:
        """Return the number of tokens of a chunk after so many others."""
        # n + (2 start n + n^2) / 2a = size, for n, with n^2 about size * n.
        return max(BLOCK, int(self.size / (1 + (start + self.size / 2) / self._attended)))

    def ask(self, order: Order) -> bool:
        """Read the states of probes that may leave the answer to the model.

        Return True if chunks of the order's texts have to be read before the pass that answers.
        """
        open_works = [work for work in order.works if work.may_need_model]
        if order.states is None and any(self._prompts(work.item) for work in open_works):
            order.states = pooled_once(order.works, self.states(order))
            for work in open_works:
                if work.answerer.needs_model(work, order.states):
                    order.texts = [*(order.texts or ()), *self._prompts(work.item)]
        return bool(self.unread(order))

    def _texts(self, order: Order) -> list[LongText]:
        items = [work.item for work in order.works if not work.may_need_model] or [order.encoded]
        prompts = [text for item in items for text in self._prompts(item)]
        passages = [
            LongText(passage.tokens, passage.start, tuple(sorted(depths)), passage)
            for (source, passage), depths in depths_by_passage(order.works, {}).items()
            if source is self._tracer and self._is_long(len(passage.tokens))
        ]
        return [*passages, *prompts]

    def _prompts(self, item: EncodedItem | None) -> list[LongText]:
        firsts = [prompt.branches[0] for prompt in item.prompts] if item is not None else []
        depths = (self._tracer.profile.depth,)
        return [
            LongText(branch.tokens[: branch.boundary], branch.boundary, depths)
            for branch in firsts
            if self._is_long(branch.boundary)
        ]

    def _is_long(self, tokens: int) -> bool:
        prefixes = self._prefixes
        if prefixes is None or tokens <= self.size or not self._backbone.has_one_rope(tokens):
            return False
        return self._on_cpu or tokens <= prefixes.capacity  # a GPU reads a longer one in one pass

    def read(self, order: Order) -> None:
        """Read the next chunk of an order, and measure the speed."""
        begin, text = time.perf_counter(), self.unread(order)[0]
        start, end = text.end, text.end + self._count(text.end)
        text.read(self._tracer, min(end - end % BLOCK, len(text.tokens)))
        newest = (self._work(text.end) - self._work(start)) / (time.perf_counter() - begin)
        self.rate = _NEWEST * newest + (1 - _NEWEST) * (self.rate or newest)

    def lack(self, order: Order) -> str | None:
        """Return why an order's texts do not fit the cache; None if they do, or it is empty."""
        texts = order.texts or ()
        assert self._prefixes is not None  # without a cache no text is long
        tokens, most = max(len(text.tokens) for text in texts), self._prefixes.capacity
        # The pass that answers needs the keys of all prompts, and reads a few of them itself.
        prompts = [text.branch for text in texts if text.passage is None]
        together = len(build(prompts)) if prompts else 0
        if tokens <= most and together <= most + self._tracer.batch_tokens:
            return None
        tokens = max(tokens, together)
        what = f"the text has {tokens} tokens, and the service's cache holds {most:.0f}"
        return f"{what}: shorten it, or serve with a larger --load prefix_cache"

    def states(self, order: Order) -> States:
        """Return the states of an order that have been read for probes."""
        return order.states or {
            StateRead(self._tracer, text.passage, depth): state
            for text in order.texts or ()
            if text.passage is not None
            for depth, state in zip(text.depths, text.means, strict=True)
        }

    def seconds(self, order: Order) -> float:
        """Return the predicted time for the rest of an order; 0 if the speed is not known."""
        texts, rate = self.unread(order), self.rate
        rest = sum(self._work(len(text.tokens)) - self._work(text.end) for text in texts)
        return rest / rate if rate else 0.0

    def most(self, seconds: float) -> float:
        """Return the number of tokens that are read in this time."""
        if (rate := self.rate) is None:
            return math.inf
        # n + n^2 / 2a = rate * seconds, for n.
        a = self._attended
        return max(self.size, a * (math.sqrt(1 + 2 * rate * seconds / a) - 1))

    def _work(self, tokens: int) -> float:
        """Return the work of the first tokens of a text, as tokens without others before them."""
        return tokens + tokens**2 / (2 * self._attended)
