"""Passes of the model: orders that are answered together, within a budget of tokens."""

import math
import time
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import torch

from lastword.decide.answer import Answer
from lastword.decide.answerers import State, StateRead
from lastword.decide.decider import Decider
from lastword.errors import TraceError
from lastword.records.decision import Decision
from lastword.service.chunks import Chunks
from lastword.service.limits import CPU_TOKENS, TARGETS
from lastword.service.log import Log
from lastword.service.metrics import Metrics
from lastword.service.queue import Order
from lastword.service.refusal import Refusal


class Passes:
    """Runs the model for queued orders; only the model's thread calls it."""

    def __init__(self, decider: Decider, metrics: Metrics, log: Log, deadline: float) -> None:
        self._decider, self._metrics, self._log = decider, metrics, log
        self._deadline = deadline
        self.chunks = None if decider.by_model is None else Chunks(decider.tracer)
        self._long: Order | None = None  # the long order that is read

    @property
    def probe_tokens(self) -> int:
        """The number of tokens that probes read in a pass, of encoders if there is no model."""
        return CPU_TOKENS if self.chunks is None else self._decider.tracer.batch_tokens

    def choose(self, orders: Sequence[Order]) -> list[Order]:
        """Return the first order and those that share its pass; a long one is alone.

        Long ones are read one after the other: together, their keys would not fit the cache, and
        short ones would wait for a chunk of each.
        """
        long = self._long if self._long is not None and not self._long.future.done() else None
        ready = (o for o in orders if long in (None, o) or not self._is_long(o))
        first = next(ready, long or orders[0])
        if self._is_long(first):
            return [first]
        # The long order may not be among the next ones.
        others = (o for o in orders if o is not first and o.kind == first.kind)
        alike = [first, *(o for o in others if not self._is_long(o))]
        limit = self.probe_tokens if first.encoded is None else TARGETS
        count = sum(cost <= limit for cost in accumulate(order.cost for order in alike))
        alike = alike[: max(count, 1)]
        items = [order.encoded for order in alike if order.encoded is not None]
        if not items:
            return alike
        # The tracer's plan groups what fits into one pass; the first order has waited longest.
        (group,) = (group for group in self._decider.tracer.plan(items) if 0 in group)
        return [alike[i] for i in sorted(group)]

    def _is_long(self, order: Order) -> bool:
        """Return True if a chunk of an order's texts has to be read before its pass."""
        return self.chunks is not None and bool(self.chunks.unread(order))

    def _read_chunk(self, order: Order) -> dict[Order, Any]:
        """Read a chunk of an order's texts; refuse an order whose deadline is too near."""
        assert self.chunks is not None and order.texts is not None
        seconds, until = self.chunks.seconds(order), order.since + self._deadline
        if order is not self._long and time.monotonic() + 2 * seconds > until:
            what = "other long texts came first, and this one cannot be read before its deadline"
            return {order: Refusal("queue_full", what, retry_after=math.ceil(2 * seconds))}
        if (lack := self.chunks.lack(order)) is not None:
            return {order: Refusal("too_many_tokens", lack)}
        self._long = order
        try:
            self.chunks.read(order)
        except BaseException as error:  # as in `run`
            return {order: self._as_refusal(error)}
        late = time.monotonic() + self.chunks.seconds(order) > until
        return {order: self._beyond(sum(len(t.tokens) for t in order.texts))} if late else {}

    @property
    def _most(self) -> float:
        # Half of the time is for others, which have turns between the chunks (`_read_chunk`).
        return math.inf if self.chunks is None else self.chunks.most(self._deadline / 2)

    def require_timely(self, tokens: int) -> None:
        """Refuse more tokens than this machine reads before the deadline."""
        if tokens > self._most:
            raise self._beyond(tokens)

    def _beyond(self, tokens: int) -> Refusal:
        what = f"{tokens} tokens cannot be read before the deadline of {self._deadline:g} s"
        return Refusal("beyond_deadline", f"{what}: this machine takes about {self._most:.0f}")

    def run(self, orders: Sequence[Order]) -> dict[Order, Any]:
        """Return the result or the error of each order; if a pass fails, each is tried alone."""
        if self._is_long(orders[0]):
            return self._read_chunk(orders[0])
        if len(orders) > 1:
            try:
                return self._answer(orders)
            except BaseException as error:  # other code may raise SystemExit
                self._log.event("apart", items=len(orders), error=type(error).__name__)
        # Not inside `except`: the error would keep the failed pass in memory, which may be full.
        results: dict[Order, Any] = {}
        for order in orders:
            try:
                results |= {} if order.future.done() else self._answer([order])
            except BaseException as error:
                results[order] = self._as_refusal(error)
        return results

    def _answer(self, orders: Sequence[Order]) -> dict[Order, Any]:
        start = time.perf_counter()
        works = [work for order in orders for work in order.works]
        items = [order.encoded for order in orders if order.encoded is not None]
        results: Sequence[Any]
        states = dict[StateRead, State]()
        if self.chunks is not None:
            if any([self.chunks.ask(order) for order in orders]):
                return {}
            for order in orders:
                states |= self.chunks.states(order)
        if works:
            answers = iter(self._decider.answer(works, states))
            results = [_together([next(answers) for _ in order.works]) for order in orders]
        else:
            results = self._decider.decide_group(items, orders[0].scope)
        if items:
            self._metrics.batch_items.observe(len(items))
            self._metrics.batch_seconds.observe(time.perf_counter() - start)
        for order, result in zip(orders, results, strict=True):
            for one in result if isinstance(result, list) else [result]:
                if isinstance(one, Answer) and order.encoded is not None:
                    one = one.decision  # the model's
                if isinstance(one, Decision | Answer):
                    self._metrics.decided(one)
        return dict(zip(orders, results, strict=True))

    def _as_refusal(self, error: BaseException) -> Exception:
        """Return the client's error; log an unexpected one in full."""
        if isinstance(error, TraceError):
            return error
        self._log.failure(error, at="item")
        if _is_memory(error):
            what = "it takes more memory than is free; shorten it, or give fewer candidates"
            return Refusal("model", what)
        return Refusal.of(error)


def _together(answers: Sequence[Answer | TraceError]) -> list[Answer] | TraceError:
    error = next((one for one in answers if isinstance(one, TraceError)), None)
    return error or [one for one in answers if isinstance(one, Answer)]


def _is_memory(error: BaseException) -> bool:
    """Return True for an out-of-memory error; on the CPU torch has no class for it."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and "not enough memory" in str(error)
