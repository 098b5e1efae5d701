"""A queue of two lanes, as a value: no lock and no thread is in it.

The rule: single requests go before batches, clients of a lane take turns, and the orders of one
client go first come, first served. A batch gives way after each pass: where both lanes wait, passes
alternate, so that a single request waits for one pass of a batch and a batch for one of singles.

What that guarantees, however much one client sends: while both lanes wait, no two passes in a row
are of one lane; and within a lane nobody gets a second entry into the model before everyone who
waited beside him got a first. With A's a1 a2 a3 in the queue and then B's b1, and passes of two:

    next(2)  a1 b1     then, b2 having come,     next(2)  a2 b2     and a3 after it
"""

import time
from collections import deque
from collections.abc import Hashable, Iterator, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Generic, TypeVar


@dataclass(eq=False, kw_only=True)
class Order:
    """An order that somebody waits for."""

    client: Hashable  # whose turn it takes
    batch: bool  # in the lane of batches
    future: "Future[Any]" = field(default_factory=Future)  # cancelled, it is out of the queue
    since: float = field(default_factory=time.monotonic)

    def give(self, result: Any) -> None:
        """Give the result to whoever still waits."""
        with suppress(InvalidStateError):
            self.future.set_result(result)

    def fail(self, error: Exception) -> None:
        """Say that there is no result, and why."""
        with suppress(InvalidStateError):
            self.future.set_exception(error)


Entry = TypeVar("Entry", bound=Order)


class Queue(Generic[Entry]):
    """Waiting orders by lane and client."""

    def __init__(self) -> None:
        self._lanes: dict[bool, dict[Hashable, deque[Entry]]] = {False: {}, True: {}}
        self._single_had_turn = False

    def __iter__(self) -> Iterator[Entry]:
        """Give all that waits, in no order that matters."""
        for lane in self._lanes.values():
            for entries in lane.values():
                yield from entries

    def __len__(self) -> int:
        """Count what waits."""
        return sum(1 for _ in self)

    def add(self, entry: Entry) -> None:
        """Put an entry behind those of its client."""
        self._lanes[entry.batch].setdefault(entry.client, deque()).append(entry)

    def discard(self, entry: Entry) -> None:
        """Take an entry out, if it is there."""
        lane = self._lanes[entry.batch]
        entries = lane.get(entry.client, deque())
        if entry in entries:
            entries.remove(entry)
            if not entries:
                del lane[entry.client]

    def next(self, most: int) -> list[Entry]:
        """Return those of one lane whose turn it is, the first first; they stay."""
        singles, batches = self._lanes[False], self._lanes[True]
        lane = batches if batches and (self._single_had_turn or not singles) else singles
        return [*islice(_rounds(lane), most)]

    def take(self, entries: Sequence[Entry]) -> None:
        """Let the entries of one pass go; their clients are last in their lane's next round."""
        for entry in entries:
            lane = self._lanes[entry.batch]
            self.discard(entry)
            if entry.client in lane:
                lane[entry.client] = lane.pop(entry.client)
            self._single_had_turn = not entry.batch


def _rounds(lane: dict[Hashable, deque[Entry]]) -> Iterator[Entry]:
    """Give one entry of each client, then the second of each, and so on."""
    waiting = [iter(entries) for entries in lane.values()]
    while waiting:
        rest = []
        for entries in waiting:
            if (entry := next(entries, None)) is not None:
                yield entry
                rest.append(entries)
        waiting = rest
