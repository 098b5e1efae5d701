"""Questions about one input, answered in one pass for every dialect, within limits."""

import asyncio
import json
import os.path
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from lastword.decide.answer import Answer, answer_of
from lastword.decide.answerers import Query
from lastword.decide.batch import Read
from lastword.decide.item import Input, text_of
from lastword.decide.questionnaire import Questionnaire, singles
from lastword.decide.served import Served
from lastword.errors import InputError, ItemError
from lastword.files.strict_json import strict
from lastword.records.decision import Decision
from lastword.service.call import Call
from lastword.service.limits import (
    FEW_QUESTIONS,
    REQUEST_ITEMS,
    require_few_characters,
)
from lastword.service.refusal import Refusal
from lastword.text.prompt_template import Blind
from lastword.text.question import Question
from lastword.text.tokens import EncodedItem

# Makes a question from the served ones and the name that follows the model's name, if any.
Resolver = Callable[[Served, str | None], Question]


@dataclass(frozen=True)
class Answered:
    """The answers of one request and their reasons, by the questions' names."""

    answers: Mapping[str, Answer]
    reasons: Mapping[str, dict[str, Any]]
    usage: "Usage"


@dataclass(frozen=True)
class Usage:
    """Tokens of a request.

    Attributes:
        input: Tokens before the options, summed over questions.
        cached: Of them, those that questions share with the beginnings of earlier ones.
        output: Tokens of the options, all of which are scored.
    """

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


async def ask(
    call: Call,
    model: str,
    read_input: Callable[[], Input],
    resolvers: Mapping[str, Resolver],
    *,
    aliases: Sequence[str] = (),
    include: Sequence[str] = (),
) -> Answered:
    """Answer the questions of a body about an input, each independent of the others.

    `model` is the model's name in the body; it may end with the name of a served question. It is
    checked before the input is read.
    `include` has `trajectory` or `view` if every depth is read.

    Raises:
        Refusal: An unknown model, invalid questions, too much text, or as `Service.answer`.
    """
    served_name = call.service.require_model(model, *aliases)
    if served_name is not None and len(resolvers) > 1:
        count = f"{len(resolvers)} questions came"
        what = f"the model's name ends with the question {served_name!r}, and {count}"
        raise Refusal("invalid_body", f'{what}: name each by "question" instead')

    def make() -> dict[str, Question]:
        questions = {}
        for name, resolve in resolvers.items():
            try:
                questions[name] = resolve(call.service.decider.served, served_name)
            except InputError as error:
                raise Refusal("invalid_body", f"questions.{name:.80}: {error}") from error
        return questions

    return await answer(call, read_input(), make, include=include)


async def answer(
    call: Call,
    value: Input,
    make: Callable[[], dict[str, Question]],
    *,
    include: Sequence[str] = (),
) -> Answered:
    """Answer the questions that `make` returns, as `ask`.

    Raises:
        Refusal: Invalid questions, too much text, or as `Service.answer`.
    """
    try:
        ready, works, usage = await _plan(call, value, make, include)
        warnings = _near_misses(call, ready)
        # A few questions with no more options than an item may have wait as an item does.
        items = _items(works)
        options = sum(len(item.prompt.branches) for item in items)
        batch = len(items) > FEW_QUESTIONS or options > call.service.settings.candidates
        results = await call.service.answer(works, call.client, batch=batch)
        answers: dict[str, Answer] = {}
        reasons: dict[str, dict[str, Any]] = {}
        for work, result in zip(works, results, strict=True):
            await asyncio.sleep(0)  # other requests have a turn
            answer, written = _with_reasons(call, work, result, include)
            answers[work.name], reasons[work.name] = answer, written
            if work.name in warnings:
                written["warnings"] = [warnings[work.name]]
    except ItemError as error:
        raise Refusal.of(error) from error
    except InputError as error:  # of the questions
        raise Refusal("invalid_body", str(error)) from error
    return Answered(answers, reasons, usage)


