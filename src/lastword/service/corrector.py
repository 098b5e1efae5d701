"""Corrector: one decider behind a queue, awaited by all dialects and pages."""

import asyncio
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar, cast

from lastword.decide.answer import Answers
from lastword.decide.batch import Scope
from lastword.decide.decider import Decider
from lastword.decide.plan import Plan
from lastword.decide.tracer import Tracer
from lastword.errors import ItemError, TraceError
from lastword.files.strict_json import strict
from lastword.model.weights.identity import model_name
from lastword.records.decision import Decision
from lastword.service.learned import learned
from lastword.service.log import Log
from lastword.service.metrics import Metrics
from lastword.service.oversight import oversee
from lastword.service.passes import ItemOrder, ModelOrder, Passes, PlanOrder, ProbeOrder
from lastword.service.queue import Order
from lastword.service.refusal import Refusal
from lastword.service.settings import MOST_CHARACTERS, Settings
from lastword.service.worker import ReadJob, Worker, work_off
from lastword.text.items import Item
from lastword.text.tokens import EncodedItem, count_tokens

Read_ = TypeVar("Read_")
LONG = 2**15  # characters that take a tokenizer a tenth of a second: they wait behind short ones
_LEAST_TOKEN = 16  # characters of the longest token, of small vocabularies
_SLICE = 2**12  # characters of a long text that are tokenised at a time, so that others have turns
_CPU_TOKENS = 1024  # of one pass, for which all others wait
_LAST_SECONDS = 2.0  # for what hangs when all that is waited for has had its deadline


