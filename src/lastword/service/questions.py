"""Questions about one input, answered in one pass for every dialect, within limits."""

import asyncio
import json
import os.path
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from lastword.decide.answer import Answer, answer_of
from lastword.decide.answerers import Query
from lastword.decide.batch import Read
from lastword.decide.item import Input, text_of
from lastword.decide.questionnaire import singles
from lastword.decide.served import Served
from lastword.errors import InputError, ItemError
from lastword.files.strict_json import strict
from lastword.records.decision import Decision
from lastword.service.call import Call
from lastword.service.limits import FEW_QUESTIONS, REQUEST_ITEMS, require_few_characters
from lastword.service.refusal import Refusal
from lastword.service.schema import Object
from lastword.text.question import Question
from lastword.text.tokens import EncodedItem

Make = Callable[[Served], dict[str, Question]]  # makes questions, of the served ones or new ones


@dataclass(frozen=True)
class Usage:
    """Tokens of a request: `input` before the options, of them `cached` ones, and `output`."""

    input: int
    cached: int
    output: int

    @classmethod
    def of(cls, items: Sequence[EncodedItem], probed: int) -> "Usage":
        """Return the usage of the model's items, and of the tokens that a probe reads."""
        prompts = [encoded.prompt for encoded in items]
        # In sorted order, a prompt shares the most with its neighbour.
        ordered = sorted(p.branches[0].tokens[: p.prompt_tokens] for p in prompts)
        return cls(
            probed + sum(prompt.prompt_tokens for prompt in prompts),
            sum(len(os.path.commonprefix(pair)) for pair in pairwise(ordered)),
            sum(sum(prompt.candidate_tokens) for prompt in prompts),
        )


@dataclass(frozen=True)
class Replies:
    """The answers of one request and their reasons, by the questions' names."""

    usage: Usage
    answers: dict[str, Answer] = field(default_factory=dict)
    reasons: dict[str, Object] = field(default_factory=dict)


async def answer(call: Call, value: Input, make: Make, *, full: bool = False) -> Replies:
    """Answer the questions that `make` returns about an input, each independent of the others.

    With `full`, every depth is read and the trajectory is a reason.

    Raises:
        Refusal: Invalid questions, too much text, or as `Service.answer`.
    """
    try:
        works, usage = await _plan(call, value, make, full)
        # A few questions with no more options than an item may have wait as an item does.
        items = _items(works)
        options = sum(len(item.prompt.branches) for item in items)
        batch = len(items) > FEW_QUESTIONS or options > call.service.settings.candidates
        results = await call.service.answer(works, call.client, batch=batch)
        replies = Replies(usage)
        for work, result in zip(works, results, strict=True):
            await asyncio.sleep(0)  # other requests have a turn
            given, reasons = _reply(call, work, result, full)
            replies.answers[work.name], replies.reasons[work.name] = given, reasons
    except ItemError as error:
        raise Refusal.of(error) from error
    except InputError as error:  # of the questions
        raise Refusal("invalid_body", str(error)) from error
    return replies


async def _plan(call: Call, value: Input, make: Make, full: bool) -> tuple[list[Query], Usage]:
    """Return the works of the questions and their tokens; a thread reads the texts."""
    service, decider = call.service, call.service.decider
    read: Read = "all" if full else "decide"

    def plan() -> tuple[list[Query], Usage]:
        questions, text = make(decider.served), text_of(value)
        require_few_characters(text, [*singles(questions).values()], service.settings)
        ready = decider.prepare(questions, warn=False)
        limited = bool(decider.probes or decider.certificate) and not service.settings.lenient
        if ready.near and limited:
            _refuse_near_miss(*next(iter(ready.near.items())))
        works = decider.plan(text, replace(ready, questions=ready.singles), read)
        probed = max((work.tokens for work in works if work.probe is not None), default=0)
        usage = Usage.of(_items(works), probed)
        service.require_few_tokens(usage.input - usage.cached + usage.output, REQUEST_ITEMS)
        return works, usage

    return await service.read(call.size, plan)


def _refuse_near_miss(name: str, served: str) -> None:
    """Refuse a question that is almost a served one: its probe or certificate would not apply."""
    what = f"this is almost the served question {served!r}, which alone has a probe or certificate"
    how = f'Send it exactly, or name it: "question": {json.dumps(served)}'
    raise Refusal("near_miss", f"questions.{name:.80}: {what}. {how}")


def _items(works: Sequence[Query]) -> list[EncodedItem]:
    """Return the encoded items of the questions that no probe answers."""
    return [work.item for work in works if work.probe is None and work.item is not None]


def _reply(call: Call, work: Query, answer: Answer, full: bool) -> tuple[Answer, Object]:
    """Return the answer to give and its reasons."""
    service, decision, given = call.service, answer.decision, _given(call, work, answer)
    if work.probe is not None:
        written: Object = {"operator": answer.method, "likeness": answer.likeness}
        if service.oversight is not None:
            written["feedback_id"] = service.oversight.probed(answer, work)
        read = decision if answer.by is None else None  # a threshold reads one depth
        return given, _reasons(given, written, read if full else None)
    assert decision is not None and work.item is not None
    written = service.write(decision, work.item.item, full=full, request=call.id, work=work)
    written |= {"seen": int(gate.value or 0)} if (gate := decision.gates.get("seen")) else {}
    return given, _reasons(given, written, decision if full else None)


def _given(call: Call, work: Query, answer: Answer) -> Answer:
    """Return the answer; under shadow the model's, or a deferred one if it did not answer."""
    if not call.service.shadow:
        return answer
    if answer.decision is None:
        return replace(answer, deferred=True)
    return answer_of(work.question, answer.decision.as_base(), None)


def _reasons(answer: Answer, written: Object, read: Decision | None) -> Object:
    """Return the fields of an answer that the dialects do not have; `read` at every depth."""
    names = ("method", "corrected", "calibrated", "deferred", "confidence")
    reasons: Object = {name: getattr(answer, name) for name in names}
    kept = ("operator", "feedback_id", "likeness", "seen")
    reasons |= {name: written[name] for name in kept if name in written}
    if read is not None:
        reasons["candidates"] = list(read.candidates)
        reasons["trajectory"] = written.get("trajectory", read.trajectory)
    return dict(strict(reasons))
