"""A queue of two lanes, without locks or threads.

Single requests go before batches, the clients of a lane take turns, and the orders of one client
are served in the order of arrival. If both lanes have orders, passes alternate between them, so
that a single request waits for one pass of a batch, and a batch for one of single requests.

So one client cannot hold up the others, however much it sends: within a lane, no client gets a
second order into the model before every waiting client got its first. An example with passes of
two orders, where client A sent a1 a2 a3, and then client B sent b1:

    next(2)  a1 b1     B sends b2     next(2)  a2 b2     next(2)  a3
"""

import time
from collections import deque
from collections.abc import Hashable, Iterator, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, field
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
