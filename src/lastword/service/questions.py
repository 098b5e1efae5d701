"""Questions about one input, answered in one pass for every dialect, within limits."""

import asyncio
import json
import os.path
from bisect import bisect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

from lastword.decide.answer import ChoiceAnswer, Probed, ScoreAnswer, SingleAnswer, answer_of
from lastword.decide.item import Input, candidates_of, text_of
from lastword.decide.plan import Part, Plan
from lastword.decide.questionnaire import Questionnaire, singles
from lastword.errors import InputError, ItemError
from lastword.files.strict_json import strict
from lastword.records.decision import Decision
from lastword.service.call import Call
from lastword.service.corrector import LONG, Corrector
from lastword.service.refusal import Refusal
from lastword.text.question import Question, Single
from lastword.text.tokens import EncodedItem, count_tokens, token_counts

MOST_QUESTIONS = 400
_MOST_TOLD = 8  # near misses of a request that the log and the header name
_FEW = 8  # questions that may have places as single items have
_REQUEST = 4  # requests of questions may be as large as so many items, in characters and tokens
_CHARACTERS = 2**21  # of one of these items by default: questions are tokenised in pieces
_PIECE = 2**17  # characters of one
_TOKENS_A_CHARACTER = 4  # at most, of the usual tokenizers


@dataclass(frozen=True)
class Answered:
    """The answers of one request and their reasons, by the questions' names."""

    answers: Mapping[str, SingleAnswer]
    reasons: Mapping[str, dict[str, Any]]
    encoded: tuple[EncodedItem, ...]  # in the questions' order; of those that no probe answers
    probed: int = 0  # tokens of the input, where a probe has read it

    @property
    def input_tokens(self) -> int:
        """Return the tokens before the options, of each question."""
        return self.probed + sum(encoded.prompt.prompt_tokens for encoded in self.encoded)

    @property
    def cached_tokens(self) -> int:
        """Return the tokens that a question shares with the beginning of an earlier one."""
        shared, earlier = 0, list[tuple[int, ...]]()  # sorted: of all, a neighbour shares the most
        for encoded in self.encoded:
            prompt = encoded.prompt.branches[0].tokens[: encoded.prompt.prompt_tokens]
            place = bisect(earlier, prompt)
            near = earlier[max(place - 1, 0) : place + 1]
            shared += max((len(os.path.commonprefix([prompt, other])) for other in near), default=0)
            earlier.insert(place, prompt)
        return shared

    @property
    def output_tokens(self) -> int:
        """Return the tokens of the options, all of which are scored."""
        return sum(sum(encoded.prompt.candidate_tokens) for encoded in self.encoded)


async def answer(
    call: Call,
    value: Input,
    make: Callable[[], dict[str, Question]],
    *,
    include: Sequence[str] = (),
    most: int = MOST_QUESTIONS,
) -> Answered:
    """Answer questions about an input, each independent of the others.

    Raises:
        Refusal: Too many questions, too much text, what cannot be asked, or as `Corrector.decide`.
    """
    try:
        return await _answered(call, value, make, include, most)
    except ItemError as error:
        raise Refusal.of(error) from error
    except InputError as error:  # of the questions
        raise Refusal("invalid_body", str(error)) from error


def one_named(name: str | None, count: int) -> str | None:
    """Return the question that the model's name ends with.

    Raises:
        Refusal: A request has several, and it is unclear which is meant.
    """
    if name is not None and count > 1:
        what = f"the model's name ends with the question {name!r}, and {count} questions came"
        raise Refusal("invalid_body", f'{what}: name each by "question" instead')
    return name


def questions_of(makers: Mapping[str, Callable[[], Question]]) -> dict[str, Question]:
    """Make questions, by name; an error names the question.

    Raises:
        Refusal: One that cannot be made.
    """
    questions = dict[str, Question]()
    for name, make in makers.items():
        try:
            questions[name] = make()
        except InputError as error:
            raise Refusal("invalid_body", f"questions.{name:.80}: {error}") from error
    return questions