async def _plan(
    call: Call,
    value: Input,
    make: Callable[[], dict[str, Question]],
    include: Sequence[str],
) -> tuple[Questionnaire, list[Query], Usage]:
    """Return the prepared questions, their works and their tokens; a thread reads the texts."""
    settings, decider = call.service.settings, call.service.decider
    read: Read = "all" if include else "decide"
    blind: Blind = "all" if "view" in include else "none"

    def plan() -> tuple[Questionnaire, list[Query], Usage]:
        questions, text = make(), text_of(value)
        require_few_characters(text, [*singles(questions).values()], settings)
        ready = decider.prepare(questions, warn=False)
        works = decider.plan(text, replace(ready, questions=ready.singles), read, blind)
        probed = max((work.tokens for work in works if work.probe is not None), default=0)
        items = _items(works)
        usage = Usage.of(items, probed)
        tokens = usage.input - usage.cached + usage.output
        if fault := call.service.too_many_tokens(items, tokens, REQUEST_ITEMS):
            raise fault
        return ready, works, usage

    size = len(await call.request.body())
    return await call.service.read(size, plan)


def _items(works: Sequence[Query]) -> list[EncodedItem]:
    """Return the encoded items of the questions that no probe answers."""
    return [work.item for work in works if work.probe is None and work.item is not None]


def _with_reasons(
    call: Call, work: Query, answer: Answer, include: Sequence[str]
) -> tuple[Answer, dict[str, Any]]:
    """Return the answer to give, which is the model's under shadow, and its reasons."""
    service, decision, trajectory = call.service, answer.decision, "trajectory" in include
    if work.probe is not None:
        written: dict[str, Any] = {"operator": answer.method, "likeness": answer.likeness}
        if service.oversight is not None:
            written["feedback_id"] = service.oversight.probed(answer, work)
        read = decision if answer.by is None else None  # a threshold reads one depth
        return answer, _reasons(answer, written, read if trajectory else None)
    assert isinstance(decision, Decision) and work.item is not None
    item = work.item.item
    written = service.write(decision, item, full=trajectory, request=call.id, work=work)
    if "view" in include:
        written["view"] = service.view(decision, item)
    if service.shadow:
        answer = answer_of(work.question, decision.as_base(), None)
    written |= {"seen": int(gate.value or 0)} if (gate := decision.gates.get("seen")) else {}
    return answer, _reasons(answer, written, decision if trajectory else None)


def _near_misses(call: Call, ready: Questionnaire) -> dict[str, str]:
    """Return a warning for each question that is almost a served one, and log it.

    Raises:
        Refusal: There is one, a probe or a certificate may be for the served one, and the service
            is not `lenient`.
    """
    by_question = {
        name: f"this is almost the served question {served!r}, but answered without it. Send it "
        f'exactly, or name it: "question": {json.dumps(served)}'
        for name, served in ready.near.items()
    }
    if by_question:
        served = sorted({*ready.near.values()})
        call.service.log.event("near_miss", request=call.id, served=served)
    decider = call.service.decider
    if (
        by_question
        and not call.service.settings.lenient
        and (decider.probes or decider.certificate)
    ):
        name, warning = next(iter(by_question.items()))
        raise Refusal("near_miss", f"questions.{name:.80}: {warning}")
    return {
        single: warning
        for name, warning in by_question.items()
        for single in singles({name: ready.questions[name]})
    }


def _reasons(answer: Answer, written: Mapping[str, Any], read: Decision | None) -> dict[str, Any]:
    """Return the fields of an answer that the dialects do not have; `read` at every depth."""
    reasons = {
        "method": answer.method,
        "operator": written["operator"],
        "corrected": answer.corrected,
        "calibrated": answer.calibrated,
        "deferred": answer.deferred,
        "confidence": answer.confidence,
    }
    others = ("feedback_id", "view", "likeness", "seen")
    reasons |= {name: written[name] for name in others if name in written}
    if read is not None:
        reasons["candidates"] = list(read.candidates)
        reasons["trajectory"] = written.get("trajectory", read.trajectory)
    return strict(reasons)  # type: ignore[no-any-return]