class Corrector:
    """A decider behind a queue, with the service's limits.

    Attributes:
        reader: The thread that reads text.
        model: The thread that owns the model.
    """

    def __init__(self, decider: Decider, settings: Settings, metrics: Metrics, log: Log) -> None:
        tracer = decider.tracer
        unasked = tracer.batch_tokens == tracer.backend.batch_tokens
        if unasked and tracer.profile.device.type == "cpu":
            tracer.batch_tokens = min(tracer.batch_tokens, _CPU_TOKENS)
        self.decider, self.settings = decider, settings
        self._metrics, self._log = metrics, log
        self._branch = settings.characters or _most_characters(tracer)
        self._learned = learned(decider, settings, log)
        watched = settings if self._learned is None else replace(settings, state=None)
        self.oversight = oversee(decider.certificate, watched, metrics, log)
        self.reader = Worker[ReadJob]("lastword-text", work_off, log)
        passes, most = Passes(decider, metrics, log), settings.batch_items
        self.model = Worker[ModelOrder](
            "lastword-model", passes.run, log, most=most, choose=passes.choose
        )

    @property
    def name(self) -> str:
        """The model's name, or the name of its folder or file if it has none."""
        return model_name(str(self.decider.tracer.source["model"]))

    @property
    def shadow(self) -> bool:
        """True if corrections are off, by request or after an alarm."""
        alarm = self.oversight is not None and self.oversight.monitor.alarm
        return self.settings.shadow or (alarm and self.settings.on_alarm == "shadow")

    @property
    def alive(self) -> bool:
        """True while both threads run."""
        return self.reader.alive and self.model.alive

    def close(self) -> bool:
        """Finish waiting orders, end the threads and close the state; False if a thread hangs."""
        ended = [worker.close(_LAST_SECONDS) for worker in (self.reader, self.model)]
        if not all(ended):
            self._log.event("abandoned", waiting=self.model.waiting)
        if self.oversight is not None:
            self.oversight.close()
        if self._learned is not None:
            self._learned.close()
        return all(ended)

    async def read(self, client: Hashable, size: int, work: Callable[[], Read_]) -> Read_:
        """Return the result of a function of text, called on the reader's thread in turn.

        Many characters (`size`) go to the lane of batches.

        Raises:
            Refusal: The service is stopping.
        """
        job = ReadJob(client=client, batch=size > LONG, work=work)
        self.reader.add([job])
        value: Read_ = await asyncio.wrap_future(job.future)
        return value

    async def require_short(self, client: Hashable, texts: Iterable[str]) -> None:
        """Refuse a text that the model cannot read, before the whole of it is tokenised.

        Long texts are tokenised slice by slice, and other clients have their turns in between. A
        slice may cut a token, so a text may have a quarter more tokens than the limit.

        Raises:
            Refusal: A text has too many characters or tokens, or the service is stopping.
        """
        tracer, most = self.decider.tracer, self.settings.tokens
        if tracer.overflow == "error":
            most = min(most, tracer.profile.context or most)
        for text in texts:
            if len(text) <= LONG:
                continue
            if len(text) > self._branch:
                what = f"a text has {len(text)} characters, the model reads {self._branch}"
                raise Refusal("too_many_characters", f"{what}; shorten it")
            count = 0
            for start in range(0, len(text), _SLICE):
                part = partial(count_tokens, text[start : start + _SLICE], tracer.tokenizer)
                count += await self.read(client, LONG + 1, part)
                if count > most + most // 4:
                    what = f"a text has more than {most} tokens, which is too long"
                    raise Refusal("too_many_tokens", f"{what}; shorten it")

    async def start(
        self,
        entries: "Sequence[tuple[Item, Scope] | ItemError]",
        client: Hashable,
        *,
        batch: bool = False,
    ) -> "list[ItemOrder | TraceError]":
        """Queue items with their scopes, in order; an item that cannot be asked gives its error.

        Blind prompts stay where they are read whole. `batch` is the lane.

        Raises:
            Refusal: The service is stopping.
        """
        checked: list[tuple[Item, Scope] | TraceError] = [
            one if isinstance(one, ItemError) else self._checked(*one) for one in entries
        ]
        for place, one in enumerate(checked):
            if not isinstance(one, TraceError) and characters(one[0]) > LONG:
                try:
                    await self.require_short(client, _texts(one[0]))
                except Refusal as refusal:
                    checked[place] = refusal
        readable = [one for one in checked if not isinstance(one, TraceError)]
        items = [item for item, _ in readable]
        encoded = await self.read(client, sum(map(characters, items)), lambda: self._encoded(items))
        scopes = [replace(scope, correction=self.decider.correction) for _, scope in readable]
        pairs = zip(encoded, scopes, strict=True)
        orders: list[ItemOrder | TraceError] = []
        for one in checked:
            if isinstance(one, TraceError):
                orders.append(one)
                continue
            result, scope = next(pairs)
            if isinstance(result, EncodedItem):
                orders.append(ItemOrder(client=client, batch=batch, encoded=result, scope=scope))
            else:
                orders.append(result)
        self.model.add([order for order in orders if isinstance(order, ItemOrder)])
        return orders

    async def result(self, order: "ItemOrder | TraceError") -> Decision:
        """Return the decision of a queued item, within the deadline.

        Raises:
            Refusal: The deadline passed.
            TraceError: What the item or the model raised.
        """
        if isinstance(order, TraceError):
            raise order
        return cast(Decision, await self._within(order))

    async def decide(
        self, item: Item, client: Hashable, scope: Scope
    ) -> tuple[Decision, EncodedItem]:
        """Return the decision of an item, and its tokens.

        Raises:
            Refusal: The deadline passed, or the service is stopping.
            TraceError: What the item or the model raised.
        """
        (order,) = await self.start([(item, scope)], client)
        try:
            decision = await self.result(order)
            assert isinstance(order, ItemOrder)
            return decision, order.encoded
        finally:
            leave([order])

    async def answer(self, plan: Plan, client: Hashable, *, batch: bool) -> Answers:
        """Return the answers to a plan's questions, within the deadline.

        Raises:
            Refusal: The deadline passed, or the service is stopping.
            TraceError: What the model raised.
        """
        orders = [_plan_order(part, client, batch=batch) for part in plan.split()]
        self.model.add(orders)
        answers = Answers()
        try:
            for order in orders:
                answers |= await self._within(order)
        finally:
            leave(orders)
        return answers

    async def _within(self, order: Order) -> Any:
        """Return the result of an order within the deadline; a client that leaves cancels it."""
        try:
            async with asyncio.timeout_at(order.since + self.settings.deadline_seconds):
                return await asyncio.wrap_future(order.future)
        except TimeoutError as error:
            raise late(self.settings) from error

    def _checked(self, item: Item, scope: Scope) -> "tuple[Item, Scope] | Refusal":
        """Return an item as it is read, or the refusal of one that is too large."""
        limits, count = self.settings, len(item.candidates)
        if scope.blind != "all":  # prompts that the correction does not read
            needs = self.decider.correction.needs
            blind = item.blind_prompt if needs.blind else None
            free = item.content_free if needs.content_free else ()
            item = replace(item, blind_prompt=blind, content_free=free)
        if count > limits.candidates:
            what = f"the item has {count} candidates, the service takes {limits.candidates}"
            return Refusal("too_many_candidates", what)
        most = limits.characters or min(MOST_CHARACTERS, count * self._branch)
        if (size := characters(item)) > most:
            what = f"{size} characters, the prompt counted with every candidate"
            return Refusal("too_many_characters", f"{what}: the service takes {most}")
        return item, scope

    def _encoded(self, items: Sequence[Item]) -> "list[EncodedItem | TraceError]":
        """Return items as tokens, or as errors; if all fail together, each is tried alone."""
        if not items:
            return []
        try:
            return [*map(self._within_limit, self.decider.encode(items))]
        except Exception as error:
            if len(items) > 1:
                return [one for item in items for one in self._encoded([item])]
            self._log.failure(error, at="tokens")
            return [Refusal.of(error)]

    def _within_limit(self, encoded: "EncodedItem | TraceError") -> "EncodedItem | TraceError":
        if isinstance(encoded, TraceError):
            return encoded
        tokens = encoded.tokens
        if tokens <= (most := self.settings.tokens):
            return encoded
        what = f"the item has {tokens} tokens, the service takes {most} an item; shorten it"
        return Refusal("too_many_tokens", what)

    def count_refusal(self, error: Exception) -> None:
        """Count an item of a batch that has no answer; whole requests are counted at the guard."""
        self._metrics.refusals.labels(Refusal.of(error).code).inc()

    def require_model(self, name: str | None, *aliases: str) -> str | None:
        """Return the served question that a model's name ends with, as `MODEL:QUESTION`.

        Raises:
            Refusal: It names another model than the one that is served, or no question of it.
        """
        if name is None or name in (names := (self.name, *aliases)):
            return None
        questions = self.decider.served.questions
        matches = [
            question for label in names for question in questions if name == f"{label}:{question}"
        ]
        if not matches:
            what = f"the model {name!r:.80} is not served here; expected {self.name!r}"
            choices = f", or with one of the questions {', '.join(questions)}" if questions else ""
            raise Refusal("unknown_model", f"{what}{choices:.200}")
        return matches[0]

    def write(
        self, decision: Decision, item: Item, *, full: bool, request: str, value: str | None = None
    ) -> dict[str, Any]:
        """Return the JSON of a decision; under shadow the model's, with the difference logged."""
        if self._learned is not None:
            self._learned.keep()
        label, content = {}, decision.to_dict(full=full)
        if self.oversight is not None:
            label["feedback_id"] = self.oversight.answered(decision, item, content, value)
        self._log_decision(decision, item, request)  # now it is known whether the alarm stands
        if self.shadow:
            if decision.corrected:
                self._metrics.shadow.labels(decision.operator).inc()
            content = decision.as_base().to_dict(full=full)
        return content | label

    def view(self, decision: Decision, item: Item) -> dict[str, Any]:
        """Return a decision as the pages draw it: words, and the scores at every depth."""
        # Here: it brings the report's figures.
        from lastword.records import item_view
        from lastword.records.record import Record

        shown = decision.as_base() if self.shadow else decision
        answer = replace(shown, truthful=item.truthful)
        record = Record(
            prompt=item.prompt, candidates=item.candidates, truthful=item.truthful, answer=answer
        )
        view = {
            "text": item_view.text(record),
            "item": item_view.item(record, self.decider.tracer.theta),
        }
        return cast(dict[str, Any], strict(view))

    def _log_decision(self, decision: Decision, item: Item, request: str) -> None:
        self._log.event(
            "shadow" if self.shadow else "decision",
            request=request,
            regime=decision.regime,
            operator=decision.operator,
            base_index=decision.base_index,
            index=decision.index,
            changed=decision.corrected,
            withheld=None if decision.withheld is None else decision.withheld.rule,
            deferred=decision.deferred or None,
            id=item.id,
            prompt=item.prompt,
            candidates=item.candidates,
        )