async def _answered(
    call: Call,
    value: Input,
    make: Callable[[], dict[str, Question]],
    include: Sequence[str],
    most: int,
) -> Answered:
    corrector, trajectory, view = call.corrector, "trajectory" in include, "view" in include

    def read() -> tuple[str, Questionnaire, dict[str, str], int]:
        questions, text = make(), text_of(value)
        require_small(corrector, text, singles(questions), most)
        ready = corrector.decider.prepare(questions, warn=False)
        near, decider = _heed(call, ready), corrector.decider
        probed = any(decider.probe_of(question) is not None for question in questions.values())
        tokens = count_tokens(text, decider.tracer.tokenizer) if probed else 0
        return text, replace(ready, questions=ready.singles), near, tokens

    size = len(await call.request.body())
    if size > LONG:
        texts = await corrector.read(call.client, size, lambda: _texts_of(make(), value))
        await corrector.require_short(call.client, texts)
    text, ready, near, probed_tokens = await corrector.read(call.client, size, read)
    plan = Plan(text, ready.questions, (), trajectory=bool(include))
    for some, work in _pieces(ready, text):  # others have their turns in between
        how: dict[str, Any] = {"read": "all" if include else "decide"}
        how |= {"blind": "all" if view else "none"}
        piece_plan = await corrector.read(
            call.client, max(size, work), partial(corrector.decider.plan, text, some, **how)
        )
        plan = replace(plan, parts=(*plan.parts, *piece_plan.parts))
    # Few questions with no more options than an item may have wait as an item does.
    items = [part.item for part in plan.parts if part.item is not None and part.probe is None]
    options = sum(len(item.prompt.branches) for item in items)
    batch = len(items) > _FEW or options > corrector.settings.candidates
    results = await corrector.answer(plan, call.client, batch=batch)
    answers: dict[str, SingleAnswer] = {}
    reasons: dict[str, dict[str, Any]] = {}
    for part in plan.parts:
        await asyncio.sleep(0)  # others have their turn
        answer = cast(SingleAnswer, results[part.name])
        if part.probe is None:
            answer, written = _of_model(
                call, part, answer, plan.text, trajectory=trajectory, view=view
            )
        else:
            written = {"operator": answer.method}
            if corrector.oversight is not None:
                written["feedback_id"] = corrector.oversight.probed(answer, part, plan.text)
        answers[part.name] = answer
        reasons[part.name] = _reasons(answer, written, trajectory=trajectory)
        if part.name in near:
            reasons[part.name]["warnings"] = [near[part.name]]
    return Answered(answers, reasons, tuple(items), probed_tokens)


def _heed(call: Call, ready: Questionnaire) -> dict[str, str]:
    """Return a warning for each question that is almost a served one, and log it."""
    if not ready.near:
        return {}
    messages = [
        f"almost the question {json.dumps(miss.served)}: {', '.join(miss.differences)} differ"
        for miss in ready.near.values()
    ]
    call.warn("near_miss", [*dict.fromkeys(messages)][:_MOST_TOLD])
    by_question = {
        name: f'This is {miss}. Send it exactly, or name it: "question": {json.dumps(miss.served)}'
        for name, miss in ready.near.items()
    }
    if call.corrector.settings.strict:
        name, warning = next(iter(by_question.items()))
        raise Refusal("near_miss", f"questions.{name:.80}: {warning}")
    return {
        single: warning
        for name, warning in by_question.items()
        for single in singles({name: ready.questions[name]})
    }


def _of_model(
    call: Call, part: Part, answer: SingleAnswer, text: str, *, trajectory: bool, view: bool
) -> tuple[SingleAnswer, dict[str, Any]]:
    corrector, decision = call.corrector, answer.decision
    assert isinstance(decision, Decision) and part.item is not None
    item = part.item.item
    written = corrector.write(decision, item, full=trajectory, request=call.id, value=text)
    if view:
        written["view"] = corrector.view(decision, item)
    if corrector.shadow:
        answer = answer_of(part.question, decision.as_base(), None)
    return answer, written


