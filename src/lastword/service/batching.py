"""Requests that wait at the same moment are computed together, and questions step by step between.

Two threads. One turns what comes into tokens; the other owns the model. Whenever the model is free,
the class of work that has had less of its time goes next: one pass over items that wait, packed by
the tracer's own plan, or one step of the oldest question. A pass has the oldest item that came
alone or the oldest of a batch, again whichever class has had less, and the company that the plan
gives it; then deadlines, clients that left and whoever came meanwhile are looked at before the
next. An item that comes alone is taken at once, so nobody waits for company. A group that fails is
taken apart and each item tried alone.
Whatever code of a model or a tokenizer raises, SystemExit too, ends its own request alone: it is
logged, those in hand are told 500, and the thread goes on.
"""

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Literal

import torch

from lastword.errors import TraceError
from lastword.model.phases import Watcher, watched
from lastword.service.log import Log
from lastword.service.metrics import Metrics
from lastword.service.refusal import Refusal
from lastword.service.settings import Settings
from lastword.text.items import Item
from lastword.text.tokens import Encoded
from lastword.tracer import Read, Tracer

_SMOOTHING = 0.1  # weight of the latest order in the mean seconds of one
# Yields the tokens that it keeps in the model at most: first before it takes any, then every step.
Steps = Generator[int, None, Any]
Kind = Literal["item", "ask"]
# Takes a stage of an order, its begin and end in nanoseconds since the epoch, and of how many
# orders it was the stage.
Teller = Callable[[str, int, int, int], None]


def _untold(stage: str, begin: int, end: int, orders: int) -> None:
    """Nobody traces."""


class Promise(Future[Any]):
    """The result of an order that somebody awaits.

    Args:
        deadline: When nobody waits for it any more, by `time.monotonic`.

    Attributes:
        encoded: The order's item as tokens, once it has them.
    """

    encoded: Encoded | None = None

    def __init__(self, deadline: float) -> None:
        super().__init__()
        self.deadline = deadline


@dataclass(eq=False)
class Order:
    """One thing to compute: an item to decide, or a question in steps.

    Attributes:
        work: The item, or the steps.
        read: How an item is read.
        future: Where its result goes; cancelling it takes it out of the queue.
        bulk: Whether it is one of a batch.
        seconds: Time of the model that it has had.
        tell: Who hears of its stages.
        arrived: When it came, in nanoseconds since the epoch; 0 once its wait has been told.
        since: When it came, by `time.monotonic`.
    """

    work: Item | Steps
    read: Read
    future: Promise
    bulk: bool = False
    seconds: float = 0.0
    tell: Teller = _untold
    arrived: int = field(default_factory=time.time_ns)
    since: float = field(default_factory=time.monotonic)

    @property
    def kind(self) -> Kind:
        """The class of work that it waits in."""
        return "item" if isinstance(self.work, Item) else "ask"

    def waited_for(self) -> bool:
        """Whether somebody still waits; one that is too late is told so."""
        if time.monotonic() > self.future.deadline:
            self.fail(Refusal("deadline", "no answer within the deadline"))
        return not self.future.done()

    def give(self, result: Any) -> None:
        """The answer, to whoever still waits."""
        with suppress(InvalidStateError):
            self.future.set_result(result)

    def fail(self, error: Exception) -> None:
        """No answer, and why."""
        with suppress(InvalidStateError):
            self.future.set_exception(error)