def _most_characters(tracer: Tracer) -> int:
    """Return how many characters the context can hold, if every token is the longest.

    A tokenizer that drops blanks may take more; `--limits characters` then says how many.
    """
    context = tracer.profile.context
    vocabulary: Iterable[str] = getattr(tracer.tokenizer, "get_vocab", dict)()
    if context is None or tracer.overflow != "error":
        return MOST_CHARACTERS
    longest = max(map(len, vocabulary), default=0)
    longest = max(longest, _LEAST_TOKEN)
    return min(MOST_CHARACTERS, (context + 1) * longest)


def _texts(item: Item) -> tuple[str, ...]:
    return (item.prompt, item.blind_prompt or "", *item.content_free, *item.candidates)


def leave(orders: "Sequence[Order | TraceError]") -> None:
    """Remove orders from the queue that no request waits for."""
    for order in orders:
        if isinstance(order, Order):
            order.future.cancel()


def late(settings: Settings) -> Refusal:
    """Return the refusal of a request without an answer at its deadline."""
    return Refusal("deadline", f"no answer within {settings.deadline_seconds:g} s")


def characters(item: Item) -> int:
    """Count an item's characters: the prompts once per candidate, and the candidates."""
    free = sum(len(prompt) for prompt in item.content_free)
    before = len(item.prompt) + len(item.separator) + len(item.blind_prompt or "") + free
    return sum(before + len(candidate) for candidate in item.candidates)


def _plan_order(plan: Plan, client: Hashable, *, batch: bool) -> PlanOrder | ProbeOrder:
    first = plan.parts[0]
    if first.probe is not None:
        return ProbeOrder(client=client, batch=batch, plan=plan)
    assert first.item is not None and first.scope is not None
    return PlanOrder(client=client, batch=batch, plan=plan, encoded=first.item, scope=first.scope)