def _pieces(ready: Questionnaire, text: str) -> Iterator[tuple[Questionnaire, int]]:
    """Yield the questions in pieces of a tenth of a second of tokenising, and their size."""
    piece, size = dict[str, Question](), 0
    for name, question in ready.questions.items():
        work = (len(text) + len(question.instructions)) * (1 + len(question.options))
        if piece and size + work > _PIECE:
            yield replace(ready, questions=piece), size
            piece, size = {}, 0
        piece[name], size = question, size + work
    yield replace(ready, questions=piece), size


def _texts_of(questions: Mapping[str, Question], value: Input) -> list[str]:
    options = [option for question in questions.values() for option in question.options]
    described = [option.description or "" for option in options]
    instructions = [question.instructions for question in questions.values()]
    return [text_of(value), *instructions, *described, *(option.text for option in options)]


def keyed(answer: SingleAnswer, confidence: float, levels: Any = None) -> dict[str, Any]:
    """Return a choice or a score in the form that TypeSafe and Google share, keyed by text.

    The legend of a score has the request's levels, or the answer's labels if there are none.
    """
    shares = answer.probabilities.tolist()
    written: dict[str, Any] = {"type": "score"}
    names: Sequence[Any] = range(len(shares))
    if isinstance(answer, ChoiceAnswer):
        written, names = {"type": "choice", "choice": answer.choice}, answer.values
    elif isinstance(answer, ScoreAnswer):
        written["score"] = answer.score
    written["probabilities"] = dict(zip(map(str, names), shares, strict=True))
    written["confidence"] = confidence
    if isinstance(answer, ScoreAnswer):
        written["legend"] = {str(i): level for i, level in enumerate(levels or answer.labels)}
    return written


def require_small(
    corrector: Corrector, text: str, questions: Mapping[str, Single], most: int = MOST_QUESTIONS
) -> None:
    """Refuse questions that are too much work, before any prompt is written.

    Raises:
        Refusal: Too many questions, characters or tokens.
    """
    if len(questions) > most:
        what = f"there are {len(questions)} questions, a request takes {most}"
        raise Refusal("invalid_body", f"{what}: send them in parts")
    count, limit = 0, _REQUEST * (corrector.settings.characters or _CHARACTERS)
    work = _Work(corrector)
    work.add([text])
    for question in questions.values():
        options = candidates_of(question)
        described = [option.description or "" for option in question.options]
        frame = len(text) + len(question.instructions) + sum(map(len, described))
        count += sum(frame + len(option) for option in options)
        if count > limit:
            what = f"{count} characters, the input counted with every option of every question"
            more = f"a request takes {limit}; send it in parts"
            raise Refusal("too_many_characters", f"{what}: {more}")
        work.add([question.instructions, *described, *options])


class _Work:
    """The token counts of a request's texts; a repeated text is tokenised once."""

    def __init__(self, corrector: Corrector) -> None:
        self._tokenizer = corrector.decider.tracer.tokenizer
        self._limit = _REQUEST * corrector.settings.tokens
        self._waiting: list[str] = []
        self._each: dict[str, int] = {}
        self._characters = self._tokens = 0

    def add(self, texts: Sequence[str]) -> None:
        """Add texts; they are counted once there may be too many tokens."""
        self._waiting += texts
        self._characters += sum(map(len, texts))
        if _TOKENS_A_CHARACTER * self._characters <= self._limit:
            return
        new = [text for text in dict.fromkeys(self._waiting) if text not in self._each]
        self._each |= zip(new, token_counts(new, self._tokenizer), strict=True)
        self._tokens += sum(self._each[text] for text in self._waiting)
        self._waiting = []
        if self._tokens > self._limit:
            what = f"{self._tokens} tokens of work, the input once, each question and each option"
            more = f"a request takes {self._limit}; send it in parts"
            raise Refusal("too_many_tokens", f"{what}: {more}")


def _reasons(answer: Any, written: Mapping[str, Any], *, trajectory: bool) -> dict[str, Any]:
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
    elif (seen := decision.gates.get("seen")) is not None:
        reasons["seen"] = int(seen.value)
    if trajectory and decision.trajectory is not None:
        reasons["candidates"] = list(decision.candidates)
        reasons["trajectory"] = written.get("trajectory", decision.trajectory)
    return strict(reasons)  # type: ignore[no-any-return]
