"""Passes of the model: what is decided together, within a budget of tokens and of targets."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch

from lastword.decide.batch import Scope
from lastword.decide.tracer import Tracer
from lastword.errors import TraceError
from lastword.records.decision import Decision
from lastword.service.log import Log
from lastword.service.metrics import Metrics
from lastword.service.refusal import Refusal
from lastword.service.worker import Job, Order, work_off
from lastword.text.tokens import Encoded

# Tokens of options in a pass: the readout holds a row of the head for each, and others wait for it.
TARGETS = 512


@dataclass(eq=False, kw_only=True)
class Question(Order):
    """An item that waits for the model, as tokens, and what is read of it."""

    encoded: Encoded
    scope: Scope

    @property
    def targets(self) -> int:
        """Count the tokens that the readout holds a row for, each prompt's by itself."""
        return sum(self.encoded.candidate_tokens) * (1 + (self.scope.blind == "all"))


class Passes:
    """Decides what is in hand."""

    def __init__(self, tracer: Tracer, metrics: Metrics, log: Log) -> None:
        self._tracer, self._metrics, self._log = tracer, metrics, log

    def choose(self, orders: Sequence[Question | Job]) -> list[Question | Job]:
        """Return the first order and those that share its pass by the tracer's plan."""
        first = orders[0]
        if isinstance(first, Job):  # a probe reads by itself
            return [first]
        questions = [order for order in orders if isinstance(order, Question)]
        alike = [order for order in questions if order.scope == first.scope]
        counts = accumulate(order.targets for order in alike)
        few = sum(count <= TARGETS for count in counts)
        alike = alike[: max(few, 1)]
        groups = self._tracer.plan([order.encoded for order in alike])
        (group,) = (group for group in groups if 0 in group)
        return [alike[i] for i in sorted(group)]

    def run(self, together: Sequence[Question | Job]) -> None:
        """Decide orders together; where that fails each alone, so that one fails no other."""
        work_off([order for order in together if isinstance(order, Job)])
        orders = [order for order in together if isinstance(order, Question)]
        if len(orders) > 1:
            try:
                self._decide(orders)
                return
            except Exception as error:
                self._log.event("apart", items=len(orders), error=type(error).__name__)
        # Not inside `except`: the failed pass would keep its memory, which may be what was lacking.
        for order in orders:
            try:
                if not order.future.done():
                    self._decide([order])
            except Exception as error:
                order.fail(self._told(error))

    def _decide(self, orders: Sequence[Question]) -> None:
        start = time.perf_counter()
        encoded = [order.encoded for order in orders]
        decisions: list[Decision] = self._tracer.decide_group(encoded, orders[0].scope)
        self._metrics.batch_items.observe(len(orders))
        self._metrics.batch_seconds.observe(time.perf_counter() - start)
        for order, decision in zip(orders, decisions, strict=True):
            self._metrics.decided(decision)
            order.give(decision)

    def _told(self, error: Exception) -> Exception:
        """Return what a client is told; what is no refusal is logged in full and told in short."""
        if isinstance(error, TraceError):
            return error
        self._log.failure(error, at="item")
        if _is_memory(error):
            what = "it takes more memory than is free; shorten it, or give fewer candidates"
            return Refusal("model", what)
        return Refusal.of(error)


def _is_memory(error: Exception) -> bool:
    """True if memory was lacking; torch's allocator on the CPU has no class for it."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and "not enough memory" in str(error)
