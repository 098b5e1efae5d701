"""Long prompts are read in chunks, so that other requests have turns in between.

The keys and values of a chunk stay in the model's cache of prefixes, where the next chunk and the
pass that answers find them. The chunks show how fast the model reads, and so which requests cannot
be answered before their deadline.
"""

import math
import time

from lastword.decide.tracer import Tracer
from lastword.text.forest import Branch

CHUNK = 256  # tokens on a CPU: all other requests wait for it
LEAST = 4 * CHUNK  # tokens that are always tried, so that a slow moment is forgotten
CACHE_BYTES = 160 * 2**20  # of prefixes on a CPU: 3,600 tokens of SmolLM2
_NEWEST = 0.3  # share of the newest chunk in the mean rate


class Chunks:
    """Reads prompts in chunks of at most `size` tokens; only the model's thread calls `read`.

    `rate` is the measured speed, in tokens without others before them per second.
    """

    rate: float | None = None

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer
        self.size, prefixes = tracer.batch_tokens, tracer.model.backbone.prefixes
        if tracer.profile.device.type == "cpu":
            self.size = CHUNK
            if prefixes is not None:
                prefixes.budget = min(prefixes.budget, CACHE_BYTES)
        # Attention to so many tokens takes as many operations as the rest of a block.
        self._attended = 6 * tracer.profile.width

    def unread(self, prompt: Branch) -> int:
        """Return the number of tokens before the candidate that are not cached; 0 if few."""
        backbone = self._tracer.backbone
        if prompt.boundary <= self.size or backbone.prefixes is None:
            return 0
        return prompt.boundary - backbone.cached(prompt)

    def read(self, prompt: Branch) -> None:
        """Read the next chunk of a prompt, and measure the speed."""
        begin, start = time.perf_counter(), prompt.boundary - self.unread(prompt)
        # The token of the last row has to be computed for its state, and is not cached.
        end = min(start + self.size, prompt.boundary - 1)
        branch, depth = Branch(prompt.tokens[: end + 2], end + 1), self._tracer.profile.depth
        self._tracer.backbone.states([branch], [depth], self._tracer.batch_tokens)
        rate = (self._work(end) - self._work(start)) / (time.perf_counter() - begin)
        self.rate = rate if self.rate is None else _NEWEST * rate + (1 - _NEWEST) * self.rate

    def seconds(self, prompt: Branch) -> float:
        """Return the predicted time for the rest of a prompt; 0 before the first chunk."""
        start = prompt.boundary - self.unread(prompt)
        rest = self._work(prompt.boundary) - self._work(start)
        return rest / self.rate if self.rate else 0.0

    def most(self, seconds: float) -> float:
        """Return the number of tokens that are read in this time."""
        if self.rate is None:
            return math.inf
        # n + n^2 / 2a = rate * seconds, for n.
        a = self._attended
        return max(LEAST, a * (math.sqrt(1 + 2 * self.rate * seconds / a) - 1))

    def _work(self, tokens: int) -> float:
        """Return the work of the first tokens of a text, as tokens without others before them."""
        return tokens + tokens**2 / (2 * self._attended)
