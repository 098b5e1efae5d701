"""Threads that work on a queue: one tokenises text, one runs the model.

Any error of a model's or a tokenizer's code, even SystemExit, ends only the current orders: it is
logged, they get status 500, and the thread continues. A cancelled order leaves the queue at once.
"""

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic

from lastword.service.log import Log
from lastword.service.queue import Entry, Order, Queue
from lastword.service.refusal import Refusal


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


def work_off(jobs: Sequence[ReadJob]) -> None:
    """Call the functions of jobs, and give each its result or its error."""
    for job in jobs:
        if job.future.set_running_or_notify_cancel():
            try:
                job.give(job.work())
            except Exception as error:
                job.fail(error)