class Batcher:
    """Bounded queues before one thread that owns the model.

    Args:
        tracer: The model's tracer; these threads alone call it.
        settings: Limits.
        metrics: What is counted.
        log: Where defects are told.

    Attributes:
        teller: Makes who hears of an order's stages, where its request is in hand.
    """

    def __init__(self, tracer: Tracer, settings: Settings, metrics: Metrics, log: Log) -> None:
        self._tracer, self._metrics, self._log = tracer, metrics, log
        self.teller: Callable[[], Teller] = lambda: _untold
        self._batch_items, self._tokens = settings.batch_items, settings.tokens
        self._most: dict[Kind, int] = {"item": settings.queue_items, "ask": settings.queue_asks}
        self._coming: deque[Order] = deque()
        self._reading: list[Order] = []
        self._waiting: deque[Order] = deque()  # items that have their tokens
        self._asks: deque[Order] = deque()  # the first is being answered
        self._in_hand: list[Order] = []  # the model has them
        self._spent: dict[Kind, float] = {"item": 0.0, "ask": 0.0}
        self._spent_on_items = {False: 0.0, True: 0.0}  # that came alone, of batches
        self._turn = False  # of which of these the pass in hand is
        self._mean: dict[Kind, float] = {"item": 0.0, "ask": 0.0}  # seconds of one order
        self._change = threading.Condition()
        self._closing = self._read_all = False
        self._encoder = threading.Thread(target=self._read, name="lastword-tokens", daemon=True)
        self._thread = threading.Thread(target=self._work, name="lastword-model", daemon=True)
        self._encoder.start()
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Whether both threads are there."""
        return self._thread.is_alive() and self._encoder.is_alive()

    @property
    def hangs(self) -> bool:
        """Whether a thread was left behind when the end came."""
        return self._closing and (self._thread.is_alive() or self._encoder.is_alive())

    @property
    def taking(self) -> bool:
        """Whether orders are still taken."""
        return self.alive and not self._closing

    def oldest_seconds(self) -> float:
        """Age of the oldest order that somebody waits for, or that the model has; 0 without any."""
        with self._change:
            waiting = [order.since for order in self._left() if not order.future.done()]
            since = [*waiting, *(order.since for order in self._in_hand)]
        return time.monotonic() - min(since) if since else 0.0

    def submit(
        self, work: Item | Steps, read: Read, deadline: float, *, bulk: bool = False
    ) -> Promise:
        """Queue one order; `bulk` where it is one of a batch.

        Raises:
            Refusal: The queue of its class is full, or the service is stopping.
        """
        order = Order(work, read, Promise(deadline), bulk, tell=self.teller())
        with self._change:
            if self._closing:
                raise Refusal("draining", "the service is stopping; try another", retry_after=1)
            if not self.alive:
                raise Refusal("internal", "the model's thread has ended: restart the service")
            self._require_room(order.kind)
            self._coming.append(order)
            self._count()
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
        for thread in (self._encoder, self._thread):
            thread.join(max(0.0, latest - time.monotonic()))
        if self.hangs:
            self._log.event("abandoned", waiting=len(self._left()))
            self.turn_away()

    def turn_away(self) -> None:
        """Take no more orders, and tell all that are not answered yet that the service stops."""
        with self._change:
            self._closing = True
            left = [*self._left(), *self._in_hand]
            self._change.notify_all()
        for order in left:
            order.fail(Refusal("draining", "the service has stopped"))

    def _left(self) -> list[Order]:
        """Whatever waits."""
        return [*self._coming, *self._reading, *self._waiting, *self._asks]

    def _require_room(self, kind: Kind) -> None:
        if self._queued(kind) >= self._most[kind]:
            for queue in (self._coming, self._waiting):
                kept = [order for order in queue if not order.future.done()]
                queue.clear()
                queue.extend(kept)
        if (queued := self._queued(kind)) >= self._most[kind]:
            what = "items" if kind == "item" else "questions"
            raise Refusal(
                "queue_full",
                f"{queued} {what} wait already; try again later",
                retry_after=max(1, math.ceil(queued * self._mean[kind])),
            )

    def _queued(self, kind: Kind) -> int:
        ready = self._waiting if kind == "item" else self._asks
        return len(ready) + sum(order.kind == kind for order in (*self._coming, *self._reading))

    def _count(self) -> None:
        self._metrics.waiting_items.set(self._queued("item"))
        self._metrics.waiting_questions.set(self._queued("ask"))

    def _take(self, queue: deque[Order]) -> list[Order]:
        """The oldest of a queue, as many as are computed together; the lock is held."""
        taken = [queue.popleft() for _ in range(min(len(queue), self._batch_items))]
        self._count()
        return taken

    @contextmanager
    def _surviving(self, orders: Sequence[Order]) -> Iterator[None]:
        """Whatever comes out of a step, those in hand are told and the thread goes on."""
        try:
            yield
        except BaseException as error:
            self._log.failure(error, at=threading.current_thread().name)
            for order in orders:
                order.fail(Refusal.of(error))

    # The thread that reads: text to tokens.

    def _read(self) -> None:
        while orders := self._arrived():
            with self._surviving(orders), _told(orders, "encode"):
                self._tokenise([order for order in orders if order.waited_for()])
            ready = [order for order in orders if not order.future.done()]
            with self._change:
                self._waiting.extend(order for order in ready if order.kind == "item")
                self._asks.extend(order for order in ready if order.kind == "ask")
                self._reading = []
                self._count()
                self._change.notify_all()
        with self._change:
            self._read_all = True
            self._change.notify_all()

    def _arrived(self) -> list[Order]:
        """What has come, as soon as anything has; nothing where the end has come."""
        with self._change:
            while not self._coming and not self._closing:
                self._change.wait()
            self._reading = self._take(self._coming)
            return self._reading

    def _tokenise(self, orders: Sequence[Order]) -> None:
        items = [order for order in orders if order.kind == "item"]
        for order, encoded in zip(items, self._encode(items), strict=True):
            if isinstance(encoded, Exception):
                self._fail(order, encoded)
            else:
                order.future.encoded = encoded
        for order in orders:
            if not isinstance(order.work, Item):
                self._admit(order, order.work)

    def _encode(self, orders: Sequence[Order]) -> list[Encoded | Exception]:
        items = [order.work for order in orders if isinstance(order.work, Item)]
        try:
            encoded = self._tracer.encode(items)
        except Exception as error:
            if len(orders) == 1:
                return [error]
        else:
            return [e if isinstance(e, Exception) else self._limited(e) for e in encoded]
        return [result for order in orders for result in self._encode([order])]

    def _limited(self, encoded: Encoded) -> Encoded | Refusal:
        tokens = encoded.prompt_tokens + sum(encoded.candidate_tokens)
        if tokens <= self._tokens:
            return encoded
        limit = f"the service takes {self._tokens} an item; shorten it"
        return Refusal("too_many_tokens", f"the item has {tokens} tokens, {limit}")

    def _admit(self, order: Order, steps: Steps) -> None:
        """A question's first step, which takes no model: whether it may have one."""
        try:
            tokens = next(steps)
        except Exception as error:
            self._fail(order, error)
            return
        if tokens > self._tokens:
            told = f"the question takes {tokens} tokens with its samples, and the service"
            self._fail(
                order,
                Refusal("too_many_tokens", f"{told} {self._tokens}; shorten it or lower k"),
            )

    # The thread that owns the model.

    def _work(self) -> None:
        while (kind := self._next()) is not None:
            begun = time.perf_counter()
            orders = self._first_ask() if kind == "ask" else self._group()
            with self._surviving(orders):
                _tell_waits(orders)
                if kind == "ask":
                    self._step(orders[0])
                elif orders:
                    self._decide(orders, orders[0].read)
            self._account(kind, orders, time.perf_counter() - begun)

    def _first_ask(self) -> list[Order]:
        with self._change:
            self._in_hand = [self._asks[0]]
        return [*self._in_hand]

    def _group(self) -> list[Order]:
        """The items of the next pass, out of their queue; none where nobody waits any more."""
        orders = self._live()
        group: list[Order] = []
        with self._surviving(orders):
            those = [order for order in orders if order.read == orders[0].read]
            group = next((g for g in self._plan(those) if orders[0] in g), [])
        with self._change:
            self._waiting = deque(order for order in self._waiting if order not in group)
            self._in_hand = group
            self._count()
        return group

    def _live(self) -> list[Order]:
        """Items that somebody waits for, as many as one plan takes: whose turn it is, first."""
        with self._change:
            self._waiting = deque(order for order in self._waiting if order.waited_for())
            spent, there = self._spent_on_items, {order.bulk for order in self._waiting}
            if len(there) == 1:  # who waits for nothing saves nothing up
                spent |= dict.fromkeys({True, False} - there, max(spent.values()))
                self._turn = True in there
            else:
                self._turn = spent[True] < spent[False]
            ordered = sorted(self._waiting, key=lambda order: order.bulk != self._turn)
        return ordered[: self._batch_items]

    def _next(self) -> Kind | None:
        """Whose turn it is, as soon as anything waits; None where the end has come."""
        with self._change:
            while not self._waiting and not self._asks and not self._read_all:
                self._change.wait()
            if not self._waiting and not self._asks:
                return None
            # Who waits for nothing saves nothing up.
            most = max(self._spent.values())
            if not self._waiting or not self._asks:
                self._spent["ask" if self._waiting else "item"] = most
                return "item" if self._waiting else "ask"
            return "item" if self._spent["item"] <= self._spent["ask"] else "ask"

    def _account(self, kind: Kind, orders: Sequence[Order], seconds: float) -> None:
        """Whose time it was, and how long one of its orders takes; who has ended leaves."""
        self._spent[kind] += seconds
        if kind == "item":
            self._spent_on_items[self._turn] += seconds
        for order in orders:
            order.seconds += seconds / len(orders)
            if order.future.done():
                mean = self._mean[kind] or order.seconds
                self._mean[kind] = mean + _SMOOTHING * (order.seconds - mean)
        with self._change:
            self._in_hand = []
            if kind == "ask" and orders[0].future.done():
                self._asks.popleft()
                self._count()

    def _step(self, order: Order) -> None:
        """One step of a question, while somebody waits for it."""
        assert not isinstance(order.work, Item)
        if not order.waited_for():
            order.work.close()
            return
        try:
            with watched(_watcher([order])):
                next(order.work)
        except StopIteration as ended:
            order.give(ended.value)
        except Exception as error:
            self._fail(order, error)

    def _plan(self, orders: Sequence[Order]) -> Iterable[list[Order]]:
        try:
            groups = self._tracer.plan(_encoded(orders))
        except Exception as error:
            self._log.failure(error, at="plan", items=len(orders))
            return [[order] for order in orders]
        return [[orders[i] for i in group] for group in groups]

    def _decide(self, group: Sequence[Order], read: Read) -> None:
        start = time.perf_counter()
        try:
            with watched(_watcher(group)):
                decisions = self._tracer.decide(_encoded(group), read)
        except Exception as error:
            if len(group) == 1:
                self._fail(group[0], error)
                return
            self._log.event("apart", items=len(group), error=type(error).__name__)
        else:
            self._metrics.batch_items.observe(len(group))
            self._metrics.batch_seconds.observe(time.perf_counter() - start)
            for order, decision in zip(group, decisions, strict=True):
                self._metrics.decided(decision)
                order.give(decision)
            return
        # Not inside `except`: the failed pass would keep its memory, which may be what was lacking.
        for one in group:
            if one.waited_for():
                self._decide([one], read)

    def _fail(self, order: Order, error: Exception) -> None:
        if _is_memory(error):
            told = "it takes more memory than is free; shorten it, or give fewer candidates"
            self._log.failure(error, at=order.kind)
            error = Refusal("model", told)
        elif not isinstance(error, TraceError):
            self._log.failure(error, at=order.kind)  # in full; the client is told in short
            error = Refusal.of(error)
        order.fail(error)


def _watcher(orders: Sequence[Order]) -> Watcher:
    """Tells orders of the phases of a pass that they share."""

    def tell(stage: str, begin: int, end: int) -> None:
        for order in orders:
            order.tell(stage, begin, end, len(orders))

    return tell


@contextmanager
def _told(orders: Sequence[Order], stage: str) -> Iterator[None]:
    """Tell orders of a stage that they share."""
    begun = time.time_ns()
    yield
    _watcher(orders)(stage, begun, time.time_ns())


def _tell_waits(orders: Sequence[Order]) -> None:
    """Tell orders that the model takes for the first time how long they have waited."""
    now = time.time_ns()
    for order in orders:
        if order.arrived:
            order.tell("queue", order.arrived, now, 1)
            order.arrived = 0


def _encoded(orders: Sequence[Order]) -> list[Encoded]:
    encoded = [order.future.encoded for order in orders]
    return [e for e in encoded if e is not None]


def _is_memory(error: Exception) -> bool:
    """Whether memory was lacking; torch's allocator on the CPU has no class for it."""
    known = isinstance(error, MemoryError | torch.OutOfMemoryError)
    return known or (isinstance(error, RuntimeError) and "not enough memory" in str(error))
