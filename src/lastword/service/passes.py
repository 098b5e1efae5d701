"""Passes of the model: items that are computed together, or one step of a question."""

import time
from collections.abc import Iterable, Sequence

import torch

from lastword.batch import Scope
from lastword.errors import TraceError
from lastword.model.phases import watched
from lastword.service.log import Log
from lastword.service.metrics import Metrics
from lastword.service.orders import Order, watcher
from lastword.service.refusal import Refusal
from lastword.text.items import Item
from lastword.text.tokens import Encoded
from lastword.tracer import Tracer


class Passes:
    """Computes what is in hand.

    Args:
        tracer: The model's tracer.
        metrics: What is counted.
        log: Where defects are told.
    """

    def __init__(self, tracer: Tracer, metrics: Metrics, log: Log) -> None:
        self._tracer, self._metrics, self._log = tracer, metrics, log

    def group(self, orders: Sequence[Order]) -> list[Order]:
        """The orders that share a pass with the first, by the tracer's plan."""
        if orders[0].kind == "ask":
            return [*orders]
        alike = [order for order in orders if order.read == orders[0].read]
        return next((group for group in self._plan(alike) if orders[0] in group), [])

    def run(self, group: Sequence[Order]) -> None:
        """Compute a group, and tell each of its orders what came out."""
        if group[0].kind == "ask":
            self._step(group[0])
        else:
            self._decide(group)

    def _plan(self, orders: Sequence[Order]) -> Iterable[list[Order]]:
        try:
            groups = self._tracer.plan(_encoded(orders))
        except Exception as error:
            self._log.failure(error, at="plan", items=len(orders))
            return [[order] for order in orders]
        return [[orders[i] for i in group] for group in groups]

    def _step(self, order: Order) -> None:
        """Take one step of a question, while somebody waits for it."""
        assert not isinstance(order.work, Item)
        if not order.is_open(time.monotonic()):
            order.work.close()
            return
        try:
            with watched(watcher([order])):
                next(order.work)
        except StopIteration as end:
            order.give(end.value)
        except Exception as error:
            fail(order, error, self._log)

    def _decide(self, group: Sequence[Order]) -> None:
        start = time.perf_counter()
        try:
            with watched(watcher(group)):
                decisions = self._tracer.decide_group(_encoded(group), Scope(group[0].read))
        except Exception as error:
            if len(group) == 1:
                fail(group[0], error, self._log)
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
        for order in group:
            if order.is_open(time.monotonic()):
                self._decide([order])


def fail(order: Order, error: Exception, log: Log) -> None:
    """Tell an order of an error; what is no refusal is logged in full and told in short."""
    if _is_memory(error):
        log.failure(error, at=order.kind)
        what = "it takes more memory than is free; shorten it, or give fewer candidates"
        error = Refusal("model", what)
    elif not isinstance(error, TraceError):
        log.failure(error, at=order.kind)
        error = Refusal.of(error)
    order.fail(error)


def _encoded(orders: Sequence[Order]) -> list[Encoded]:
    encoded = [order.future.encoded for order in orders]
    return [e for e in encoded if e is not None]


def _is_memory(error: Exception) -> bool:
    """Whether memory was lacking; torch's allocator on the CPU has no class for it."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and "not enough memory" in str(error)
