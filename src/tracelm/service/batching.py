"""Requests that wait at the same moment are computed together.

One thread owns the model. Whenever it is free it takes what waits, oldest first, packs it by the
tracer's own plan and answers it; a request that comes alone is taken at once, so nobody waits for
company. A group that fails is taken apart and each item tried alone.
"""

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from tracelm.errors import TraceError
from tracelm.service.log import Log
from tracelm.service.metrics import Metrics
from tracelm.service.refusal import Refusal
from tracelm.service.settings import Settings
from tracelm.text.items import Item
from tracelm.text.tokens import Encoded
from tracelm.tracer import Read, Tracer

_SMOOTHING = 0.1  # weight of the latest batch in the mean seconds an item


@dataclass(eq=False)
class Job:
    """One thing to compute: an item to decide, or a call that has the model to itself.

    Attributes:
        work: The item, or the call.
        read: How an item is read.
        deadline: When nobody waits for it any more, by `time.monotonic`.
        future: Where its result goes; cancelling it before it starts takes it out of the queue.
    """

    work: Item | Callable[[], Any]
    read: Read
    deadline: float
    future: Future[Any] = field(default_factory=Future)

    def start(self) -> bool:
        """Claim the job; False where it was cancelled or is too late."""
        if not self.future.set_running_or_notify_cancel():
            return False
        if time.monotonic() > self.deadline:
            self.future.set_exception(Refusal("deadline", "no answer within the deadline"))
            return False
        return True


@dataclass(frozen=True)
class _Ready:
    job: Job
    encoded: Encoded


class Batcher:
    """A bounded queue before one thread that owns the model.

    Args:
        tracer: The model's tracer; this thread alone calls it.
        settings: Limits.
        metrics: What is counted.
        log: Where defects are told.
    """

    def __init__(self, tracer: Tracer, settings: Settings, metrics: Metrics, log: Log) -> None:
        """Start the thread."""
        self._tracer, self._settings = tracer, settings
        self._metrics, self._log = metrics, log
        self._waiting: deque[Job] = deque()
        self._change = threading.Condition()
        self._closing = False
        self._seconds_per_item = 0.0
        self._thread = threading.Thread(target=self._work, name="tracelm-model", daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Whether jobs are still taken."""
        return self._thread.is_alive() and not self._closing

    def submit(self, work: Item | Callable[[], Any], read: Read, deadline: float) -> Future[Any]:
        """Queue one job.

        Raises:
            Refusal: The queue is full, or the service is stopping.
        """
        job = Job(work, read, deadline)
        with self._change:
            if self._closing:
                raise Refusal("draining", "the service is stopping; try another", retry_after=1)
            if len(self._waiting) >= self._settings.queue_items:
                self._waiting = deque(j for j in self._waiting if not j.future.cancelled())
            if len(self._waiting) >= self._settings.queue_items:
                raise Refusal(
                    "queue_full",
                    f"{len(self._waiting)} items wait already; try again later",
                    retry_after=self._retry_after(),
                )
            self._waiting.append(job)
            self._metrics.waiting.set(len(self._waiting))
            self._change.notify()
        return job.future

    def close(self) -> None:
        """Finish what waits, then end the thread."""
        with self._change:
            self._closing = True
            self._change.notify()
        self._thread.join()

    def _retry_after(self) -> int:
        return max(1, math.ceil(len(self._waiting) * self._seconds_per_item))

    def _work(self) -> None:
        while jobs := self._take():
            self._answer(jobs)

    def _take(self) -> list[Job]:
        """What waits, oldest first, as soon as anything does; nothing where the end has come."""
        with self._change:
            while not self._waiting and not self._closing:
                self._change.wait()
            count = min(len(self._waiting), self._settings.batch_items)
            jobs = [self._waiting.popleft() for _ in range(count)]
            self._metrics.waiting.set(len(self._waiting))
        return jobs

    def _answer(self, jobs: Sequence[Job]) -> None:
        start = time.perf_counter()
        live = [job for job in jobs if job.start()]
        for read in sorted({job.read for job in live}):
            self._correct([j for j in live if j.read == read and isinstance(j.work, Item)], read)
        for job in live:
            if not isinstance(job.work, Item):
                self._call(job, job.work)
        if live:
            latest = (time.perf_counter() - start) / len(live)
            mean = self._seconds_per_item or latest
            self._seconds_per_item = mean + _SMOOTHING * (latest - mean)

    def _correct(self, jobs: Sequence[Job], read: Read) -> None:
        ready = []
        for job, encoded in zip(jobs, self._encode(jobs), strict=True):
            if isinstance(encoded, Exception):
                self._fail(job, encoded)
            else:
                ready.append(_Ready(job, encoded))
        for group in self._plan(ready):
            self._decide(group, read)

    def _encode(self, jobs: Sequence[Job]) -> list[Encoded | Exception]:
        items = [job.work for job in jobs if isinstance(job.work, Item)]
        try:
            encoded = self._tracer.encode(items)
        except Exception as error:
            if len(jobs) == 1:
                return [error]
            return [result for job in jobs for result in self._encode([job])]
        return [e if isinstance(e, Exception) else self._limited(e) for e in encoded]

    def _limited(self, encoded: Encoded) -> Encoded | Refusal:
        tokens = encoded.prompt_tokens + sum(encoded.candidate_tokens)
        if tokens <= self._settings.tokens:
            return encoded
        limit = f"the service takes {self._settings.tokens} an item; shorten it"
        return Refusal("too_many_tokens", f"the item has {tokens} tokens, {limit}")

    def _plan(self, ready: Sequence[_Ready]) -> Iterable[list[_Ready]]:
        try:
            groups = self._tracer.plan([r.encoded for r in ready])
        except Exception as error:
            self._log.failure(error, at="plan", items=len(ready))
            return [[r] for r in ready]
        return [[ready[i] for i in group] for group in groups]

    def _decide(self, group: Sequence[_Ready], read: Read) -> None:
        start = time.perf_counter()
        try:
            decisions = self._tracer.decide([r.encoded for r in group], read)
        except Exception as error:
            if len(group) == 1:
                self._fail(group[0].job, error)
                return
            self._log.event("apart", items=len(group), error=type(error).__name__)
            for one in group:
                self._decide([one], read)
            return
        self._metrics.batch_items.observe(len(group))
        self._metrics.batch_seconds.observe(time.perf_counter() - start)
        for ready, decision in zip(group, decisions, strict=True):
            self._metrics.decided(decision)
            ready.job.future.set_result(decision)

    def _call(self, job: Job, call: Callable[[], Any]) -> None:
        try:
            result = call()
        except Exception as error:
            self._fail(job, error)
        else:
            job.future.set_result(result)

    def _fail(self, job: Job, error: Exception) -> None:
        if not isinstance(error, TraceError):
            self._log.failure(error, at="item")  # in full; the client is told in short
            error = Refusal.of(error)
        job.future.set_exception(error)
