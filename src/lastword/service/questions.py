"""Questions about one input, answered in one pass for every dialect, within limits."""

import asyncio
import json
import os.path
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any, cast

from lastword.decide.answer import Probed, SingleAnswer, answer_of
from lastword.decide.item import Input, candidates_of, text_of
from lastword.decide.plan import Part, Plan
from lastword.decide.questionnaire import Questionnaire, singles
from lastword.decide.served import Served
from lastword.errors import InputError, ItemError
from lastword.files.strict_json import strict
from lastword.records.decision import Decision
from lastword.service.call import Call
from lastword.service.refusal import Refusal
from lastword.service.service import Service, require_distinct
from lastword.service.settings import LONG
from lastword.text.question import Question, Single
from lastword.text.tokenizer import Tokenizer, count_tokens, token_counts
from lastword.text.tokens import EncodedItem

MOST_QUESTIONS = 400
_MOST_WARNINGS = 8  # near misses of a request that the log and the header name
_FEW_ITEMS = 8  # questions that wait in the lane of single items
_REQUEST_ITEMS = 4  # a request may have as many characters and tokens as this number of items
_ITEM_CHARACTERS = 2**21  # default limit per item; questions are tokenised in pieces
_PIECE_CHARACTERS = 2**17
_TEXT_CHARACTERS = 256  # that a tokenizer reads in the time of one call
_TOKENS_PER_CHARACTER = 4  # maximum of the usual tokenizers

# Makes a question from the served ones and the name that follows the model's name, if any.
Resolver = Callable[[Served, str | None], Question]


@dataclass(frozen=True)
class Answered:
    """The answers of one request and their reasons, by the questions' names."""

    answers: Mapping[str, SingleAnswer]
    reasons: Mapping[str, dict[str, Any]]
    encoded: tuple[EncodedItem, ...]  # in the questions' order; of those that no probe answers
    probed: int = 0  # tokens of the input, where a probe has read it

    @property
    def input_tokens(self) -> int:
        """The number of tokens before the options, summed over questions."""
        return self.probed + sum(encoded.prompt.prompt_tokens for encoded in self.encoded)

    @property
    def cached_tokens(self) -> int:
        """The number of tokens that questions share with the beginnings of earlier ones.

        In sorted order, a prompt shares the most with its neighbour.
        """
        prompts = [encoded.prompt for encoded in self.encoded]
        ordered = sorted(p.branches[0].tokens[: p.prompt_tokens] for p in prompts)
        return sum(len(os.path.commonprefix(pair)) for pair in pairwise(ordered))

    @property
    def output_tokens(self) -> int:
        """The number of tokens of the options, all of which are scored."""
        return sum(sum(encoded.prompt.candidate_tokens) for encoded in self.encoded)


