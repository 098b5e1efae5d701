"""Corrector: one model's answers, awaited; what the API and the explorer both call."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any

from lastword.batch import Read
from lastword.generation.ask import Asked, ask_in_steps
from lastword.generation.sampling import Sampling
from lastword.records.decision import Decision
from lastword.service.batching import Batcher
from lastword.service.learned import learned
from lastword.service.log import Log
from lastword.service.metrics import Metrics
from lastword.service.orders import Promise, characters
from lastword.service.oversight import oversee
from lastword.service.refusal import Refusal
from lastword.service.settings import Settings
from lastword.text.items import Item
from lastword.tracer import Tracer

_CPU_TOKENS = 1024  # of one pass, for which all others wait
_RETRY_SECONDS, _LONGEST_RETRY_SECONDS = 0.02, 0.32
_LAST_SECONDS = 2.0  # for what hangs when all that is waited for has had its deadline


class Corrector:
    """A tracer behind a queue, with the service's limits and manners.

    Args:
        tracer: The model's tracer.
        settings: Limits and manners.
        metrics: What is counted.
        log: Where decisions are told.
    """

    def __init__(self, tracer: Tracer, settings: Settings, metrics: Metrics, log: Log) -> None:
        tracer.shorten(_CPU_TOKENS)
        self.tracer, self.settings = tracer, settings
        self._metrics, self._log = metrics, log
        self._learned = learned(tracer, settings, log)
        watched = settings if self._learned is None else replace(settings, state=None)
        self.oversight = oversee(tracer.certificate, watched, metrics, log)
        self.batcher = Batcher(tracer, settings, metrics, log)

    @property
    def name(self) -> str:
        """What the model is called."""
        return str(self.tracer.source["model"])

    @property
    def shadow(self) -> bool:
        """Whether answers are the model's own: asked for, or after an alarm."""
        alarm = self.oversight is not None and self.oversight.monitor.alarm
        return self.settings.shadow or (alarm and self.settings.on_alarm == "shadow")

    def close(self) -> None:
        """Finish what waits, end the threads, let the state go."""
        self.batcher.close(_LAST_SECONDS)
        if self.oversight is not None:
            self.oversight.close()
        if self._learned is not None:
            self._learned.close()

    def start(
        self, item: Item, read: Read, *, batch: int | None = None, bounded: bool = False
    ) -> Promise:
        """Queue an item; `batch` as `Order` has it, `bounded` where its request's size was checked.

        Raises:
            Refusal: Too many candidates or characters, or the queue is full.
        """
        item = self.tracer.trim(item)
        limit = self.settings.candidates
        if not bounded and len(item.candidates) > limit:
            what = f"the item has {len(item.candidates)} candidates, the service takes {limit}"
            raise Refusal("too_many_candidates", what)
        if not bounded:
            self._require_short(characters(item))
        deadline = time.monotonic() + self.settings.deadline_seconds
        return self.batcher.submit(item, read, deadline, batch=batch)

    async def start_patiently(
        self, item: Item, read: Read, batch: int | None, *, bounded: bool = False
    ) -> Promise:
        """Queue one of several items: wait for a free place instead of giving up.

        Raises:
            Refusal: Too many candidates or characters, or no place became free within the deadline.
        """
        latest = time.monotonic() + self.settings.deadline_seconds
        wait = _RETRY_SECONDS
        while True:
            try:
                return self.start(item, read, batch=batch, bounded=bounded)
            except Refusal as refusal:
                if refusal.code != "queue_full" or time.monotonic() > latest:
                    raise
            await asyncio.sleep(wait)
            wait = min(2 * wait, _LONGEST_RETRY_SECONDS)  # hundreds of batches may ask

    def count_refusal(self, error: Exception) -> None:
        """Count an item of a batch that has no answer; whole requests are counted at the guard."""
        self._metrics.refusals.labels(Refusal.of(error).code).inc()

    def require_model(self, name: str | None) -> None:
        """Refuse a request for another model than the one that is served.

        Raises:
            Refusal: It names another.
        """
        if name is not None and name != self.name:
            what = f"the model {name!r:.80} is not served here, {self.name!r} is: name it, or none"
            raise Refusal("unknown_model", what)

    def start_asking(self, question: str, **sampling: Any) -> Promise:
        """Queue a question without candidates; `sampling` of `Sampling`.

        Raises:
            Refusal: Too many characters, or the queue is full.
        """
        settings = Sampling(**sampling)
        self._require_short(len(question) * (settings.k + 1))
        deadline = time.monotonic() + self.settings.deadline_seconds
        steps = ask_in_steps(self.tracer, question, settings)
        return self.batcher.submit(steps, "decide", deadline)

    def _require_short(self, count: int) -> None:
        """Refuse what would take long to tokenise: the prompt is read with every candidate."""
        if count > (limit := self.settings.characters):
            what = f"{count} characters, the prompt counted with every candidate"
            raise Refusal("too_many_characters", f"{what}: the service takes {limit}")

    async def result(
        self, future: Promise, leaving: Callable[[], Awaitable[None]] | None = None
    ) -> Any:
        """What a queued order gives, while its client is there and its deadline has not passed.

        Args:
            future: The order's.
            leaving: Returns when the client has left.

        Raises:
            Refusal: The deadline passed, or the client left: the order is taken out of the queue.
            TraceError: What the item or the model raised.
        """
        if future.done():
            return future.result()
        answer = asyncio.wrap_future(future)
        waits: set[asyncio.Future[Any]] = {answer}
        departure = None if leaving is None else asyncio.ensure_future(leaving())
        if departure is not None:
            waits.add(departure)
        try:
            done, _ = await asyncio.wait(
                waits,
                timeout=max(0.0, future.deadline - time.monotonic()),
                return_when=asyncio.FIRST_COMPLETED,
            )
            if answer in done:
                return answer.result()
            if done:
                raise Refusal("client_left", "the client left before its answer")
            what = f"no answer within {self.settings.deadline_seconds:g} s"
            raise Refusal("deadline", what)
        finally:
            answer.cancel()
            if departure is not None:
                departure.cancel()

    def write(self, decision: Decision, item: Item, *, full: bool, request: str) -> dict[str, Any]:
        """The JSON of a decision; under shadow the base's, with the difference logged."""
        self._log_decision(decision, item, request)
        if self._learned is not None:
            self._learned.keep()
        label, content = {}, decision.to_dict(full=full)
        if self.oversight is not None:
            label["feedback_id"] = self.oversight.answered(decision, item, content)
        if self.shadow:
            if decision.corrected:
                self._metrics.shadow.labels(decision.operator).inc()
            content = decision.as_base().to_dict(full=full)
        return content | label

    def write_answer(self, answer: Asked, *, request: str) -> dict[str, Any]:
        """The JSON of an answered question; under shadow the choice is the base's."""
        item = Item(answer.prompt, answer.decision.candidates)
        self._metrics.decided(answer.decision)
        decision = self.write(answer.decision, item, full=False, request=request)
        if self.shadow:
            answer = replace(answer, decision=answer.decision.as_base())
        return answer.to_dict() | {k: v for k, v in decision.items() if k == "feedback_id"}

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


def by_score(scores: Sequence[float]) -> list[int]:
    """Places from the highest score to the lowest; ties as they came."""
    return sorted(range(len(scores)), key=lambda place: -scores[place])
