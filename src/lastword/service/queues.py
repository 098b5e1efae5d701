"""Queues: the orders of one model from their arrival until they have had it; no thread is here."""

import math
from collections import deque
from collections.abc import Mapping, Sequence

from lastword.service.orders import ALONE, ASK, BATCH, Kind, Order
from lastword.service.refusal import Refusal
from lastword.service.turns import Lane, Turns

_SMOOTHING = 0.1  # weight of the latest order in the mean seconds of one


class Queues:
    """Bounded queues; who calls holds the lock.

    Args:
        places: Most orders of each lane that wait; batches share those of theirs.
        together: Most orders that are read, or planned, at a time.

    Attributes:
        reading: Orders that are being turned into tokens.
        items: Those that have their tokens and wait for the model.
        asks: Questions; the first is being answered.
        in_hand: What the model has.
    """

    def __init__(self, places: Mapping[Lane, int], together: int) -> None:
        self._places, self._together = places, together
        self._arrivals: deque[Order] = deque()
        self.reading: list[Order] = []
        self.items: deque[Order] = deque()
        self.asks: deque[Order] = deque()
        self.in_hand: list[Order] = []
        self._turns = Turns.of(ALONE, BATCH, ASK)
        self._mean: dict[Kind, float] = {"item": 0.0, "ask": 0.0}  # seconds of one order

    def waiting(self, kind: Kind | None = None) -> list[Order]:
        """Whatever waits, or what of a kind does."""
        every = (*self._arrivals, *self.reading, *self.items, *self.asks)
        return [order for order in every if kind in (None, order.kind)]

    def add(self, order: Order) -> None:
        """Queue an order.

        Raises:
            Refusal: Its lane is full, or what its batch may have of it.
        """
        if not self._has_place(order):
            for queue in (self._arrivals, self.items):
                live = [other for other in queue if not other.future.done()]
                queue.clear()
                queue.extend(live)
        if not self._has_place(order):
            count, what = self._places[order.lane], "items" if order.kind == "item" else "questions"
            raise Refusal(
                "queue_full",
                f"{count} {what} wait already; try again later",
                retry_after=max(1, math.ceil(count * self._mean[order.kind])),
            )
        self._arrivals.append(order)

    def _has_place(self, order: Order) -> bool:
        """Whether its lane has room; a batch leaves as much as it has for one that comes."""
        places, waiting = self._places[order.lane], self.waiting(order.kind)
        lane = [other.batch for other in waiting if other.lane == order.lane]
        if len(lane) >= places or order.batch is None:
            return len(lane) < places
        share = places // (len({*lane, order.batch}) + 1)
        return lane.count(order.batch) < max(1, share)

    def read(self) -> list[Order]:
        """The oldest arrivals, which are read from now on; none where nothing has come."""
        count = min(len(self._arrivals), self._together)
        self.reading = [self._arrivals.popleft() for _ in range(count)]
        return self.reading

    def sort(self) -> None:
        """Let what has been read wait for the model, but for what has its answer already."""
        for order in self.reading:
            if not order.future.done():
                (self.items if order.kind == "item" else self.asks).append(order)
        self.reading = []

    def turn(self, now: float) -> list[Order]:
        """The question, or the items of one plan, whose turn it is: first the one it is for.

        Args:
            now: The time, by `time.monotonic`; items that are late are told so and go.
        """
        self.items = deque(order for order in self.items if order.is_open(now))
        lanes = {order.lane for order in self.items} | ({ASK} if self.asks else set())
        if not lanes:
            return []
        lane, self._turns = self._turns.next(lanes)
        if lane == ASK:
            return [self.asks[0]]
        return sorted(self.items, key=lambda order: order.lane != lane)[: self._together]

    def start(self, group: Sequence[Order]) -> None:
        """Let the model have orders: items leave their queue, a question stays until its end."""
        self.items = deque(order for order in self.items if order not in group)
        self.in_hand = [*group]

    def end(self, turn: Order, seconds: float) -> None:
        """Account for the time of what was in hand; what has its answer leaves.

        Args:
            turn: Whose turn it was.
            seconds: How long the model had it, with its company.
        """
        self._turns = self._turns.after(turn.lane, seconds)
        for order in self.in_hand:
            order.seconds += seconds / len(self.in_hand)
            if order.future.done():
                mean = self._mean[order.kind] or order.seconds
                self._mean[order.kind] = mean + _SMOOTHING * (order.seconds - mean)
        self.in_hand = []
        if turn.lane == ASK and turn.future.done():
            self.asks.popleft()