async def ask(
    call: Call,
    model: str,
    read_input: Callable[[], Input],
    resolvers: Mapping[str, Resolver],
    *,
    aliases: Sequence[str] = (),
    include: Sequence[str] = (),
    most: int = MOST_QUESTIONS,
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

    return await answer(call, read_input(), make, include=include, most=most)


async def answer(
    call: Call,
    value: Input,
    make: Callable[[], dict[str, Question]],
    *,
    include: Sequence[str] = (),
    most: int = MOST_QUESTIONS,
) -> Answered:
    """Answer the questions that `make` returns, as `ask`.

    Raises:
        Refusal: Invalid questions, too much text, or as `Service.answer`.
    """
    try:
        plan, warnings, probed_tokens = await _plan(call, value, make, include, most)
        # A few questions with no more options than an item may have wait as an item does.
        parts = [part for part in plan.parts if part.probe is None]
        items = tuple(part.item for part in parts if part.item is not None)
        options = sum(len(item.prompt.branches) for item in items)
        batch = len(items) > _FEW_ITEMS or options > call.service.settings.candidates
        results = await call.service.answer(plan, call.client, batch=batch)
        answers: dict[str, SingleAnswer] = {}
        reasons: dict[str, dict[str, Any]] = {}
        for part in plan.parts:
            await asyncio.sleep(0)  # other requests have a turn
            result = cast(SingleAnswer, results[part.name])
            answer, written = _with_reasons(call, part, result, plan, include)
            answers[part.name], reasons[part.name] = answer, written
            if part.name in warnings:
                written["warnings"] = [warnings[part.name]]
    except ItemError as error:
        raise Refusal.of(error) from error
    except InputError as error:  # of the questions
        raise Refusal("invalid_body", str(error)) from error
    return Answered(answers, reasons, items, probed_tokens)


async def _plan(
    call: Call,
    value: Input,
    make: Callable[[], dict[str, Question]],
    include: Sequence[str],
    most: int,
) -> tuple[Plan, dict[str, str], int]:
    """Return the plan, warnings by question, and the number of tokens that a probe reads.

    All text is read in the reader's thread. Long work is split, so that others have turns.
    """
    service, decider = call.service, call.service.decider

    def read() -> tuple[str, Questionnaire, dict[str, str], int]:
        questions, text = make(), text_of(value)
        _require_small(service, text, singles(questions), most)
        ready = decider.prepare(questions, warn=False)
        warnings = _near_misses(call, ready)
        has_probe = any(decider.probe_of(question) is not None for question in questions.values())
        tokens = count_tokens(text, decider.tracer.tokenizer) if has_probe else 0
        return text, replace(ready, questions=ready.singles), warnings, tokens

    size = len(await call.request.body())
    if size > LONG:
        texts = await service.read(call.client, size, lambda: _texts_of(make(), value))
        await service.require_short(call.client, texts)
    text, ready, warnings, tokens = await service.read(call.client, size, read)
    plan = Plan(text, ready.questions, (), trajectory=bool(include))
    scope: dict[str, Any] = {
        "read": "all" if include else "decide",
        "blind": "all" if "view" in include else "none",
    }
    for piece, characters in _pieces(ready, text):
        work = partial(decider.plan, text, piece, **scope)
        piece_plan = await service.read(call.client, max(size, characters), work)
        plan = replace(plan, parts=(*plan.parts, *piece_plan.parts))
    return plan, warnings, tokens


def _with_reasons(
    call: Call, part: Part, answer: SingleAnswer, plan: Plan, include: Sequence[str]
) -> tuple[SingleAnswer, dict[str, Any]]:
    """Return the answer to give, which is the model's under shadow, and its reasons."""
    service, decision, trajectory = call.service, answer.decision, "trajectory" in include
    if part.probe is not None:
        written: dict[str, Any] = {"operator": answer.method}
        if service.oversight is not None:
            written["feedback_id"] = service.oversight.probed(answer, part, plan.text)
        return answer, _reasons(answer, written, trajectory=trajectory)
    assert isinstance(decision, Decision) and part.item is not None
    item = part.item.item
    written = service.write(decision, item, full=trajectory, request=call.id, value=plan.text)
    if "view" in include:
        written["view"] = service.view(decision, item)
    if service.shadow:
        answer = answer_of(part.question, decision.as_base(), None)
    return answer, _reasons(answer, written, trajectory=trajectory)


def _near_misses(call: Call, ready: Questionnaire) -> dict[str, str]:
    """Return a warning for each question that is almost a served one, and log it."""
    if not ready.near:
        return {}
    messages = [f"almost the question {json.dumps(name)}" for name in ready.near.values()]
    warnings = [*dict.fromkeys(messages)][:_MOST_WARNINGS]  # in ASCII, without texts of clients
    call.service.log.event("near_miss", request=call.id, told=warnings)
    call.request.scope["state"]["warnings"] = "; ".join(warnings)  # for the header
    by_question = {
        name: f"This is almost the served question {served!r}, but answered without it. Send it "
        f'exactly, or name it: "question": {json.dumps(served)}'
        for name, served in ready.near.items()
    }
    if call.service.settings.strict:
        name, warning = next(iter(by_question.items()))
        raise Refusal("near_miss", f"questions.{name:.80}: {warning}")
    return {
        single: warning
        for name, warning in by_question.items()
        for single in singles({name: ready.questions[name]})
    }


def _pieces(ready: Questionnaire, text: str) -> Iterator[tuple[Questionnaire, int]]:
    """Yield the questions in pieces of a tenth of a second of tokenising, and their characters."""
    piece, size = dict[str, Question](), 0
    for name, question in ready.questions.items():
        prompt = _TEXT_CHARACTERS + len(text) + len(question.instructions)
        work = prompt * (1 + len(question.options))
        if piece and size + work > _PIECE_CHARACTERS:
            yield replace(ready, questions=piece), size
            piece, size = {}, 0
        piece[name], size = question, size + work
    yield replace(ready, questions=piece), size


def _texts_of(questions: Mapping[str, Question], value: Input) -> list[str]:
    options = [option for question in questions.values() for option in question.options]
    described = [option.description or "" for option in options]
    instructions = [question.instructions for question in questions.values()]
    return [text_of(value), *instructions, *described, *(option.text for option in options)]


def _require_small(service: Service, text: str, questions: Mapping[str, Single], most: int) -> None:
    """Refuse questions that are too much work, before any prompt is written."""
    if len(questions) > most:
        what = f"there are {len(questions)} questions, a request takes {most}"
        raise Refusal("invalid_body", f"{what}: send them in parts")
    settings = service.settings
    count, limit = 0, _REQUEST_ITEMS * (settings.characters or _ITEM_CHARACTERS)
    groups = [[text]]
    for question in questions.values():
        options = candidates_of(question)
        require_distinct(options)
        described = [option.description or "" for option in question.options]
        frame = len(text) + len(question.instructions) + sum(map(len, described))
        count += sum(frame + len(option) for option in options)
        if count > limit:
            what = f"{count} characters, the input counted with every option of every question"
            more = f"a request takes {limit}; send it in parts"
            raise Refusal("too_many_characters", f"{what}: {more}")
        groups.append([question.instructions, *described, *options])
    _require_few_tokens(service.decider.tracer.tokenizer, groups, settings.tokens)


def _require_few_tokens(
    tokenizer: Tokenizer, groups: Sequence[Sequence[str]], item_tokens: int
) -> None:
    """Refuse texts of too many tokens; a repeated text is tokenised once.

    Nothing is tokenised if all texts together are too short for the limit.
    """
    limit = _REQUEST_ITEMS * item_tokens
    if _TOKENS_PER_CHARACTER * sum(len(text) for texts in groups for text in texts) <= limit:
        return
    counts: dict[str, int] = {}
    tokens = 0
    for texts in groups:
        new = [text for text in dict.fromkeys(texts) if text not in counts]
        counts |= zip(new, token_counts(new, tokenizer), strict=True)
        tokens += sum(counts[text] for text in texts)
        if tokens > limit:
            what = f"{tokens} tokens of work, the input once, each question and each option"
            more = f"a request takes {limit}; send it in parts"
            raise Refusal("too_many_tokens", f"{what}: {more}")


def _reasons(
    answer: SingleAnswer, written: Mapping[str, Any], *, trajectory: bool
) -> dict[str, Any]:
    """Return the fields of an answer that the dialects do not have."""
    reasons = {
        "method": answer.method,
        "operator": written["operator"],
        "corrected": answer.corrected,
        "calibrated": answer.calibrated,
        "deferred": answer.deferred,
        "confidence": answer.confidence,
    }
    reasons |= {name: written[name] for name in ("feedback_id", "view") if name in written}
    decision = answer.decision
    if isinstance(decision, Probed):
        reasons["likeness"] = decision.likeness
    elif (gate := decision.gates.get("seen")) is not None:
        reasons["seen"] = int(gate.value or 0)
    if trajectory and decision.trajectory is not None:
        reasons["candidates"] = list(decision.candidates)
        reasons["trajectory"] = written.get("trajectory", decision.trajectory)
    return strict(reasons)  # type: ignore[no-any-return]
