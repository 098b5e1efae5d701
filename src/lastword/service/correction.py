"""Corrector: one model's answers, awaited; what the API and the explorer both call."""

import asyncio
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar, cast

from lastword.decide.answer import Answers
from lastword.decide.batch import Scope
from lastword.decide.item import Input, text_of
from lastword.decide.tracer import Tracer
from lastword.errors import ItemError, TraceError
from lastword.files.strict_json import strict
from lastword.model.weights.identity import model_name
from lastword.probes.answering import Asked, answer_texts
from lastword.records.decision import Decision
from lastword.service.learned import learned
from lastword.service.log import Log
from lastword.service.metrics import Metrics
from lastword.service.oversight import oversee
from lastword.service.passes import Passes, Question
from lastword.service.refusal import Refusal
from lastword.service.settings import Settings
from lastword.service.worker import Job, Order, Worker, work_off
from lastword.text.items import Item
from lastword.text.tokens import Encoded, count_tokens

Read_ = TypeVar("Read_")
LONG = 2**15  # characters that take a tokenizer a tenth of a second: they wait behind short ones
_CPU_TOKENS = 1024  # of one pass, for which all others wait
_LAST_SECONDS = 2.0  # for what hangs when all that is waited for has had its deadline


class Corrector:
    """A tracer behind a queue, with the service's limits and manners.

    Attributes:
        reader: The thread that reads text.
        model: The thread that owns the model.
    """

    def __init__(self, tracer: Tracer, settings: Settings, metrics: Metrics, log: Log) -> None:
        tracer.shorten(_CPU_TOKENS)
        self.tracer, self.settings = tracer, settings
        self._metrics, self._log = metrics, log
        self._learned = learned(tracer, settings, log)
        watched = settings if self._learned is None else replace(settings, state=None)
        self.oversight = oversee(tracer.certificate, watched, metrics, log)
        self.reader = Worker[Job]("lastword-text", work_off, log)
        passes, most = Passes(tracer, metrics, log), settings.batch_items
        self.model = Worker[Question | Job](
            "lastword-model", passes.run, log, most=most, choose=passes.choose
        )

    @property
    def name(self) -> str:
        """What the model is called; the name of its folder or file where it has no other."""
        return model_name(str(self.tracer.source["model"]))

    @property
    def shadow(self) -> bool:
        """Whether answers are the model's own: asked for, or after an alarm."""
        alarm = self.oversight is not None and self.oversight.monitor.alarm
        return self.settings.shadow or (alarm and self.settings.on_alarm == "shadow")

    @property
    def alive(self) -> bool:
        """True while both threads are there."""
        return self.reader.alive and self.model.alive

    def close(self) -> bool:
        """Finish what waits, end the threads, let the state go; False if a thread hangs."""
        ended = [worker.close(_LAST_SECONDS) for worker in (self.reader, self.model)]
        if not all(ended):
            self._log.event("abandoned", waiting=self.model.waiting)
        if self.oversight is not None:
            self.oversight.close()
        if self._learned is not None:
            self._learned.close()
        return all(ended)

    async def read(self, client: Hashable, size: int, work: Callable[[], Read_]) -> Read_:
        """Return what a function makes of text, read in a thread of its own, in its client's turn.

        Many characters (`size`) go to the lane of batches.

        Raises:
            Refusal: The service is stopping.
        """
        job = Job(client=client, batch=size > LONG, work=work)
        self.reader.add([job])
        value: Read_ = await asyncio.wrap_future(job.future)
        return value

    async def start(
        self,
        entries: "Sequence[tuple[Item, Scope] | ItemError]",
        client: Hashable,
        *,
        batch: bool = False,
        bounded: bool = False,
    ) -> "list[Question | TraceError]":
        """Queue items with what is read of each, in order; what cannot be asked is its error.

        Blind prompts stay where they are read whole. `batch` is the lane; `bounded` says that
        the size of their request was checked.

        Raises:
            Refusal: The service is stopping.
        """
        checked = [
            one if isinstance(one, ItemError) else self._checked(*one, bounded=bounded)
            for one in entries
        ]
        readable = [one for one in checked if not isinstance(one, TraceError)]
        items = [item for item, _ in readable]
        encoded = await self.read(client, sum(map(characters, items)), lambda: self._encoded(items))
        asked = zip(encoded, (scope for _, scope in readable), strict=True)
        made = [
            one if isinstance(one, TraceError) else _order(*next(asked), client, batch=batch)
            for one in checked
        ]
        self.model.add([order for order in made if isinstance(order, Question)])
        return made

    async def result(self, order: "Question | TraceError") -> Decision:
        """Return the decision of a queued item, within the deadline.

        Raises:
            Refusal: The deadline passed.
            TraceError: What the item or the model raised.
        """
        if isinstance(order, TraceError):
            raise order
        return cast(Decision, await self._within(order))

    async def decide(
        self,
        items: Sequence[Item],
        client: Hashable,
        scope: Scope = Scope(),  # noqa: B008 - frozen
        **how: bool,
    ) -> list[tuple[Decision, Encoded]]:
        """Return the decisions of items with their tokens, in order; all else is as `start` has it.

        Raises:
            Refusal: The deadline passed, or the service is stopping.
            TraceError: What the first item that fails, or the model, raised.
        """
        orders = await self.start([(item, scope) for item in items], client, **how)
        try:
            return [(await self.result(order), _tokens(order)) for order in orders]
        finally:
            leave(orders)

    async def probed(
        self, value: Input, asked: Mapping[str, Asked], client: Hashable, *, trajectory: bool
    ) -> tuple[Answers, int]:
        """Return the answers of probes about an input, within the deadline, and its tokens.

        Raises:
            Refusal: The deadline passed, or the service is stopping.
            TraceError: The input cannot be read.
        """

        def work() -> tuple[Answers, int]:
            template = self.tracer.prepare({n: own.question for n, own in asked.items()}).template
            tracer, inputs = self.tracer, [(value, None)]
            (answers,) = answer_texts(
                tracer, inputs, asked, template, tracer.unlike, trajectory=trajectory
            )
            return answers, count_tokens(text_of(value), self.tracer.tokenizer)

        job = Job(client=client, batch=False, work=work)
        self.model.add([job])
        return cast(tuple[Answers, int], await self._within(job))

    async def _within(self, order: Order) -> Any:
        """Return what comes of an order within the deadline; who leaves takes it out."""
        try:
            async with asyncio.timeout_at(order.since + self.settings.deadline_seconds):
                return await asyncio.wrap_future(order.future)
        except TimeoutError as error:
            raise late(self.settings) from error

    def _checked(
        self, item: Item, scope: Scope, *, bounded: bool
    ) -> "tuple[Item, Scope] | Refusal":
        """Return an item as it is read, or why it may not be."""
        limits, count = self.settings, len(item.candidates)
        item = item if scope.blind == "all" else self.tracer.trim(item)
        if bounded:
            return item, scope
        if count > limits.candidates:
            what = f"the item has {count} candidates, the service takes {limits.candidates}"
            return Refusal("too_many_candidates", what)
        if (size := characters(item)) > limits.characters:
            what = f"{size} characters, the prompt counted with every candidate"
            return Refusal("too_many_characters", f"{what}: the service takes {limits.characters}")
        return item, scope

    def _encoded(self, items: Sequence[Item]) -> "list[Encoded | TraceError]":
        """Return items as tokens, or as errors; where all fail together each is tried alone."""
        if not items:
            return []
        try:
            return [*map(self._within_limit, self.tracer.encode(items))]
        except Exception as error:
            if len(items) > 1:
                return [one for item in items for one in self._encoded([item])]
            self._log.failure(error, at="tokens")
            return [Refusal.of(error)]

    def _within_limit(self, encoded: "Encoded | TraceError") -> "Encoded | TraceError":
        if isinstance(encoded, TraceError):
            return encoded
        tokens = encoded.prompt_tokens + sum(encoded.candidate_tokens)
        if tokens <= (most := self.settings.tokens):
            return encoded
        what = f"the item has {tokens} tokens, the service takes {most} an item; shorten it"
        return Refusal("too_many_tokens", what)

    def count_refusal(self, error: Exception) -> None:
        """Count an item of a batch that has no answer; whole requests are counted at the guard."""
        self._metrics.refusals.labels(Refusal.of(error).code).inc()

    def require_model(self, name: str | None) -> None:
        """Refuse a request for another model than the one that is served.

        Raises:
            Refusal: It names another.
        """
        if name is not None and name != self.name:
            what = f"the model {name!r:.80} is not served here; expected {self.name!r}"
            raise Refusal("unknown_model", what)

    def write(
        self,
        decision: Decision,
        item: Item,
        *,
        full: bool,
        request: str,
        value: str | None = None,
    ) -> dict[str, Any]:
        """The JSON of a decision; under shadow the base's, with the difference logged."""
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
        """Return what the pages draw of a decision that was read whole: words and every depth."""
        # Here: it brings the report's figures.
        from lastword.records import item_view
        from lastword.records.record import Record

        shown = decision.as_base() if self.shadow else decision
        answer = replace(shown, truthful=item.truthful)
        record = Record(
            prompt=item.prompt, candidates=item.candidates, truthful=item.truthful, answer=answer
        )
        view = {"text": item_view.text(record), "item": item_view.item(record, self.tracer.theta)}
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


def leave(orders: "Sequence[Question | TraceError]") -> None:
    """Take orders out of the queue that nobody waits for any more."""
    for order in orders:
        if isinstance(order, Question):
            order.future.cancel()


def late(settings: Settings) -> Refusal:
    """Return the refusal of what has no answer within the deadline."""
    return Refusal("deadline", f"no answer within {settings.deadline_seconds:g} s")


def characters(item: Item) -> int:
    """Count what is read of an item: prompts once for each candidate, and the candidates."""
    free = sum(len(prompt) for prompt in item.content_free)
    before = len(item.prompt) + len(item.separator) + len(item.blind_prompt or "") + free
    return sum(before + len(candidate) for candidate in item.candidates)


def _order(
    encoded: "Encoded | TraceError", scope: Scope, client: Hashable, *, batch: bool
) -> "Question | TraceError":
    if isinstance(encoded, TraceError):
        return encoded
    return Question(client=client, batch=batch, encoded=encoded, scope=scope)


def _tokens(order: "Question | TraceError") -> Encoded:
    assert isinstance(order, Question)
    return order.encoded
