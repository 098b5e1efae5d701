"""From text to tokens: what waits for the model is read first, and refused where it is too long."""

from collections.abc import Sequence

from lastword.service.log import Log
from lastword.service.orders import Order, Steps
from lastword.service.passes import fail
from lastword.service.refusal import Refusal
from lastword.text.items import Item
from lastword.text.tokens import Encoded, count_tokens
from lastword.tracer import Tracer

_MARGIN = 64  # tokens by which the end of a beginning may differ from the middle of the whole
_TOKENS_A_CHARACTER = 4  # at most, of the usual tokenizers


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
        items = [order for order in orders if order.kind == "item" and self._may_fit(order)]
        for order, encoded in zip(items, self._encode(items), strict=True):
            if isinstance(encoded, Exception):
                fail(order, encoded, self._log)
            else:
                order.future.encoded, order.tokens = encoded, _count(encoded)
        for order in orders:
            if not isinstance(order.work, Item):
                self._admit(order, order.work)

    def _may_fit(self, order: Order) -> bool:
        """Whether an item's prompt may fit; where it cannot, a part of it has been read to tell so.

        Beginnings of the prompt are read, each twice as long as the one before, until one has too
        many tokens: what follows only adds to them.
        """
        assert isinstance(order.work, Item)
        prompt, limit = order.work.prompt, self._most()
        size = limit if limit is not None and len(prompt) * _TOKENS_A_CHARACTER > limit else 0
        while limit is not None and 0 < size < 2 * len(prompt):
            try:
                tokens = count_tokens(prompt[:size], self._tracer.tokenizer)
            except Exception as error:
                fail(order, error, self._log)
                return False
            if tokens > limit + _MARGIN:
                order.fail(self._too_long(limit))
                return False
            size *= 2
        return True

    def _too_long(self, limit: int) -> Refusal:
        what = f"the item needs more than {limit} tokens for its prompt alone"
        if limit == self._tracer.profile.context:
            more = "shorten it or allow truncation (--overflow truncate)"
            return Refusal("item", f"{what} and the model's context is {limit}; {more}")
        what = f"{what}, the service takes {self._tokens} an item; shorten it"
        return Refusal("too_many_tokens", what)

    def _most(self) -> int | None:
        """Most tokens of a prompt; None where it is cut."""
        tracer = self._tracer
        if tracer.overflow != "error":
            return None
        return min(self._tokens, tracer.profile.context or self._tokens)

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
        tokens = _count(encoded)
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
        order.tokens = tokens
        if tokens > self._tokens:
            need = f"the question takes {tokens} tokens with its samples, and the service"
            order.fail(Refusal("too_many_tokens", f"{need} {self._tokens}; shorten it or lower k"))


def _count(encoded: Encoded) -> int:
    return encoded.prompt_tokens + sum(encoded.candidate_tokens)
