"""Requests that wait at the same moment are computed together, and questions step by step between.

Three threads. Two turn what comes into tokens, one of them what is slow to read, so that nobody
else waits for that. The third owns the model, and goes behind those who speak with clients.
Whenever the model is free, `Turns` say whose turn it is: that of one pass over items that wait,
packed by the tracer's own plan, or that of one step of the oldest question. A pass has the oldest
item that came alone or the oldest of a batch, and the company that the plan gives it; then
deadlines, clients that left and whoever came meanwhile are looked at before the next. An item that
comes alone is taken at once, so nobody waits for company. A group that fails is taken apart and
each item tried alone. Whatever code of a model or a tokenizer raises, SystemExit too, ends its own
request alone: it is logged, those in hand are told 500, and the thread goes on.
"""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from lastword.batch import Read
from lastword.service.log import Log
from lastword.service.metrics import Metrics
from lastword.service.orders import (
    ALONE,
    ASK,
    BATCH,
    Kind,
    Order,
    Promise,
    Steps,
    Teller,
    silent,
    stage,
    tell_waits,
)
from lastword.service.passes import Passes
from lastword.service.queues import Queues
from lastword.service.reading import Reader
from lastword.service.refusal import Refusal
from lastword.service.settings import Settings
from lastword.service.threads import BODIES, MODEL, go_behind
from lastword.text.items import Item
from lastword.tracer import Tracer


class Batcher:
    """Three threads around the queues: two read, one owns the model.

    Args:
        tracer: The model's tracer; these threads alone call it.
        settings: Limits.
        metrics: What is counted.
        log: Where defects are told.

    Attributes:
        teller: Makes who hears of an order's stages, where its request is in hand.
    """

    def __init__(self, tracer: Tracer, settings: Settings, metrics: Metrics, log: Log) -> None:
        self._log = log
        self.teller: Callable[[], Teller] = lambda: silent
        items, asks = settings.queue_items, settings.queue_asks
        places = {ALONE: items, BATCH: items, ASK: asks}
        self._queues = Queues(places, settings.batch_items, settings.queue_characters)
        self._reader = Reader(tracer, settings.tokens, log)
        self._passes = Passes(tracer, metrics, log)
        self._change = threading.Condition()
        self._closing = False
        self._readers = 2
        self._threads = [
            threading.Thread(target=run, name=name, daemon=True)
            for run, name in (
                (partial(self._read, slow=False), "lastword-tokens"),
                (partial(self._read, slow=True), "lastword-long-tokens"),
                (self._work, "lastword-model"),
            )
        ]
        for thread in self._threads:
            thread.start()

    @property
    def alive(self) -> bool:
        """Whether all threads are there."""
        return all(thread.is_alive() for thread in self._threads)

    @property
    def hangs(self) -> bool:
        """Whether a thread was left behind when the end came."""
        return self._closing and any(thread.is_alive() for thread in self._threads)

    @property
    def taking(self) -> bool:
        """Whether orders are still taken."""
        return self.alive and not self._closing

    def waiting(self, kind: Kind) -> int:
        """How many orders of a kind wait."""
        with self._change:
            return len(self._queues.waiting(kind))

    def oldest_seconds(self) -> float:
        """Age of the oldest order that somebody waits for, or that the model has; 0 without any."""
        with self._change:
            waiting = [o for o in self._queues.waiting() if not o.future.done()]
            since = [order.since for order in (*waiting, *self._queues.in_hand)]
        return time.monotonic() - min(since) if since else 0.0

    def submit(
        self, work: Item | Steps, read: Read, deadline: float, *, batch: int | None = None
    ) -> Promise:
        """Queue one order; `batch` as `Order` has it.

        Raises:
            Refusal: The queue of its kind is full, or the service is stopping.
        """
        order = Order(work, read, Promise(deadline), batch, tell=self.teller())
        with self._change:
            if self._closing:
                raise Refusal("draining", "the service is stopping; try another", retry_after=1)
            if not self.alive:
                raise Refusal("internal", "the model's thread has ended: restart the service")
            self._queues.add(order)
            self._change.notify_all()
        return order.future

    def close(self, patience_seconds: float) -> None:
        """Finish what waits, and end the threads; what hangs is left behind.

        Args:
            patience_seconds: The longest wait; then whatever waits is turned away.
        """
        with self._change:
            self._closing = True
            self._change.notify_all()
        latest = time.monotonic() + patience_seconds
        for thread in self._threads:
            thread.join(max(0.0, latest - time.monotonic()))
        if self.hangs:
            self._log.event("abandoned", waiting=len(self._queues.waiting()))
            self.turn_away()

    def turn_away(self) -> None:
        """Take no more orders, and tell all that are not answered yet that the service stops."""
        with self._change:
            self._closing = True
            orders = [*self._queues.waiting(), *self._queues.in_hand]
            self._change.notify_all()
        for order in orders:
            order.fail(Refusal("draining", "the service has stopped"))

    @contextmanager
    def _surviving(self, orders: Sequence[Order]) -> Iterator[None]:
        """Tell those in hand whatever comes out of a step; the thread goes on."""
        try:
            yield
        except BaseException as error:
            self._log.failure(error, at=threading.current_thread().name)
            for order in orders:
                order.fail(Refusal.of(error))

    # The threads that read: text to tokens.

    def _read(self, *, slow: bool) -> None:
        if slow:
            go_behind(BODIES)
        while orders := self._arrivals(slow):
            with self._surviving(orders), stage(orders, "encode"):
                now = time.monotonic()
                self._reader.read([order for order in orders if order.is_open(now)])
            with self._change:
                self._queues.sort(time.monotonic(), slow=slow)
                self._change.notify_all()
        with self._change:
            self._readers -= 1
            self._change.notify_all()

    def _arrivals(self, slow: bool) -> list[Order]:
        """What has come, as soon as anything has; nothing where the end has come."""
        with self._change:
            while not (orders := self._queues.read(slow=slow)) and not self._closing:
                self._change.wait()
            return orders

    # The thread that owns the model.

    def _work(self) -> None:
        go_behind(MODEL)
        while orders := self._next():
            begin = time.perf_counter()
            group: list[Order] = []
            with self._surviving(orders):
                group = self._passes.group(orders)
            with self._change:
                self._queues.start(group)
            with self._surviving(group):
                tell_waits(group)
                if group:
                    self._passes.run(group)
            with self._change:
                self._queues.end(orders[0], time.perf_counter() - begin)

    def _next(self) -> list[Order]:
        """Orders whose turn it is, as soon as any wait; none where the end has come."""
        with self._change:
            while not (orders := self._queues.turn(now := time.monotonic())):
                rest = self._queues.rest(now)
                if not rest and not self._readers:
                    break
                self._change.wait(rest or None)
            return orders
