"""Service: one decider behind a queue, awaited by all dialects and pages."""

import asyncio
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from functools import partial
from itertools import accumulate, groupby
from typing import TypeVar

from lastword.decide.answer import Answer, answered_by
from lastword.decide.answerers import Query, new_tokens
from lastword.decide.decider import Decider
from lastword.decide.questions_file import read_questions
from lastword.decide.templates import template_of
from lastword.errors import InputError, ItemError, TraceError
from lastword.model.weights.identity import model_name
from lastword.records.decision import Decision
from lastword.service.application import Application
from lastword.service.limits import CPU_TOKENS, LONG, require_small
from lastword.service.log import Log
from lastword.service.oversight import Oversight
from lastword.service.passes import Passes
from lastword.service.queue import Line, Order
from lastword.service.refusal import Refusal
from lastword.service.schema import ItemBody, Object
from lastword.service.settings import Settings
from lastword.text.items import Item
from lastword.version import __version__

Result = TypeVar("Result")


class Service(Application):
    """A decider behind a queue, with the service's limits.

    Raises:
        InputError: The questions, the template or the state cannot be used.
    """

    def __init__(self, decider: Decider, settings: Settings, log: Log | None = None) -> None:
        super().__init__(settings, log)
        if settings.template is not None:
            template_of(settings.template)  # raises at start, not at the first request
            decider.template = settings.template
        if settings.questions is not None:
            questions = read_questions(settings.questions)
            decider.prepare(questions, warn=False)  # raises at start too
            decider.serve(questions)
        self.decider = decider
        if decider.by_model is None:
            self.name = model_name(next(iter(decider.encoders)))
        else:
            tracer = decider.tracer
            self.name = model_name(str(tracer.source["model"]))
            is_default = tracer.batch_tokens == tracer.model.batch_tokens
            if is_default and tracer.profile.device.type == "cpu":
                tracer.batch_tokens = min(tracer.batch_tokens, CPU_TOKENS)
        certificate = decider.certificate
        if certificate is None and (settings.state is not None or settings.on_alarm != "log"):
            raise InputError(
                "--state and --on-alarm need a certificate: give --certificate, or leave them out"
            )
        self.oversight = None
        if certificate is not None:
            self.oversight = Oversight(certificate, settings, self.metrics, self.log)
        # Long texts have a thread of their own, so that short ones do not wait for them.
        names = ("lastword-text", "lastword-long-text", "lastword-model")
        self._threads = [ThreadPoolExecutor(1, name) for name in names]
        self._text, self._long_text, model = self._threads
        self.passes = Passes(decider, self.metrics, self.log, settings.deadline_seconds)
        self.line = Line(self.passes.choose, self.passes.run, model, settings.batch_items)
        self.metrics.served.labels(__version__, self.name).set(1)
        self.metrics.dropped_lines.set_function(lambda: self.log.dropped)
        self.metrics.oldest.set_function(self.line.oldest_seconds)
        self.metrics.waiting_items.set_function(lambda: self.line.waiting)

    def announce(self, address: str) -> None:
        """Log the certificate, or that there is none."""
        certificate = self.decider.certificate
        if certificate is None:
            what = (
                "corrections have no guarantee, and questions without one get the model's answers"
            )
            self.log.event("uncertified", told=what)
            return
        self.log.event("certified", **asdict(certificate.policy), date=certificate.date)
        if self.settings.token is not None and self.settings.label_token is None:
            what = "whoever may ask may label, and raise the alarm: give --label-token"
            self.log.event("labels", told=what)

    @property
    def shadow(self) -> bool:
        """True if corrections are off, by request or after an alarm."""
        alarm = self.oversight is not None and self.oversight.alarm
        return self.settings.shadow or (alarm and self.settings.on_alarm == "shadow")

    def close(self) -> None:
        """End the threads and close the state."""
        self.ended = not self.line.current  # nothing ends a pass that hangs
        if not self.ended:
            self.log.event("abandoned", waiting=self.line.waiting)
        self.line.close()
        for thread in self._threads:
            thread.shutdown(wait=False, cancel_futures=True)
        if self.oversight is not None:
            self.oversight.ledger.close()

    async def read(self, size: int, work: Callable[[], Result]) -> Result:
        """Call a function that reads so many characters of text in a thread."""
        thread = self._long_text if size > LONG else self._text
        return await asyncio.get_running_loop().run_in_executor(thread, work)

    async def correct(
        self, bodies: Sequence[ItemBody], client: Hashable, request: str, *, batch: bool
    ) -> "list[Object | TraceError]":
        """Return the JSON of the decision on each item, or its error."""

        def orders() -> list[Order | TraceError]:
            return [self._order(body, client, batch) for body in bodies]

        size = sum(len(body.prompt) * len(body.candidates) for body in bodies)
        waiting = await self.read(size, orders)
        written: list[Object | TraceError] = []
        for body, order, result in zip(
            bodies, waiting, await self.line.results(waiting), strict=True
        ):
            if isinstance(result, Decision) and isinstance(order, Order) and order.encoded:
                item = order.encoded.item
                result = self.write(result, item, full=body.full, request=request)
            written.append(result)
        return written

    def _order(self, body: ItemBody, client: Hashable, batch: bool) -> Order | TraceError:
        """Return the order of an item, without the prompts that the correction does not read."""
        try:
            item, needs = body.item(), self.decider.correction.needs
            blind = item.blind_prompt if needs.blind else None
            free = item.content_free if needs.content_free else ()
            item = replace(item, blind_prompt=blind, content_free=free)
            require_small(item, self.settings)
            (encoded,) = self.decider.encode([item])
            if isinstance(encoded, ItemError):
                return encoded
            self.require_few_tokens(encoded.tokens)
        except TraceError as error:
            return error
        scope = self.decider.scope("all" if body.full else "decide")
        return Order(client=client, batch=batch, encoded=encoded, scope=scope)

    def require_few_tokens(self, tokens: int, items: int = 1) -> None:
        """Refuse more tokens than so many items may have, or than are read before the deadline."""
        if tokens > (limit := items * self.settings.tokens):
            what = f"the request has {tokens} tokens, the service takes {limit}"
            raise Refusal("too_many_tokens", what)
        self.passes.require_timely(tokens)

    async def answer(
        self, works: Sequence[Query], client: Hashable, *, batch: bool
    ) -> list[Answer]:
        """Return the answer of each work, or raise what the model raised."""
        # One order per question, so that a pass can mix the questions of several requests.
        orders = _orders(works, client, batch, self.passes.probe_tokens)
        answers = list[Answer]()
        for result in await self.line.results(orders):
            if isinstance(result, BaseException):
                raise result
            answers += result
        return answers

    def require_model(self, name: str | None, *aliases: str) -> None:
        """Refuse another model than the served one."""
        if name is not None and name not in (self.name, *aliases):
            what = f"the model {name!r:.80} is not served here; expected {self.name!r}"
            raise Refusal("unknown_model", what)

    def write(
        self, decision: Decision, item: Item, *, full: bool, request: str, work: Query | None = None
    ) -> Object:
        """Return the JSON of a decision, and log it; under shadow, of the model's answer."""
        label, content = {}, decision.to_dict(full=full)
        if self.oversight is not None:
            label["feedback_id"] = self.oversight.answered(decision, item, work)
        self.log.event(  # after oversight, which may raise the alarm
            "shadow" if self.shadow else "decision",
            request=request,
            regime=decision.regime,
            operator=decision.operator,
            base_index=decision.base_index,
            index=decision.index,
            changed=decision.corrected,
            withheld=None if decision.withheld is None else decision.withheld.rule,
            deferred=decision.deferred or None,
        )
        if self.shadow:
            if decision.corrected:
                self.metrics.shadow.labels(decision.operator).inc()
            content = decision.as_base().to_dict(full=full)
        content["method"] = answered_by(content["method"], content["operator"])
        return content | label


def _orders(works: Sequence[Query], client: Hashable, batch: bool, most: int) -> list[Order]:
    """Return the orders of these works.

    Adjacent works of probes share an order of about `most` tokens, and so a pass.
    """
    make, orders = partial(Order, client=client, batch=batch), list[Order]()
    totals = accumulate(new_tokens(works))
    parts = zip(works, (total // most for total in totals), strict=True)
    for (probed, _), part in groupby(parts, key=lambda p: (p[0].probe is not None, p[1])):
        group = [work for work, _ in part]
        if probed:
            orders.append(make(works=tuple(group)))
        else:
            orders += [make(works=(w,), encoded=w.item, scope=w.scope) for w in group]
    return orders
