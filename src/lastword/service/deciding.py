"""Questions about one input, answered together for any dialect: within bounds, each by itself."""

import asyncio
from bisect import bisect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from lastword.decide.answer import ChoiceAnswer, Probed, ScoreAnswer, SingleAnswer, answer_of
from lastword.decide.batch import Scope
from lastword.decide.item import Input, candidates_of, item_of, text_of
from lastword.decide.questionnaire import singles, speaks_of, without_certificate
from lastword.errors import InputError, ItemError
from lastword.files.strict_json import strict
from lastword.probes.answering import Asked, probed
from lastword.service.call import Call
from lastword.service.correction import LONG, Corrector, characters
from lastword.service.refusal import Refusal
from lastword.text.items import Item
from lastword.text.question import Question, Single
from lastword.text.tokens import Encoded, token_counts

MOST_QUESTIONS = 400
_FEW = 8  # questions that may have places as single items have
_REQUEST = 4  # requests of questions may be as large as so many items, in characters and tokens
_TOKENS_A_CHARACTER = 4  # at most, of the usual tokenizers


@dataclass(frozen=True)
class Answered:
    """The answers of one request, and what stands beside each, by the questions' names."""

    answers: Mapping[str, SingleAnswer]
    reasons: Mapping[str, dict[str, Any]]
    encoded: tuple[Encoded, ...]  # in the questions' order; of those that no probe answers
    probed: int = 0  # tokens of the input, where a probe has read it

    @property
    def input_tokens(self) -> int:
        """Tokens before the options, of each question."""
        return self.probed + sum(encoded.prompt_tokens for encoded in self.encoded)

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
    make: Callable[[], dict[str, Question]],
    *,
    include: Sequence[str] = (),
    most: int = MOST_QUESTIONS,
) -> Answered:
    """Answer questions about an input, none of which knows of the others.

    Raises:
        Refusal: Too many questions, too much text, what cannot be asked, or as `Corrector.decide`.
    """
    try:
        return await _answered(call, value, make, include, most)
    except ItemError as error:
        raise Refusal.of(error) from error
    except InputError as error:  # of the questions
        raise Refusal("invalid_body", str(error)) from error


def questions_of(asked: Mapping[str, Callable[[], Question]]) -> dict[str, Question]:
    """Make questions, by name; what is wrong with one names it.

    Raises:
        Refusal: One that cannot be made.
    """
    made = dict[str, Question]()
    for name, make in asked.items():
        try:
            made[name] = make()
        except InputError as error:
            raise Refusal("invalid_body", f"questions.{name:.80}: {error}") from error
    return made


async def _answered(
    call: Call,
    value: Input,
    make: Callable[[], dict[str, Question]],
    include: Sequence[str],
    most: int,
) -> Answered:
    corrector, trajectory, view = call.corrector, "trajectory" in include, "view" in include

    def read() -> tuple[Mapping[str, Single], list[Item], Mapping[str, Asked]]:
        asked = singles(make())
        by_probe = probed(corrector.tracer, corrector.tracer.prepare(asked))
        items = bounded(corrector, value, asked, most)
        rest = [item for name, item in zip(asked, items, strict=True) if name not in by_probe]
        return asked, rest, by_probe

    size = int(call.request.headers.get("content-length", LONG + 1))
    asked, items, by_probe = await corrector.read(call.client, size, read)
    # Few questions with no more options than an item may have wait as an item does.
    options = sum(len(item.candidates) for item in items)
    batch = len(items) > _FEW or options > corrector.settings.candidates
    plain = corrector.tracer.decider == "base"
    scope = Scope("all" if include else "base" if plain else "decide", "all" if view else "base")
    decided = await corrector.decide(items, call.client, scope, batch=batch, bounded=True)
    answers: dict[str, SingleAnswer] = {}
    reasons: dict[str, dict[str, Any]] = {}
    tokens = 0
    if by_probe:
        known, tokens = await corrector.probed(value, by_probe, call.client, trajectory=trajectory)
        answers |= cast(Mapping[str, SingleAnswer], known)
        for name, one in by_probe.items():
            told: dict[str, Any] = {"operator": answers[name].method}
            if corrector.oversight is not None:
                told["feedback_id"] = corrector.oversight.probed(answers[name], one, text_of(value))
            reasons[name] = _reasons(answers[name], told, trajectory=trajectory)
    others = [pair for pair in asked.items() if pair[0] not in by_probe]
    certificate = corrector.tracer.certificate
    certified = () if certificate is None else certificate.questions
    for (name, question), item, (decision, _) in zip(others, items, decided, strict=True):
        await asyncio.sleep(0)  # others have their turn
        whole, decision = decision, decision.as_base() if plain else decision
        speaks = speaks_of(question, certified)
        decision = decision if speaks else without_certificate(decision)
        told = corrector.write(
            decision, item, full=trajectory, request=call.id, value=text_of(value)
        )
        if view:
            told["view"] = corrector.view(whole, item)
        shown = decision.as_base() if corrector.shadow else decision
        alone = corrector.shadow or not speaks
        temperature = None if alone else corrector.tracer.temperature
        answers[name] = answer_of(question, shown, temperature)
        reasons[name] = _reasons(answers[name], told, trajectory=trajectory)
    answers = {name: answers[name] for name in asked}
    return Answered(answers, reasons, tuple(encoded for _, encoded in decided), tokens)


