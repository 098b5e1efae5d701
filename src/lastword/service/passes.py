"""Passes of the model: orders that are answered together, within a budget of tokens."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch

from lastword.decide.answer import Answers
from lastword.decide.batch import Scope
from lastword.decide.decider import Decider
from lastword.decide.plan import Plan
from lastword.errors import TraceError
from lastword.records.decision import Decision
from lastword.service.log import Log
from lastword.service.metrics import Metrics
from lastword.service.queue import Order
from lastword.service.refusal import Refusal
from lastword.text.tokens import EncodedItem

# Tokens of options in a pass: the readout holds a row of the head for each, and others wait for it.
TARGETS = 512


@dataclass(eq=False, kw_only=True)
class ItemOrder(Order):
    """An item that waits for the model, as tokens, and how it is read."""

    encoded: EncodedItem
    scope: Scope

    @property
    def targets(self) -> int:
        """Return the number of tokens that the readout holds a row for."""
        return sum(self.encoded.prompt.candidate_tokens) * (1 + (self.scope.blind == "all"))


@dataclass(eq=False, kw_only=True)
class ProbeOrder(Order):
    """A plan whose questions probes answer."""

    plan: Plan


@dataclass(eq=False, kw_only=True)
class PlanOrder(ItemOrder):
    """A plan of one question that the model answers; its item is the order's."""

    plan: Plan


ModelOrder = ItemOrder | ProbeOrder


class Passes:
    """Runs the model for the orders in hand."""

    def __init__(self, decider: Decider, metrics: Metrics, log: Log) -> None:
        self._decider, self._metrics, self._log = decider, metrics, log

    def choose(self, orders: Sequence[ModelOrder]) -> list[ModelOrder]:
        """Return the first order and those that share its pass."""
        first = orders[0]
        if isinstance(first, ProbeOrder):
            probed = [order for order in orders if isinstance(order, ProbeOrder)]
            tokens = accumulate(order.plan.tokens for order in probed)
            few = sum(count <= self._decider.tracer.batch_tokens for count in tokens)
            return [*probed[: max(few, 1)]]
        items = [order for order in orders if isinstance(order, ItemOrder)]
        alike = [o for o in items if o.scope == first.scope and type(o) is type(first)]
        counts = accumulate(order.targets for order in alike)
        few = sum(count <= TARGETS for count in counts)
        alike = alike[: max(few, 1)]
        groups = self._decider.tracer.plan([order.encoded for order in alike])
        (group,) = (group for group in groups if 0 in group)
        return [alike[i] for i in sorted(group)]

    def run(self, orders: Sequence[ModelOrder]) -> None:
        """Answer orders together; if that fails each alone, so that one fails no other."""
        if len(orders) > 1:
            try:
                self._answer(orders)
                return
            except Exception as error:
                self._log.event("apart", items=len(orders), error=type(error).__name__)
        # Not inside `except`: the failed pass would keep its memory, which may be what was lacking.
        for order in orders:
            try:
                if not order.future.done():
                    self._answer([order])
            except Exception as error:
                order.fail(self._as_refusal(error))

    def _answer(self, orders: Sequence[ModelOrder]) -> None:
        start = time.perf_counter()
        plans = [order.plan for order in orders if isinstance(order, PlanOrder | ProbeOrder)]
        results: Sequence[Decision | Answers | TraceError]
        if plans:
            results = self._decider.answer(plans, on_error="return")
        else:
            items = [order for order in orders if isinstance(order, ItemOrder)]
            results = self._decider.decide_group([o.encoded for o in items], items[0].scope)
        if not isinstance(orders[0], ProbeOrder):
            self._metrics.batch_items.observe(len(orders))
            self._metrics.batch_seconds.observe(time.perf_counter() - start)
        for order, result in zip(orders, results, strict=True):
            if isinstance(result, TraceError):
                order.fail(result)
                continue
            answers = result.singles if isinstance(result, Answers) else []
            for decision in [answer.decision for answer in answers] or [result]:
                if isinstance(decision, Decision):
                    self._metrics.decided(decision)
            order.give(result)

    def _as_refusal(self, error: Exception) -> Exception:
        """Return what a client is told; what is no refusal is logged in full and told in short."""
        if isinstance(error, TraceError):
            return error
        self._log.failure(error, at="item")
        if _is_memory(error):
            what = "it takes more memory than is free; shorten it, or give fewer candidates"
            return Refusal("model", what)
        return Refusal.of(error)


def _is_memory(error: Exception) -> bool:
    """Return True for an out-of-memory error; on the CPU torch has no class for it."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and "not enough memory" in str(error)
