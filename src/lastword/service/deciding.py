"""Questions about one input, answered together for any dialect: within bounds, each by itself."""

import asyncio
from bisect import bisect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lastword.decisions import Answers, Question, Questionnaire, answer_of, text_of
from lastword.decisions.item import Input
from lastword.errors import InputError, ItemError
from lastword.files.strict_json import strict
from lastword.service.call import Call
from lastword.service.correction import Corrector
from lastword.service.orders import Promise, characters
from lastword.service.refusal import Refusal
from lastword.text.items import Item
from lastword.text.tokens import Encoded, Tokenizer, token_counts

MOST_QUESTIONS = 400
_AT_ONCE = 512  # options of a request that are written while others wait
_SHORT = 2**14  # characters of an input that is read while others wait
_REQUEST = 4  # requests of questions may be as large as so many items, in characters and tokens
_TOKENS_A_CHARACTER = 4  # at most, of the usual tokenizers


@dataclass(frozen=True)
class Answered:
    """The answers of one request.

    Attributes:
        answers: By the questions' names.
        reasons: What stands beside each answer, by the questions' names.
        encoded: The items as tokens, in the questions' order.
    """

    answers: Answers
    reasons: Mapping[str, dict[str, Any]]
    encoded: tuple[Encoded, ...]

    @property
    def input_tokens(self) -> int:
        """Tokens before the options, of each question."""
        return sum(encoded.prompt_tokens for encoded in self.encoded)

    @property
    def cached_tokens(self) -> int:
        """Of those, what a question shares with the beginning of an earlier one."""
        shared, earlier = 0, list[tuple[int, ...]]()  # sorted: of all, a neighbour shares the most
        for encoded in self.encoded:
            prompt = encoded.sequences[0][: encoded.prompt_tokens]
            place = bisect(earlier, prompt)
            near = earlier[max(place - 1, 0) : place + 1]
            shared += max((_common(prompt, other) for other in near), default=0)
            earlier.insert(place, prompt)
        return shared

    @property
    def output_tokens(self) -> int:
        """Tokens of the options, all of which are scored."""
        return sum(sum(encoded.candidate_tokens) for encoded in self.encoded)


async def answer(
    call: Call,
    value: Input,
    questions: Mapping[str, Question] | Questionnaire,
    *,
    trajectory: bool = False,
) -> Answered:
    """Answers to questions about an input, none of which knows of the others.

    Args:
        call: The request.
        value: The input.
        questions: By name, or made ready.
        trajectory: Whether every depth is read, and told among the reasons.

    Raises:
        Refusal: Too many questions, too much text, too many tokens, or as `Corrector.result`.
        InputError: What cannot be asked.
    """
    corrector = call.corrector
    asked = questions.questions if isinstance(questions, Questionnaire) else questions
    short = isinstance(value, str) and len(value) <= _SHORT
    if short and sum(len(question.options) for question in asked.values()) <= _AT_ONCE:
        items = bounded(corrector, value, questions)
    else:
        items = await call.service.beside(bounded, corrector, value, questions)
    promises: list[Promise] = []
    try:
        for place, item in enumerate(items):
            promises.append(await _start(call, item, place, trajectory=trajectory))
        decisions = [await call.result(promise) for promise in promises]
    finally:
        for promise in promises:
            promise.cancel()
    encoded = tuple(promise.encoded for promise in promises if promise.encoded is not None)
    answers, reasons = Answers(), {}
    for (name, question), item, made in zip(asked.items(), items, decisions, strict=True):
        await asyncio.sleep(0)  # others have their turn
        told = corrector.write(made, item, full=trajectory, request=call.id)
        shown = made.as_base() if corrector.shadow else made
        temperature = None if corrector.shadow else corrector.tracer.temperature
        answers[name] = answer_of(question, shown, temperature)
        reasons[name] = _reasons(answers[name], told, trajectory=trajectory)
    return Answered(answers, reasons, encoded)


def bounded(
    corrector: Corrector, value: Input, questions: Mapping[str, Question] | Questionnaire
) -> list[Item]:
    """The items of all questions about an input, in order, where they are not too much to ask.

    Args:
        corrector: Who will answer.
        value: The input.
        questions: By name, or made ready.

    Raises:
        Refusal: Too many questions, too much text, or too many tokens of work.
        InputError: What cannot be asked.
    """
    asked = questions.questions if isinstance(questions, Questionnaire) else questions
    if len(asked) > MOST_QUESTIONS:
        what = f"there are {len(asked)} questions, a request takes {MOST_QUESTIONS}"
        raise Refusal("invalid_body", f"{what}: send them in parts")
    items = corrector.tracer.prepare(questions).items(value)
    trimmed = [corrector.tracer.trim(item) for item in items]
    _require_little(corrector, text_of(value), items)  # trimmed ones lack the question alone
    _require_short(sum(map(characters, trimmed)), _REQUEST * corrector.settings.characters)
    return items


async def _start(call: Call, item: Item, place: int, *, trajectory: bool) -> Promise:
    """Queue a question; a full queue refuses the first, and the others wait for a place."""
    read = "all" if trajectory else "decide"
    if place == 0:
        return call.corrector.start(item, read, bounded=True)  # type: ignore[arg-type]
    number = id(call)
    return await call.corrector.start_patiently(item, read, number, bounded=True)  # type: ignore[arg-type]


def _require_little(corrector: Corrector, text: str, items: Sequence[Item]) -> None:
    """Refuse a request of too much work, before any of it is begun."""
    parts = [text, *(p for item in items for p in (item.blind_prompt or "", *item.candidates))]
    limit = _REQUEST * corrector.settings.tokens
    if _TOKENS_A_CHARACTER * sum(map(len, parts)) <= limit:
        return
    work = _tokens(parts, corrector.tracer.tokenizer)
    if work > limit:
        what = f"{work} tokens of work, the input once, each question and each option"
        raise Refusal("too_many_tokens", f"{what}: a request takes {limit}; send it in parts")


def _tokens(texts: Sequence[str], tokenizer: Tokenizer) -> int:
    """Tokens of texts, each of which is read once however often it comes."""
    distinct = list(dict.fromkeys(texts))
    each = dict(zip(distinct, token_counts(distinct, tokenizer), strict=True))
    return sum(each[text] for text in texts)


def _require_short(count: int, limit: int) -> None:
    """Refuse a request whose text would take long to read."""
    if count > limit:
        what = f"{count} characters, the input counted with every option of every question"
        raise Refusal("too_many_characters", f"{what}: a request takes {limit}; send it in parts")


def _reasons(answer: Any, told: Mapping[str, Any], *, trajectory: bool) -> dict[str, Any]:
    """What we say of an answer that the dialects do not."""
    reasons = {
        "method": answer.method,
        "operator": told["operator"],
        "corrected": answer.corrected,
        "calibrated": answer.calibrated,
        "deferred": answer.deferred,
        "confidence": answer.confidence,
    }
    if (seen := answer.decision.gates.get("seen")) is not None:
        reasons["seen"] = int(seen.value)
    if "feedback_id" in told:
        reasons["feedback_id"] = told["feedback_id"]
    if trajectory:
        reasons["candidates"] = list(answer.decision.candidates)
        reasons["trajectory"] = told["trajectory"]
    return strict(reasons)  # type: ignore[no-any-return]


def _common(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    pairs = enumerate(zip(one, other, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(one), len(other)))


def refused(error: Exception) -> Refusal:
    """An error of the questions as a refusal of the body."""
    if isinstance(error, InputError) and not isinstance(error, ItemError):
        return Refusal("invalid_body", str(error))
    return Refusal.of(error)