def keyed(own: SingleAnswer, confidence: float) -> dict[str, Any]:
    """Return a choice or a score in the form that TypeSafe and Google share, keyed by text."""
    shares = own.probabilities.tolist()
    told: dict[str, Any] = {"type": "score"}
    names: Sequence[Any] = range(len(shares))
    if isinstance(own, ChoiceAnswer):
        told, names = {"type": "choice", "choice": own.choice}, own.values
    elif isinstance(own, ScoreAnswer):
        told["score"] = own.score
    told["probabilities"] = dict(zip(map(str, names), shares, strict=True))
    return told | {"confidence": confidence}


def bounded(
    corrector: Corrector,
    value: Input,
    asked: Mapping[str, Question],
    most: int = MOST_QUESTIONS,
) -> list[Item]:
    """The items of all questions about an input, in order, where they are not too much to ask.

    Raises:
        Refusal: Too many questions, too much text, or too many tokens of work.
        InputError: What cannot be asked.
    """
    parts = singles(asked)
    if len(parts) > most:
        what = f"there are {len(parts)} questions, a request takes {most}"
        raise Refusal("invalid_body", f"{what}: send them in parts")
    text, work = text_of(value), _Work(corrector)
    for texts in ([text], *map(candidates_of, parts.values())):  # before anything is written
        work.add(texts)
    ready, items = corrector.tracer.prepare(asked), list[Item]()
    for name, question in ready.singles.items():  # of too much work none is written to the end
        items.append(item_of(text, question, ready.template, id=name))
        work.add([items[-1].blind_prompt or ""])
    count = sum(characters(corrector.tracer.trim(item)) for item in items)
    if count > (limit := _REQUEST * corrector.settings.characters):
        what = f"{count} characters, the input counted with every option of every question"
        raise Refusal("too_many_characters", f"{what}: a request takes {limit}; send it in parts")
    return items


class _Work:
    """Tokens of a request's texts, each of which is read once however often it comes."""

    def __init__(self, corrector: Corrector) -> None:
        self._tokenizer = corrector.tracer.tokenizer
        self._limit = _REQUEST * corrector.settings.tokens
        self._waiting: list[str] = []
        self._each: dict[str, int] = {}
        self._characters = self._tokens = 0

    def add(self, texts: Sequence[str]) -> None:
        """Count some texts more, as soon as there may be too many tokens.

        Raises:
            Refusal: There are.
        """
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
    reasons |= {name: told[name] for name in ("feedback_id", "view") if name in told}
    decision = answer.decision
    if isinstance(decision, Probed):
        reasons["likeness"] = decision.likeness
    elif (seen := decision.gates.get("seen")) is not None:
        reasons["seen"] = int(seen.value)
    if trajectory and decision.trajectory is not None:
        reasons["candidates"] = list(decision.candidates)
        reasons["trajectory"] = told.get("trajectory", decision.trajectory)
    return strict(reasons)  # type: ignore[no-any-return]


def _common(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    pairs = enumerate(zip(one, other, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(one), len(other)))
