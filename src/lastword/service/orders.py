"""Orders: what waits for the model, with who waits for it and who hears of its stages."""

import time
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

from lastword.batch import Read
from lastword.model.phases import Watcher
from lastword.service.refusal import Refusal
from lastword.service.turns import Lane
from lastword.text.items import Item
from lastword.text.tokens import Encoded

# Yields the tokens that it keeps in the model at most: first before it takes any, then every step.
Steps = Generator[int, None, Any]
Kind = Literal["item", "ask"]
_LONG = 2**15  # characters that take a tokenizer a tenth of a second
ALONE: Lane = ("item", "alone")
BATCH: Lane = ("item", "batch")
ASK: Lane = ("ask",)
# Takes a stage of an order, its begin and end in nanoseconds since the epoch, and of how many
# orders it was the stage.
Teller = Callable[[str, int, int, int], None]


def silent(stage: str, begin: int, end: int, orders: int) -> None:
    """Hear of a stage, and tell nobody."""


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
        batch: Number of the batch that it is one of; None where it came alone.
        seconds: Time of the model that it has had.
        tokens: What the model reads of it at most, once that has been counted.
        tell: Who hears of its stages.
        arrived: When it came, in nanoseconds since the epoch; 0 once its wait has been told.
        since: When it came, by `time.monotonic`.
    """

    work: Item | Steps
    read: Read
    future: Promise
    batch: int | None = None
    seconds: float = 0.0
    tokens: int = 0
    tell: Teller = silent
    arrived: int = field(default_factory=time.time_ns)
    since: float = field(default_factory=time.monotonic)

    @property
    def kind(self) -> Kind:
        """What it is."""
        return "item" if isinstance(self.work, Item) else "ask"

    @cached_property
    def characters(self) -> int:
        """What is read of its text: of an item the prompt once for each candidate."""
        return characters(self.work) if isinstance(self.work, Item) else 0

    @property
    def is_slow(self) -> bool:
        """Whether nobody waits until it has been read: it is long, or a template writes it."""
        conversation = isinstance(self.work, Item) and self.work.messages is not None
        return conversation or self.characters > _LONG

    @property
    def lane(self) -> Lane:
        """The class of work that it waits in."""
        if self.kind == "ask":
            return ASK
        return ALONE if self.batch is None else BATCH

    def is_open(self, now: float) -> bool:
        """Whether somebody still waits at a time of `time.monotonic`; who is late is told so."""
        if now > self.future.deadline:
            self.fail(Refusal("deadline", "no answer within the deadline"))
        return not self.future.done()

    def give(self, result: Any) -> None:
        """Give the answer to whoever still waits."""
        with suppress(InvalidStateError):
            self.future.set_result(result)

    def fail(self, error: Exception) -> None:
        """Say that there is no answer, and why."""
        with suppress(InvalidStateError):
            self.future.set_exception(error)


def characters(item: Item) -> int:
    """What is read of an item: prompts once for each candidate, and the candidates."""
    free = sum(len(prompt) for prompt in item.content_free)
    before = len(item.prompt) + len(item.separator) + free
    return sum(before + len(candidate) for candidate in item.candidates)


def watcher(orders: Sequence[Order]) -> Watcher:
    """What tells orders of the phases of a pass that they share."""

    def tell(stage: str, begin: int, end: int) -> None:
        for order in orders:
            order.tell(stage, begin, end, len(orders))

    return tell


@contextmanager
def stage(orders: Sequence[Order], name: str) -> Iterator[None]:
    """Tell orders of a stage that they share, once it is over."""
    begin = time.time_ns()
    yield
    watcher(orders)(name, begin, time.time_ns())


def tell_waits(orders: Sequence[Order]) -> None:
    """Tell orders that the model takes for the first time how long they have waited."""
    now = time.time_ns()
    for order in orders:
        if order.arrived:
            order.tell("queue", order.arrived, now, 1)
            order.arrived = 0
