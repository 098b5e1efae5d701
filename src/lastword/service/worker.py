"""Threads that work on a queue of two lanes: one tokenises text, one runs the model.

Single requests go before batches, the clients of a lane take turns, and the orders of one client
are served in the order of arrival. If both lanes have orders, passes alternate between them, so
that a single request waits for one pass of a batch, and a batch for one of single requests.

So one client cannot hold up the others, however much it sends: within a lane, no client gets a
second order into the model before every waiting client got its first. An example with passes of
two orders, where client A sent a1 a2 a3, and then client B sent b1:

    next(2)  a1 b1     B sends b2     next(2)  a2 b2     next(2)  a3

Any error of a model's or a tokenizer's code, even SystemExit, ends only the current orders: it is
logged, they get status 500, and the thread continues. A cancelled order leaves the queue at once.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import islice, zip_longest
from typing import Any, Generic, TypeVar

from lastword.service.log import Log
from lastword.service.refusal import Refusal


@dataclass(eq=False, kw_only=True)
class Order:
    """Work that a request waits for.

    Attributes:
        client: The client, whose turn it takes.
        batch: True for the lane of batches.
        future: The result; if it is cancelled, the order leaves the queue.
        since: Time of its arrival, by the monotonic clock.
    """

    client: Hashable
    batch: bool
    future: "Future[Any]" = field(default_factory=Future)
    since: float = field(default_factory=time.monotonic)

    def give(self, result: Any) -> None:
        """Set the result, unless the request has left."""
        with suppress(InvalidStateError):
            self.future.set_result(result)

    def fail(self, error: Exception) -> None:
        """Set the error, unless the request has left."""
        with suppress(InvalidStateError):
            self.future.set_exception(error)


Entry = TypeVar("Entry", bound=Order)


class Queue(Generic[Entry]):
    """Waiting orders by lane and client."""

    def __init__(self) -> None:
        self._lanes: dict[bool, dict[Hashable, deque[Entry]]] = {False: {}, True: {}}
        self._single_had_turn = False

    def __iter__(self) -> Iterator[Entry]:
        """Yield all orders, lane by lane."""
        for lane in self._lanes.values():
            for entries in lane.values():
                yield from entries

    def __len__(self) -> int:
        """Count the orders."""
        return sum(1 for _ in self)

    def add(self, entry: Entry) -> None:
        """Add an order behind those of its client."""
        self._lanes[entry.batch].setdefault(entry.client, deque()).append(entry)

    def discard(self, entry: Entry) -> None:
        """Remove an order, if it is there."""
        lane = self._lanes[entry.batch]
        entries = lane.get(entry.client, deque())
        if entry in entries:
            entries.remove(entry)
            if not entries:
                del lane[entry.client]

    def next(self, most: int) -> list[Entry]:
        """Return the next orders, all of one lane, without removing them."""
        singles, batches = self._lanes[False], self._lanes[True]
        lane = batches if batches and (self._single_had_turn or not singles) else singles
        return [*islice(_rounds(lane), most)]

    def take(self, entries: Sequence[Entry]) -> None:
        """Remove the orders of one pass; their clients go to the end of the lane's next round."""
        for entry in entries:
            lane = self._lanes[entry.batch]
            self.discard(entry)
            if entry.client in lane:  # dicts keep their order, so this moves it to the end
                lane[entry.client] = lane.pop(entry.client)
            self._single_had_turn = not entry.batch


def _rounds(lane: dict[Hashable, deque[Entry]]) -> Iterator[Entry]:
    """Yield the first order of each client, then the second of each, and so on."""
    for orders in zip_longest(*lane.values()):
        yield from (order for order in orders if order is not None)


class Worker(Generic[Entry]):
    """A thread with its queue.

    Args:
        name: Name of the thread.
        run: Function that gives every order its result or its error.
        log: The log.
        most: Maximum number of orders per call of `run`.
        choose: Function that returns those of the next orders that go together.
    """

    def __init__(
        self,
        name: str,
        run: Callable[[list[Entry]], None],
        log: Log,
        *,
        most: int = 1,
        choose: Callable[[list[Entry]], list[Entry]] = list,
    ) -> None:
        self._run, self._log, self._most, self._choose = run, log, most, choose
        self._queue = Queue[Entry]()
        self._current: list[Entry] = []
        self._change = threading.Condition()
        self._closing = False
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        """True while the thread runs."""
        return self._thread.is_alive()

    @property
    def taking(self) -> bool:
        """True while orders are accepted."""
        return self.alive and not self._closing

    @property
    def waiting(self) -> int:
        """The number of orders in the queue."""
        with self._change:
            return len(self._queue)

    def oldest_seconds(self) -> float:
        """Return the age of the oldest unanswered order; 0 if there is none."""
        with self._change:
            since = [order.since for order in (*self._queue, *self._current)]
        return time.monotonic() - min(since) if since else 0.0

    def add(self, orders: Sequence[Entry]) -> None:
        """Queue orders.

        Raises:
            Refusal: The service is stopping, or the thread has ended.
        """
        with self._change:
            if self._closing:
                raise Refusal("draining", "the service is stopping; try another", retry_after=1)
            if not self.alive:
                raise Refusal("internal", "a thread of the service has ended: restart it")
            for order in orders:
                self._queue.add(order)
            self._change.notify()
        # An order that is answered by now calls back at once; `_discard` then finds nothing.
        for order in orders:
            order.future.add_done_callback(partial(self._discard, order))

    def close(self, patience_seconds: float) -> bool:
        """Finish the orders in the queue and end the thread; return True if it ended in time."""
        with self._change:
            self._closing = True
            self._change.notify()
        self._thread.join(patience_seconds)
        if self.alive:
            self.turn_away()
        return not self.alive

    def turn_away(self) -> None:
        """Accept no more orders, and refuse all that are not answered."""
        with self._change:
            self._closing = True
            orders = [*self._queue, *self._current]
        for order in orders:
            order.fail(Refusal("draining", "the service has stopped"))

    def _discard(self, order: Entry, _: "Future[Any]") -> None:
        with self._change:
            self._queue.discard(order)

    def _work(self) -> None:
        while orders := self._next():
            try:
                self._run(orders)
            except BaseException as error:  # other code may raise SystemExit
                self._log.failure(error, at=threading.current_thread().name)
                for order in orders:
                    order.fail(Refusal.of(error))
            with self._change:
                self._current = []

    def _next(self) -> list[Entry]:
        """Wait for orders, and return those of the next pass; [] when the thread has to end."""
        with self._change:
            while not len(self._queue) and not self._closing:
                self._change.wait()
            orders = self._queue.next(self._most)
        # Without the lock, because planning takes time. Only this thread removes orders for a pass,
        # and one that is cancelled meanwhile is only computed in vain.
        try:
            chosen = self._choose(orders) if orders else []
        except Exception as error:
            self._log.failure(error, at="plan", items=len(orders))
            chosen = orders[:1]
        with self._change:
            self._queue.take(chosen)
            self._current = chosen
        return chosen


@dataclass(eq=False, kw_only=True)
class ReadJob(Order):
    """A function that tokenises text."""

    work: Callable[[], Any]


def run_jobs(jobs: Sequence[ReadJob]) -> None:
    """Call the functions of jobs, and give each its result or its error."""
    for job in jobs:
        if job.future.set_running_or_notify_cancel():
            try:
                job.give(job.work())
            except Exception as error:
                job.fail(error)
