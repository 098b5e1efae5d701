"""Service: one decider behind a queue, awaited by all dialects and pages."""

import asyncio
import unicodedata
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Any, TypeVar, cast

from lastword.decide.answer import Answers, answered_by
from lastword.decide.batch import Scope
from lastword.decide.decider import Decider
from lastword.decide.plan import Plan
from lastword.decide.questions_file import read_questions
from lastword.decide.templates import template_of
from lastword.decide.tracer import Tracer
from lastword.errors import InputError, ItemError, TraceError
from lastword.files.strict_json import strict
from lastword.model.weights.identity import model_name
from lastword.records import item_view
from lastword.records.decision import Decision
from lastword.records.record import Record
from lastword.service.log import Log
from lastword.service.oversight import oversee
from lastword.service.passes import ModelOrder, Passes
from lastword.service.refusal import Refusal
from lastword.service.running import Running
from lastword.service.settings import LONG, MOST_CHARACTERS, Settings
from lastword.service.worker import Order, ReadJob, Worker, run_jobs
from lastword.text.items import Item
from lastword.text.tokenizer import count_tokens
from lastword.text.tokens import EncodedItem
from lastword.version import __version__

Result = TypeVar("Result")
_MIN_TOKEN = 16  # assumed characters of the longest token, if the vocabulary is small
_NFC_CHARACTERS = 1000  # of a normalised option, because NFC of a hostile text is slow
_SLICE = 2**12  # characters of a long text that are tokenised in one turn
_CPU_TOKENS = 1024  # tokens per pass on a CPU, because all other requests wait for it
_CLOSE_SECONDS = 2.0  # time for a thread to end, after the deadline of all requests


