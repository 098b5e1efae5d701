"""The queue before the model: two lanes, in which clients take turns.

Single requests go before batches, the clients of a lane take turns, and the orders of one client
are served in the order of arrival. If both lanes have orders, passes alternate between them, so
that a single request waits for one pass of a batch, and a batch for one of single requests.

So one client cannot hold up the others, however much it sends: within a lane, no client gets a
second order into the model before every waiting client got its first. An example with passes of
two orders, where client A sent a1 a2 a3, and then client B sent b1:

    next(2)  a1 b1     B sends b2     next(2)  a2 b2     next(2)  a3

Only the event loop's thread touches the queue. A cancelled order leaves it at once.
"""

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice, zip_longest
from typing import Any, Generic, TypeVar


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
    batch: bool = False
    future: "asyncio.Future[Any]" = field(default_factory=asyncio.Future)
    since: float = field(default_factory=time.monotonic)


Entry = TypeVar("Entry", bound=Order)


class Queue(Generic[Entry]):
    """Waiting orders by lane and client."""

    def __init__(self) -> None:
        self._lanes: dict[bool, dict[Hashable, deque[Entry]]] = {False: {}, True: {}}
        self._single_had_turn = False

    def __iter__(self) -> Iterator[Entry]:
        """Yield all orders, lane by lane."""
        for lane in self._lanes.values():
            for entries in [*lane.values()]:
                yield from [*entries]

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


class Line(Generic[Entry]):
    """A queue with the task that empties it, pass by pass.

    Args:
        choose: Function that returns those of the next orders that go together.
        run: Function that returns the result or the error of each order. An order that has none
            yet waits for its next turn, so a pass may end before its orders are done.
        most: Maximum number of orders per pass.
    """

    def __init__(
        self,
        choose: Callable[[list[Entry]], Awaitable[list[Entry]]],
        run: Callable[[list[Entry]], Awaitable[Mapping[Entry, Any]]],
        most: int,
    ) -> None:
        self._choose, self._run, self._most = choose, run, most
        self._queue, self._current = Queue[Entry](), list[Entry]()
        self._work = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @property
    def alive(self) -> bool:
        """True until the task ends, which only a defect or `close` causes."""
        return self._task is None or not self._task.done()

    @property
    def busy(self) -> bool:
        """True while a pass runs."""
        return bool(self._current)

    @property
    def waiting(self) -> int:
        """The number of orders in the queue."""
        return len(self._queue)

    def oldest_seconds(self) -> float:
        """Return the age of the oldest unanswered order; 0 if there is none."""
        since = [order.since for order in (*self._queue, *self._current)]
        return time.monotonic() - min(since) if since else 0.0

    def add(self, orders: Sequence[Entry]) -> None:
        """Queue orders."""
        if self._task is None:
            self._task = asyncio.ensure_future(self._serve())
        for order in orders:
            self._queue.add(order)
            order.future.add_done_callback(partial(self._discard, order))
        self._work.set()

    async def results(self, orders: Sequence[Entry]) -> list[Any]:
        """Queue orders and return their results or errors; remove them if the caller ends."""
        self.add(orders)
        return await asyncio.gather(*(order.future for order in orders), return_exceptions=True)

    def close(self) -> None:
        """End the task."""
        if self._task is not None:
            self._task.cancel()

    def _discard(self, order: Entry, _: "asyncio.Future[Any]") -> None:
        self._queue.discard(order)

    async def _serve(self) -> None:
        while await self._work.wait():
            if not (orders := self._queue.next(self._most)):
                self._work.clear()
                continue
            chosen = await self._choose(orders)
            self._queue.take(chosen)
            self._current = [order for order in chosen if not order.future.done()]
            results = await self._run(self._current) if self._current else {}
            for order in self._current:
                if order.future.done():  # its request has ended
                    continue
                if order in results:
                    _settle(order.future, results[order])
                else:
                    self._queue.add(order)
            self._current = []


def _settle(future: "asyncio.Future[Any]", result: Any) -> None:
    if isinstance(result, Exception):
        future.set_exception(result)
    else:
        future.set_result(result)
