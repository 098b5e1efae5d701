"""Requests that wait at the same moment are computed together.

One thread owns the model. Whenever it is free it takes what waits, oldest first, packs it by the
tracer's own plan and answers it; a request that comes alone is taken at once, so nobody waits for
company. A group that fails is taken apart and each item tried alone.
"""

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from tracelm.errors import TraceError
from tracelm.service.log import Log
from tracelm.service.metrics import Metrics
from tracelm.service.refusal import Refusal
from tracelm.service.settings import Settings
from tracelm.text.items import Item
from tracelm.text.tokens import Encoded
from tracelm.tracer import Read, Tracer

_SMOOTHING = 0.1  # weight of the latest batch in the mean seconds an item


@dataclass(eq=False)
class Order:
    """One thing to compute: an item to decide, or a call that has the model to itself.

    Attributes:
        work: The item, or the call.
        read: How an item is read.
        deadline: When nobody waits for it any more, by `time.monotonic`.
        future: Where its result goes; cancelling it before it starts takes it out of the queue.
    """

    work: Item | Callable[[], Any]
    read: Read
    deadline: float
    future: Future[Any] = field(default_factory=Future)

    def start(self) -> bool:
        """Claim the order; False where it was cancelled or is too late."""
        if not self.future.set_running_or_notify_cancel():
            return False
        if time.monotonic() > self.deadline:
            self.future.set_exception(Refusal("deadline", "no answer within the deadline"))
            return False
        return True


@dataclass(frozen=True)
class _Ready:
    order: Order
    encoded: Encoded


class Batcher:
    """A bounded queue before one thread that owns the model.

    Args:
        tracer: The model's tracer; this thread alone calls it.
        settings: Limits.
        metrics: What is counted.
        log: Where defects are told.
    """

    def __init__(self, tracer: Tracer, settings: Settings, metrics: Metrics, log: Log) -> None:
        self._tracer, self._settings = tracer, settings
        self._metrics, self._log = metrics, log
        self._waiting: deque[Order] = deque()
        self._change = threading.Condition()
        self._closing = False
        self._seconds_per_item = 0.0
        self._thread = threading.Thread(target=self._work, name="tracelm-model", daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Whether orders are still taken."""
        return self._thread.is_alive() and not self._closing

    def submit(self, work: Item | Callable[[], Any], read: Read, deadline: float) -> Future[Any]:
        """Queue one order.

        Raises:
            Refusal: The queue is full, or the service is stopping.
        """
        order = Order(work, read, deadline)
        with self._change:
            if self._closing:
                raise Refusal("draining", "the service is stopping; try another", retry_after=1)
            if len(self._waiting) >= self._settings.queue_items:
                self._waiting = deque(o for o in self._waiting if not o.future.cancelled())
            if len(self._waiting) >= self._settings.queue_items:
                raise Refusal(
                    "queue_full",
                    f"{len(self._waiting)} items wait already; try again later",
                    retry_after=self._retry_after(),
                )
            self._waiting.append(order)
            self._metrics.waiting.set(len(self._waiting))
            self._change.notify()
        return order.future

    def close(self) -> None:
        """Finish what waits, then end the thread."""
        with self._change:
            self._closing = True
            self._change.notify()
        self._thread.join()

    def _retry_after(self) -> int:
        return max(1, math.ceil(len(self._waiting) * self._seconds_per_item))

    def _work(self) -> None:
        while orders := self._take():
            self._answer(orders)

    def _take(self) -> list[Order]:
        """What waits, oldest first, as soon as anything does; nothing where the end has come."""
        with self._change:
            while not self._waiting and not self._closing:
                self._change.wait()
            count = min(len(self._waiting), self._settings.batch_items)
            orders = [self._waiting.popleft() for _ in range(count)]
            self._metrics.waiting.set(len(self._waiting))
        return orders

    def _answer(self, orders: Sequence[Order]) -> None:
        start = time.perf_counter()
        live = [order for order in orders if order.start()]
        for read in sorted({order.read for order in live}):
            self._correct([o for o in live if o.read == read and isinstance(o.work, Item)], read)
        for order in live:
            if not isinstance(order.work, Item):
                self._call(order, order.work)
        if live:
            latest = (time.perf_counter() - start) / len(live)
            mean = self._seconds_per_item or latest
            self._seconds_per_item = mean + _SMOOTHING * (latest - mean)

    def _correct(self, orders: Sequence[Order], read: Read) -> None:
        ready = []
        for order, encoded in zip(orders, self._encode(orders), strict=True):
            if isinstance(encoded, Exception):
                self._fail(order, encoded)
            else:
                ready.append(_Ready(order, encoded))
        for group in self._plan(ready):
            self._decide(group, read)

    def _encode(self, orders: Sequence[Order]) -> list[Encoded | Exception]:
        items = [order.work for order in orders if isinstance(order.work, Item)]
        try:
            encoded = self._tracer.encode(items)
        except Exception as error:
            if len(orders) == 1:
                return [error]
            return [result for order in orders for result in self._encode([order])]
        return [e if isinstance(e, Exception) else self._limited(e) for e in encoded]

    def _limited(self, encoded: Encoded) -> Encoded | Refusal:
        tokens = encoded.prompt_tokens + sum(encoded.candidate_tokens)
        if tokens <= self._settings.tokens:
            return encoded
        limit = f"the service takes {self._settings.tokens} an item; shorten it"
        return Refusal("too_many_tokens", f"the item has {tokens} tokens, {limit}")

    def _plan(self, ready: Sequence[_Ready]) -> Iterable[list[_Ready]]:
        try:
            groups = self._tracer.plan([r.encoded for r in ready])
        except Exception as error:
            self._log.failure(error, at="plan", items=len(ready))
            return [[r] for r in ready]
        return [[ready[i] for i in group] for group in groups]

    def _decide(self, group: Sequence[_Ready], read: Read) -> None:
        start = time.perf_counter()
        try:
            decisions = self._tracer.decide([r.encoded for r in group], read)
        except Exception as error:
            if len(group) == 1:
                self._fail(group[0].order, error)
                return
            self._log.event("apart", items=len(group), error=type(error).__name__)
            for one in group:
                self._decide([one], read)
            return
        self._metrics.batch_items.observe(len(group))
        self._metrics.batch_seconds.observe(time.perf_counter() - start)
        for ready, decision in zip(group, decisions, strict=True):
            self._metrics.decided(decision)
            ready.order.future.set_result(decision)

    def _call(self, order: Order, call: Callable[[], Any]) -> None:
        try:
            result = call()
        except Exception as error:
            self._fail(order, error)
        else:
            order.future.set_result(result)

    def _fail(self, order: Order, error: Exception) -> None:
        if not isinstance(error, TraceError):
            self._log.failure(error, at="item")  # in full; the client is told in short
            error = Refusal.of(error)
        order.future.set_exception(error)