class Service(Running):
    """A decider behind a queue, with the service's limits.

    Attributes:
        oversight: The tests of the certificate; None without one.
        reader: The thread that tokenises text.
        model: The thread that runs the model.

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
        tracer = decider.tracer
        is_default = tracer.batch_tokens == tracer.model.batch_tokens
        if is_default and tracer.profile.device.type == "cpu":
            tracer.batch_tokens = min(tracer.batch_tokens, _CPU_TOKENS)
        self.decider = decider
        self.name = model_name(str(tracer.source["model"]))
        self._longest_text = settings.characters or _most_characters(tracer)
        self.oversight = oversee(decider.certificate, settings, self.metrics, self.log)
        self.reader = Worker[ReadJob]("lastword-text", run_jobs, self.log)
        passes = Passes(decider, self.metrics, self.log)
        model = self.model = Worker[ModelOrder](
            "lastword-model", passes.run, self.log, most=settings.batch_items, choose=passes.choose
        )
        self.metrics.served.labels(__version__, self.name).set(1)
        self.metrics.dropped_lines.set_function(lambda: self.log.dropped)
        self.metrics.oldest.set_function(model.oldest_seconds)
        self.metrics.waiting_items.set_function(lambda: model.waiting)

    def announce(self, address: str) -> None:
        """Log the certificate, or that there is none."""
        if self.decider.correction.learns:
            what = "answers depend on the requests before them; a certificate freezes the mean"
            self.log.event("learning", correction=self.decider.correction.name, told=what)
        certificate = self.decider.certificate
        if certificate is None:
            method = self.decider.method
            what = f"every override by {method} is allowed, with no guarantee"
            if method == "base":
                what = (
                    "No certificate loaded: decisions use the model's answers. /v1/correct applies "
                    "corrections without a guarantee."
                )
            self.log.event("uncertified", told=what)
        else:
            policy, date = asdict(certificate.policy), certificate.date
            self.log.event("certified", **policy, date=date)
            if self.settings.token is not None and self.settings.label_token is None:
                what = "whoever may ask may label, and raise the alarm: give --label-token"
                self.log.event("labels", told=what)

    def turn_away(self) -> None:
        """Refuse waiting items."""
        self.model.turn_away()

    @property
    def shadow(self) -> bool:
        """True if corrections are off, by request or after an alarm."""
        alarm = self.oversight is not None and self.oversight.monitor.alarm
        return self.settings.shadow or (alarm and self.settings.on_alarm == "shadow")

    @property
    def alive(self) -> bool:
        """True while both threads run."""
        return self.reader.alive and self.model.alive

    def close(self) -> None:
        """Finish waiting orders, end the threads and close the state."""
        # A list, because `all` of a generator would not close the model after a slow reader.
        self.ended = all([w.close(_CLOSE_SECONDS) for w in (self.reader, self.model)])
        if not self.ended:
            self.log.event("abandoned", waiting=self.model.waiting)
        if self.oversight is not None:
            self.oversight.close()

    async def read(self, client: Hashable, size: int, work: Callable[[], Result]) -> Result:
        """Call a function in the reader's thread and return its result.

        Args:
            client: The client, for its turn in the queue.
            size: Characters to read; many go to the lane of batches.
            work: The function.

        Raises:
            Refusal: The service is stopping.
        """
        job = ReadJob(client=client, batch=size > LONG, work=work)
        self.reader.add([job])
        result: Result = await asyncio.wrap_future(job.future)
        return result

    async def require_short(self, client: Hashable, texts: Iterable[str]) -> None:
        """Refuse texts that are too long for the model, without tokenising all of them.

        Long texts are tokenised in slices, so that other clients have turns in between. A slice
        may cut a token, so a text may have a quarter more tokens than the limit.

        Raises:
            Refusal: A text has too many characters or tokens, or the service is stopping.
        """
        tracer, limit = self.decider.tracer, self.settings.tokens
        if tracer.overflow == "error":
            limit = min(limit, tracer.profile.context or limit)
        for text in texts:
            if len(text) > self._longest_text:
                what = f"a text has {len(text)} characters, the model reads {self._longest_text}"
                raise Refusal("too_many_characters", f"{what}; shorten it")
            if len(text) <= LONG:
                continue
            count = 0
            for start in range(0, len(text), _SLICE):
                part = partial(count_tokens, text[start : start + _SLICE], tracer.tokenizer)
                count += await self.read(client, LONG + 1, part)
                if count > limit + limit // 4:
                    what = f"a text has more than {limit} tokens, which is too long"
                    raise Refusal("too_many_tokens", f"{what}; shorten it")

    async def start(
        self,
        entries: "Sequence[tuple[Item, Scope] | ItemError]",
        client: Hashable,
        *,
        batch: bool = False,
    ) -> "list[ModelOrder | TraceError]":
        """Queue items with their scopes, and return their orders or errors, in the same order.

        Args:
            entries: Items, and the errors of rows that are none.
            client: The client, for its turn in the queue.
            batch: True for the lane of batches.

        Raises:
            Refusal: The service is stopping.
        """
        checked = [await self._checked(entry, client) for entry in entries]
        items = [entry for entry in checked if isinstance(entry, Item)]
        size = sum(map(characters, items))
        encoded = iter(await self.read(client, size, lambda: self._encoded(items)))
        orders: list[ModelOrder | TraceError] = []
        for entry, item in zip(entries, checked, strict=True):
            result = next(encoded) if isinstance(item, Item) else item
            if isinstance(result, TraceError):
                orders.append(result)
                continue
            assert not isinstance(entry, ItemError)
            scope = replace(entry[1], correction=self.decider.correction)
            order = ModelOrder(client=client, batch=batch, encoded=result, scope=scope)
            orders.append(order)
        self.model.add([order for order in orders if isinstance(order, ModelOrder)])
        return orders

    async def result(self, order: "Order | TraceError") -> Any:
        """Wait for the result of a queued order, at most until its deadline.

        Raises:
            Refusal: The deadline passed.
            TraceError: What the item or the model raised.
        """
        if isinstance(order, TraceError):
            raise order
        try:
            async with asyncio.timeout_at(order.since + self.settings.deadline_seconds):
                return await asyncio.wrap_future(order.future)
        except TimeoutError as error:
            raise late(self.settings) from error

    async def answer(self, plan: Plan, client: Hashable, *, batch: bool) -> Answers:
        """Return the answers to a plan's questions, at the latest at the deadline.

        Raises:
            Refusal: The deadline passed, or the service is stopping.
            TraceError: What the model raised.
        """
        # One order per question, so that a pass can mix the questions of several requests.
        orders = [_plan_order(part, client, batch) for part in plan.split()]
        self.model.add(orders)
        answers = Answers()
        try:
            for order in orders:
                answers |= await self.result(order)
        finally:
            cancel(orders)
        return answers

    async def _checked(
        self, entry: "tuple[Item, Scope] | ItemError", client: Hashable
    ) -> Item | TraceError:
        """Return an item without the prompts that its scope does not read, or its error."""
        if isinstance(entry, ItemError):
            return entry
        try:
            return await self._within_limits(*entry, client)
        except TraceError as error:
            return error.with_traceback(None)  # frees the item, which its frames hold

    async def _within_limits(self, item: Item, scope: Scope, client: Hashable) -> Item:
        limits, count = self.settings, len(item.candidates)
        if scope.blind != "all":
            needs = self.decider.correction.needs
            blind = item.blind_prompt if needs.blind else None
            free = item.content_free if needs.content_free else ()
            item = replace(item, blind_prompt=blind, content_free=free)
        if count > limits.candidates:
            what = f"the item has {count} candidates, the service takes {limits.candidates}"
            raise Refusal("too_many_candidates", what)
        require_distinct(item.candidates)
        limit = limits.characters or min(MOST_CHARACTERS, count * self._longest_text)
        if (size := characters(item)) > limit:
            what = f"{size} characters, the prompt counted with every candidate"
            raise Refusal("too_many_characters", f"{what}: the service takes {limit}")
        if size > LONG:
            texts = (item.prompt, item.blind_prompt or "", *item.content_free, *item.candidates)
            await self.require_short(client, texts)
        return item

    def _encoded(self, items: Sequence[Item]) -> "list[EncodedItem | TraceError]":
        """Return items as tokens, or as errors; if all fail together, each is tried alone."""
        if not items:
            return []
        try:
            return [*map(self._with_few_tokens, self.decider.encode(items))]
        except Exception as error:
            if len(items) > 1:
                return [result for item in items for result in self._encoded([item])]
            self.log.failure(error, at="tokens")
            return [Refusal.of(error)]

    def _with_few_tokens(self, encoded: "EncodedItem | TraceError") -> "EncodedItem | TraceError":
        limit = self.settings.tokens
        if isinstance(encoded, TraceError) or encoded.tokens <= limit:
            return encoded
        what = f"the item has {encoded.tokens} tokens, the service takes {limit} an item"
        return Refusal("too_many_tokens", f"{what}; shorten it")

    def require_model(self, name: str | None, *aliases: str) -> str | None:
        """Return the question's name in a model name such as `MODEL:QUESTION`, or None.

        Raises:
            Refusal: The model or the question is not served.
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
        """Return the JSON of a decision, and log it; under shadow, of the model's answer.

        Args:
            decision: The decision.
            item: Its item.
            full: True to add the trajectory and T.
            request: The request's id, for the log.
            value: The input as text, if the item's prompt was made from one.
        """
        label, content = {}, decision.to_dict(full=full)
        if self.oversight is not None:
            label["feedback_id"] = self.oversight.answered(decision, item, content, value)
        self._log_decision(decision, item, request)  # after oversight, which may raise the alarm
        if self.shadow:
            if decision.corrected:
                self.metrics.shadow.labels(decision.operator).inc()
            content = decision.as_base().to_dict(full=full)
        content["method"] = answered_by(content["method"], content["operator"])
        return content | label

    def view(self, decision: Decision, item: Item) -> dict[str, Any]:
        """Return a decision as the pages draw it: in words, and with scores at every depth."""
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
        self.log.event(
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
    """Return the maximum number of characters in the context, if every token is the longest.

    A tokenizer that drops blanks can read more; `--limits characters` then sets the limit.
    """
    context = tracer.profile.context
    vocabulary: Iterable[str] = getattr(tracer.tokenizer, "get_vocab", dict)()
    if context is None or tracer.overflow != "error":
        return MOST_CHARACTERS
    longest = max(map(len, vocabulary), default=0)
    longest = max(longest, _MIN_TOKEN)
    return min(MOST_CHARACTERS, (context + 1) * longest)


def cancel(orders: "Sequence[Order | TraceError]") -> None:
    """Cancel orders, which removes them from the queue."""
    for order in orders:
        if isinstance(order, Order):
            order.future.cancel()


def late(settings: Settings) -> Refusal:
    """Return the refusal of a request that has no answer at its deadline."""
    return Refusal("deadline", f"no answer within {settings.deadline_seconds:g} s")


def characters(item: Item) -> int:
    """Count an item's characters: its prompts once per candidate, and the candidates."""
    free = sum(len(prompt) for prompt in item.content_free)
    before = len(item.prompt) + len(item.separator) + len(item.blind_prompt or "") + free
    return sum(before + len(candidate) for candidate in item.candidates)


def require_distinct(texts: Sequence[str]) -> None:
    """Refuse two texts that Unicode spells differently, such as a composed and a decomposed é.

    Raises:
        InputError: There are two.
    """
    forms: dict[str, int] = {}
    for place, text in enumerate(texts):
        if len(text) > _NFC_CHARACTERS:
            continue
        form = text if text.isascii() else unicodedata.normalize("NFC", text)
        first = forms.setdefault(form, place)
        if texts[first] != text:
            what = f"candidates {first} and {place} are one text in two Unicode forms"
            raise InputError(f"{what}, {text!r:.80}; drop one of them")


def _plan_order(plan: Plan, client: Hashable, batch: bool) -> ModelOrder:
    part = plan.parts[0]
    if part.probe is not None:
        return ModelOrder(client=client, batch=batch, plan=plan)
    return ModelOrder(client=client, batch=batch, plan=plan, encoded=part.item, scope=part.scope)
