"""Queues: the orders of one model from their arrival until they have had it; no thread is here."""

import math
from collections import deque
from collections.abc import Mapping, Sequence

from lastword.service.orders import ALONE, ASK, BATCH, Kind, Order
from lastword.service.refusal import Refusal
from lastword.service.turns import Lane, Turns

_SMOOTHING = 0.1  # weight of the latest order in the mean seconds of one, and of a pass in its pace
_PASS_TOKENS = 256  # that a pass costs beside its own
_BESIDE = 2  # items of batches in a pass while others come alone, who wait until it is over
_LATELY_SECONDS = 2.0  # since one came alone
_REST = 3.0  # of batches then, at least: times as long as their pass
_ALONE = 2.0  # batches that one who comes alone counts as
_PATIENCE = 0.5  # of its deadline that an item of a batch is queued for
_READ_CHARACTERS = 2**18  # read at a time, but for a single long order


class Queues:
    """Bounded queues; who calls holds the lock.

    Args:
        places: Most orders of each lane that wait; batches share those of theirs.
        together: Most orders that are read, or planned, at a time.
        characters: Most of the long orders of a lane that wait; one is long where its share of
            these, by the lane's places, is not enough for it.

    Attributes:
        reading: Orders that are being turned into tokens: slow ones, and the others.
        items: Those that have their tokens and wait for the model.
        asks: Questions; the first is being answered.
        in_hand: What the model has.
    """

    def __init__(self, places: Mapping[Lane, int], together: int, characters: int) -> None:
        self._places, self._together, self._characters = places, together, characters
        self._arrivals: deque[Order] = deque()
        self.reading: dict[bool, list[Order]] = {False: [], True: []}
        self.items: deque[Order] = deque()
        self.asks: deque[Order] = deque()
        self.in_hand: list[Order] = []
        self._turns = Turns.of(ALONE, BATCH, ASK)
        self._mean: dict[Kind, float] = {"item": 0.0, "ask": 0.0}  # seconds of one order
        self._alone = -math.inf  # when the last came alone
        self._is_mixed = False  # whether others came alone lately
        self._begun = -math.inf  # when the turn began
        self._last = -math.inf, 0.0  # when a batch's last pass began beside others; its seconds
        self._pace: dict[Kind, float] = {"item": 0.0, "ask": 0.0}  # seconds of one token

    def waiting(self, kind: Kind | None = None) -> list[Order]:
        """Whatever waits, or what of a kind does."""
        reading = (*self.reading[False], *self.reading[True])
        every = (*self._arrivals, *reading, *self.items, *self.asks)
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
        if order.lane == ALONE:
            self._alone = order.since

    def _has_place(self, order: Order) -> bool:
        """Whether its lane has room; a batch leaves as much as it has for one that comes."""
        places = self._places[order.lane]
        lane = [other for other in self.waiting(order.kind) if other.lane == order.lane]
        if len(lane) >= places or not self._has_characters(order, lane):
            return False
        if order.batch is None:
            return True
        own = sum(other.batch == order.batch for other in lane)
        if own and self._wait(order) > _PATIENCE * (order.future.deadline - order.since):
            return False
        share = places // (len({order.batch, *(other.batch for other in lane)}) + 1)
        return own < max(1, share)

    def _has_characters(self, order: Order, lane: Sequence[Order]) -> bool:
        """Whether an order is short, or the long ones of its lane leave it room."""
        short = self._characters // self._places[order.lane]
        if order.characters <= short:
            return True
        long = [n for n in (other.characters for other in lane) if n > short]
        return not long or sum(long) + order.characters <= self._characters

    def read(self, *, slow: bool) -> list[Order]:
        """The oldest arrivals, which are read from now on; none where none of the kind has come."""
        reading, size = self.reading[slow], 0
        for order in self._arrivals:
            if order.is_slow != slow:
                continue
            size += order.characters
            if reading and (size > _READ_CHARACTERS or len(reading) == self._together):
                break
            reading.append(order)
        self._arrivals = deque(order for order in self._arrivals if order not in reading)
        return reading

    def sort(self, now: float, *, slow: bool) -> None:
        """Let what has been read wait for the model, but for what has its answer already.

        Args:
            slow: Whose reading is over.
            now: The time, by `time.monotonic`; what cannot have its answer by its deadline is told.
        """
        for order in self.reading[slow]:
            late = now + self._wait(order) - order.future.deadline
            if late > 0 and order.batch is None:
                what = "those that wait take longer than the deadline leaves; try again later"
                order.fail(Refusal("queue_full", what, retry_after=max(1, math.ceil(late))))
            if not order.future.done():
                (self.items if order.kind == "item" else self.asks).append(order)
        self.reading[slow] = []

    def _wait(self, order: Order) -> float:
        """Seconds until an order that is read now has its answer, at the pace of those before.

        Lanes in which others wait have their turns between.
        """
        before = [o for o in (*self.items, *self.asks) if o.lane == order.lane]
        lanes = {o.lane for o in self.items} | ({ASK} if self.asks else set()) | {order.lane}
        share, more = 1.0 + (len({lane[0] for lane in lanes}) > 1), 0.0
        if {ALONE, BATCH} <= lanes:
            rest = self._rest()
            share *= 1 + (1 / rest if order.lane == ALONE else rest)
            more = _PASS_TOKENS / _BESIDE if order.lane == BATCH else 0.0
        return share * self._pace[order.kind] * sum(o.tokens + more for o in (*before, order))

    def _rest(self) -> float:
        """How long batches rest while others come alone: times as long as their pass.

        The model is shared by clients, of whom a batch is half a one, who can wait; those who come
        alone have three quarters at least.
        """
        batches = {order.batch for order in self.items if order.batch is not None}
        alone = sum(order.batch is None for order in self.items)
        return max(_REST, _ALONE * alone / max(1, len(batches)))

    def rest(self, now: float) -> float:
        """Seconds that batches leave to those who come alone, from a time of `time.monotonic`.

        While one of these waits, that is what they are due since the batches' last pass; else no
        longer than that after the last of them came, for the model has nothing to do.
        """
        lanes = {order.lane for order in self.items}
        if BATCH not in lanes:
            return 0.0
        begun, seconds = self._last
        long = (1 + self._rest()) * seconds
        latest = math.inf if ALONE in lanes else self._alone + min(long, _LATELY_SECONDS)
        return max(0.0, min(begun + long, latest) - now)

    def turn(self, now: float) -> list[Order]:
        """The question, or the items of one plan, whose turn it is: first the one it is for.

        Items that came alone share no pass with those of batches, which would make it longer; a
        pass of these takes both, and is short while others come alone.

        Args:
            now: The time, by `time.monotonic`; items that are late are told so and go.
        """
        self.items = deque(order for order in self.items if order.is_open(now))
        lanes = {order.lane for order in self.items} | ({ASK} if self.asks else set())
        if self.rest(now):
            lanes -= {BATCH}
        if not lanes:
            return []
        lane, self._turns = self._turns.next(lanes)
        self._begun, self._is_mixed = now, now - self._alone < _LATELY_SECONDS
        if lane == ASK:
            return [self.asks[0]]
        fitting = [order for order in self.items if lane == BATCH or order.lane == lane]
        most = self._together
        if lane == BATCH and self._is_mixed:
            most = min(most, _BESIDE)
        return sorted(fitting, key=lambda order: order.lane != lane)[:most]

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
        if turn.lane == BATCH:
            self._last = self._begun, seconds if self._is_mixed else 0.0
        if turn.kind == "item" and self.in_hand:
            tokens = _PASS_TOKENS + sum(order.tokens for order in self.in_hand)
            self._set_pace("item", seconds / tokens)
        for order in self.in_hand:
            order.seconds += seconds / len(self.in_hand)
            if order.future.done():
                mean = self._mean[order.kind] or order.seconds
                self._mean[order.kind] = mean + _SMOOTHING * (order.seconds - mean)
                if order.kind == "ask":
                    self._set_pace("ask", order.seconds / max(1, order.tokens))
        self.in_hand = []
        if turn.lane == ASK and turn.future.done():
            self.asks.popleft()

    def _set_pace(self, kind: Kind, pace: float) -> None:
        before = self._pace[kind] or pace
        self._pace[kind] = before + _SMOOTHING * (pace - before)
