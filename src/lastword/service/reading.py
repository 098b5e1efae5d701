"""From text to tokens: what waits for the model is read first, and refused where it is too long."""

from collections.abc import Sequence

from lastword.service.log import Log
from lastword.service.orders import Order, Steps
from lastword.service.passes import fail
from lastword.service.refusal import Refusal
from lastword.text.items import Item
from lastword.text.tokens import Encoded
from lastword.tracer import Tracer


class Reader:
    """Turns orders into tokens.

    Args:
        tracer: The model's tracer.
        tokens: Most of one order.
        log: Where defects are told.
    """

    def __init__(self, tracer: Tracer, tokens: int, log: Log) -> None:
        self._tracer, self._tokens, self._log = tracer, tokens, log

    def read(self, orders: Sequence[Order]) -> None:
        """Give items their tokens and questions their first step; those that fail are told."""
        items = [order for order in orders if order.kind == "item"]
        for order, encoded in zip(items, self._encode(items), strict=True):
            if isinstance(encoded, Exception):
                fail(order, encoded, self._log)
            else:
                order.future.encoded = encoded
        for order in orders:
            if not isinstance(order.work, Item):
                self._admit(order, order.work)

    def _encode(self, orders: Sequence[Order]) -> list[Encoded | Exception]:
        """Tokens or errors; where all fail together each is tried alone."""
        items = [order.work for order in orders if isinstance(order.work, Item)]
        try:
            encoded = self._tracer.encode(items)
        except Exception as error:
            if len(orders) == 1:
                return [error]
        else:
            return [e if isinstance(e, Exception) else self._within_limit(e) for e in encoded]
        return [result for order in orders for result in self._encode([order])]

    def _within_limit(self, encoded: Encoded) -> Encoded | Refusal:
        tokens = encoded.prompt_tokens + sum(encoded.candidate_tokens)
        if tokens <= self._tokens:
            return encoded
        limit = f"the service takes {self._tokens} an item; shorten it"
        return Refusal("too_many_tokens", f"the item has {tokens} tokens, {limit}")

    def _admit(self, order: Order, steps: Steps) -> None:
        """Take a question's first step, which takes no model: whether it may have one."""
        try:
            tokens = next(steps)
        except Exception as error:
            fail(order, error, self._log)
            return
        if tokens > self._tokens:
            need = f"the question takes {tokens} tokens with its samples, and the service"
            order.fail(Refusal("too_many_tokens", f"{need} {self._tokens}; shorten it or lower k"))
