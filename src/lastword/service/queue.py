"""The queue before the model: two lanes, in which clients take turns.

Single requests go before batches, the clients of a lane take turns, and the orders of one client
are served in the order of arrival. If both lanes have orders, passes alternate between them, so
that a single request waits for one pass of a batch, and a batch for one of single requests.

So one client cannot hold up the others, however much it sends: within a lane, no client gets a
second order into the model before every waiting client got its first.

Only the event loop's thread touches the queue. A cancelled order leaves it at once.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from functools import partial
from itertools import islice, zip_longest
from typing import Any

from lastword.decide.answerers import Query, States, new_tokens
from lastword.decide.batch import Scope
from lastword.decide.states import LongText
from lastword.errors import TraceError
from lastword.text.tokens import EncodedItem


@dataclass(eq=False, kw_only=True)
class Order:
    """An item, or works, that a request wants from the model.

    Attributes:
        batch: True for the lane of batches.
        encoded: The tokens of the item; None if probes answer the works.
        works: The work of one question, or of those that probes answer; () for a bare item.
        texts: Its texts that are read in chunks; None before its first turn.
        states: The states of its works, if they decide whether the model reads a long prompt.
        future: The result, from `Line.results` on; if it is cancelled, the order leaves the queue.
    """

    client: Hashable
    batch: bool = False
    encoded: EncodedItem | None = None
    scope: Scope | None = None
    works: tuple[Query, ...] = ()
    texts: list[LongText] | None = None
    states: States | None = None
    since: float = field(default_factory=time.monotonic)
    future: "asyncio.Future[Any]" = field(init=False)

    @property
    def kind(self) -> tuple[bool, Scope | None]:
        """The part of an order that all orders of one pass share."""
        return not self.works, self.scope

    @property
    def cost(self) -> int:
        """The number of tokens for a probe, or of rows that the readout holds for an item."""
        if self.encoded is None or self.scope is None:
            return sum(new_tokens(self.works))
        return sum(self.encoded.prompt.candidate_tokens) * (1 + (self.scope.blind == "all"))


class Queue:
    """Waiting orders by lane and client."""

    def __init__(self) -> None:
        self._lanes: dict[bool, dict[Hashable, deque[Order]]] = {False: {}, True: {}}
        self._single_had_turn = False

    def __iter__(self) -> Iterator[Order]:
        """Yield all orders, lane by lane."""
        return iter([o for lane in self._lanes.values() for each in lane.values() for o in each])

    def __len__(self) -> int:
        """Count the orders."""
        return sum(1 for _ in self)

    def add(self, order: Order) -> None:
        """Add an order behind those of its client."""
        self._lanes[order.batch].setdefault(order.client, deque()).append(order)

    def discard(self, order: Order) -> None:
        """Remove an order, if it is there."""
        lane = self._lanes[order.batch]
        orders = lane.get(order.client, deque())
        if order in orders:
            orders.remove(order)
            if not orders:
                del lane[order.client]

    def next(self, most: int) -> list[Order]:
        """Return the next orders, all of one lane, without removing them."""
        singles, batches = self._lanes[False], self._lanes[True]
        lane = batches if batches and (self._single_had_turn or not singles) else singles
        self._single_had_turn = lane is singles
        # The first order of each client, then the second of each, and so on.
        turns = (order for turn in zip_longest(*lane.values()) for order in turn if order)
        return [*islice(turns, most)]

    def take(self, orders: Sequence[Order]) -> None:
        """Remove the orders of one pass; their clients go to the end of the lane's next round."""
        for order in orders:
            lane = self._lanes[order.batch]
            self.discard(order)
            if order.client in lane:  # dicts keep their order, so this moves it to the end
                lane[order.client] = lane.pop(order.client)


class Line:
    """A queue with the task that empties it, pass by pass of at most `most` orders.

    In the thread, `choose` returns those of the next orders that go together, and `run` their
    results. An order that has none yet waits for its next turn. `current` are those of a pass.
    """

    def __init__(
        self,
        choose: Callable[[list[Order]], list[Order]],
        run: Callable[[list[Order]], Mapping[Order, Any]],
        thread: Executor,
        most: int,
    ) -> None:
        self._choose, self._run, self._thread, self._most = choose, run, thread, most
        self._queue, self.current = Queue(), list[Order]()
        self._work = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @property
    def alive(self) -> bool:
        """True until the task ends, which only a defect or `close` causes."""
        return self._task is None or not self._task.done()

    @property
    def waiting(self) -> int:
        """The number of orders in the queue."""
        return len(self._queue)

    def oldest_seconds(self) -> float:
        """Return the age of the oldest unanswered order; 0 if there is none."""
        since = [order.since for order in (*self._queue, *self.current)]
        return time.monotonic() - min(since) if since else 0.0

    async def results(self, orders: Sequence[Order | TraceError]) -> list[Any]:
        """Queue orders and return the result or the error of each, in the place of errors too.

        If the caller ends, its orders leave the queue.
        """
        waiting = [order for order in orders if isinstance(order, Order)]
        if self._task is None:
            self._task = asyncio.ensure_future(self._serve())
        for order in waiting:
            order.future = asyncio.Future()
            self._queue.add(order)
            order.future.add_done_callback(partial(self._discard, order))
        self._work.set()
        futures = (order.future for order in waiting)
        results = iter(await asyncio.gather(*futures, return_exceptions=True))
        return [next(results) if isinstance(order, Order) else order for order in orders]

    def close(self) -> None:
        """End the task."""
        if self._task is not None:
            self._task.cancel()

    def _discard(self, order: Order, _: "asyncio.Future[Any]") -> None:
        self._queue.discard(order)

    async def _serve(self) -> None:
        in_thread = partial(asyncio.get_running_loop().run_in_executor, self._thread)
        while await self._work.wait():
            if not (orders := self._queue.next(self._most)):
                self._work.clear()
                continue
            chosen = await in_thread(self._choose, orders)
            self._queue.take(chosen)
            self.current = [order for order in chosen if not order.future.done()]
            results = await in_thread(self._run, self.current) if self.current else {}
            for order in self.current:
                if order.future.done():  # its request has ended
                    continue
                if order not in results:
                    self._queue.add(order)
                elif isinstance(result := results[order], Exception):
                    order.future.set_exception(result)
                else:
                    order.future.set_result(result)
            self.current = []
