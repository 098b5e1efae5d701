"""Methods: the readings that they request and are given, their names, and options after `@`.

A method is made from facts of the model, declares the readings that it needs, and scores items. It
never runs a model: one pass reads everything that all methods of a comparison need. A method that
needs no whole vocabularies can also decide items: as a correction.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple, TypeVar

import numpy as np
from jaxtyping import Float, Int

from lastword.errors import InputError, ItemError
from lastword.rule.geometry import Inputs, Scores, Trajectory
from lastword.rule.operators import Ruling, Step
from lastword.rule.theta import Theta
from lastword.rule.tile import TokenScorer

Aggregation = Literal["sum", "mean", "bytes"]
Padded = Float[np.ndarray, "*items candidates"]
AGGREGATIONS: tuple[Aggregation, ...] = ("sum", "mean", "bytes")


@dataclass(frozen=True)
class Facts:
    """The facts of a model that a method is made from.

    Attributes:
        depth: L, the number of blocks.
        vocabulary: V, the number of rows of the output head.
    """

    depth: int
    vocabulary: int
    invariant: float
    theta: Theta = field(default_factory=Theta)


@dataclass(frozen=True)
class Needs:
    """The readings that a method needs before it can score.

    Attributes:
        depths: Depths of the trajectory S.
        t: True if it needs t, the scores by T.
        blind: Depths of the trajectory after the blind prompt.
        content_free: True if it needs depth L after the content-free prompts.
        token_scorer: The method's token scorer, which is computed on the tiles of the readout.
    """

    depths: frozenset[int] = frozenset()
    t: bool = False
    blind: frozenset[int] = frozenset()
    content_free: bool = False
    token_scorer: TokenScorer | None = None

    @property
    def normed(self) -> frozenset[int]:
        """The depths to read with the final norm, except those that T reads."""
        scorer = self.token_scorer
        return self.depths if scorer is None else self.depths.union(scorer.depths)

    @property
    def raw(self) -> frozenset[int]:
        """The depths to read without the final norm."""
        return frozenset(() if self.token_scorer is None else self.token_scorer.raw_depths)


@dataclass(frozen=True)
class ItemReadings:
    """The readings of one item. Scores are mean log-probabilities per token, in nats.

    Attributes:
        tokens: Number of tokens of each candidate [candidates].
        trajectory: S and t; nan if unread.
        token_scores: Mean over tokens by the method's token scorer [candidates]; None without one.
        blind: The trajectory after the blind prompt; None without a blind prompt.
        blind_tokens: Number of tokens of each candidate after the blind prompt [candidates].
        content_free: b after each content-free prompt [inputs, candidates]; nan if unread, None
            without such prompts.
    """

    candidates: tuple[str, ...]
    tokens: Int[np.ndarray, " candidates"]
    trajectory: Trajectory
    token_scores: Scores | None = None
    blind: Trajectory | None = None
    blind_tokens: Int[np.ndarray, " candidates"] | None = None
    content_free: Inputs | None = None

    def aggregate(self, means: Scores, aggregation: Aggregation, *, blind: bool = False) -> Scores:
        """Convert means over tokens to sums, or to sums per UTF-8 byte, for each candidate.

        `blind` is True for means after the blind prompt, where the number of tokens may differ.
        Bytes are counted without the separator, as in lm-evaluation-harness's `acc_bytes`.
        """
        sizes = np.array([len(text.encode()) for text in self.candidates])
        tokens = self.blind_tokens if blind else self.tokens
        assert tokens is not None or aggregation == "mean"
        return aggregate(means, aggregation, tokens, sizes)

    def unread(self, needs: Needs) -> Step | None:
        """Return the step that reads what is needed and has not been read; None if all has."""
        S, blind, free = self.trajectory, self.blind, self.content_free
        step = Step(
            frozenset(d for d in needs.depths if not S.has([d])),
            t=needs.t and S.t is None,
            blind=frozenset(d for d in needs.blind if blind is not None and not blind.has([d])),
            content_free=needs.content_free and free is not None and bool(np.isnan(free).any()),
        )
        return None if step == Step(frozenset()) else step


def aggregate(
    means: Padded, aggregation: Aggregation, tokens: np.ndarray | None, sizes: np.ndarray
) -> Padded:
    """Convert means over tokens as `ItemReadings.aggregate` does, for one item or many."""
    if aggregation == "mean":
        return means
    sums: Padded = means * tokens
    return sums / sizes if aggregation == "bytes" else sums


@dataclass(frozen=True)
class Method:
    """Scores of candidates by one pass's readings, and the decision by them.

    Attributes:
        name: The name in decisions and records.
        needs: All readings that it may need.
        score: Function that returns one score per candidate, or None if the method does not apply.
            It must not depend on the order of the candidates.
        aggregation: The aggregation of its scores, and of the base that it is compared with.
        rule: Function that decides an item: it returns the next step to read, or the ruling. None
            to read everything at once and choose the candidate with the highest score.
        fit: Function that returns the method fitted to unlabelled items; None if it needs none.
            Without it, the rule's answers depend on the items before.
    """

    name: str
    needs: Needs
    score: Callable[[ItemReadings], Scores | None] | None = None
    aggregation: Aggregation = "mean"
    rule: Callable[[ItemReadings], Step | Ruling] | None = None
    fit: Callable[[Iterable[ItemReadings]], "Method"] | None = None

    def scores(self, evidence: ItemReadings) -> Scores | None:
        """Return one score per candidate, higher is better; None if it does not apply."""
        if self.score is not None:
            return self.score(evidence)
        assert self.rule is not None
        verdict = self.rule(evidence)
        assert isinstance(verdict, Ruling)
        return verdict.scores

    def next(self, evidence: ItemReadings) -> Step | Ruling:
        """Return the next step to read, or the ruling.

        Raises:
            ItemError: The item lacks a prompt that the method needs, or the method does not apply.
        """
        if self.rule is not None:
            return self.rule(evidence)
        if lack := self.lacks(evidence.blind is not None, evidence.content_free is not None):
            raise ItemError(f"{self.name} reads {lack}, and the item has none")
        # Every decision includes the model's answer.
        needs = replace(self.needs, depths=self.needs.depths | {evidence.trajectory.depth})
        if (step := evidence.unread(needs)) is not None:
            return step
        if (scores := self.scores(evidence)) is None:
            raise ItemError(f"{self.name} does not apply to the item")
        return Ruling(self.name, scores)

    def lacks(self, blind: bool, content_free: bool) -> str | None:
        """Return a description of the needed prompts that an item lacks, or None.

        A method with a rule decides by itself what to do without them.
        """
        if self.rule is not None:
            return None
        if self.needs.blind and not blind:
            return "a blind_prompt"
        return "content_free prompts" if self.needs.content_free and not content_free else None


def by_tokens(name: str, scorer: TokenScorer, aggregation: Aggregation) -> Method:
    """Return the method of a token scorer."""

    def score(evidence: ItemReadings) -> Scores:
        assert evidence.token_scores is not None
        return evidence.aggregate(evidence.token_scores, aggregation)

    return Method(name, Needs(token_scorer=scorer), score, aggregation)


def require_pure(method: Method) -> None:
    """Check that a method's answers do not depend on earlier items.

    Raises:
        InputError: They do, so that batches and shards would change the answers.
    """
    if method.fit is not None:
        raise InputError(
            f"{method.name} depends on earlier items, which is not possible here: `lastword "
            f"compare --method {method.name}` uses the mean of all, a certificate a fixed one"
        )


# Names

Make = TypeVar("Make", bound=Callable[..., Method])


class MethodEntry(NamedTuple):
    """A registered method.

    Attributes:
        make: Function that makes the method from facts of the model and, if it has one, a number.
        number: Description of the number after `@`; empty if it takes none.
        aggregates: True if it accepts `@sum`, `@mean` and `@bytes`.
        compared: The name by which it is compared by default; empty if only by request.
    """

    make: Callable[..., Method]
    summary: str
    source: str
    number: str
    aggregates: bool
    compared: str


METHODS: dict[str, MethodEntry] = {}


def method(
    name: str,
    summary: str,
    source: str,
    *,
    number: str = "",
    aggregates: bool = False,
    compared: str | None = None,
) -> Callable[[Make], Make]:
    """Return a decorator that registers a function that makes a method; see `MethodEntry`.

    It is compared by default under its name, unless `compared` is another name or empty.
    """

    def register(make: Make) -> Make:
        by_default = name if compared is None else compared
        METHODS[name] = MethodEntry(make, summary, source, number, aggregates, by_default)
        return make

    return register


def entry(name: str) -> MethodEntry:
    """Return a registered method by its full name, which may include options.

    Raises:
        InputError: No such method.
    """
    plain = name.partition("@")[0]
    if plain not in METHODS:
        raise InputError(f"no method {plain}; known: {', '.join(METHODS)}")
    return METHODS[plain]


def resolve(names: Sequence[str], facts: Facts) -> dict[str, Method]:
    """Return methods by their full names, in order, each once.

    Raises:
        InputError: No such method, or an option that it does not take.
    """
    return {name: _make(name, facts) for name in dict.fromkeys(names)}


def correction_of(name: str, facts: Facts) -> Method:
    """Return a method that can decide items.

    Raises:
        InputError: No such method, or one that needs whole vocabularies.
    """
    correction = _make(name, facts)
    if correction.needs.token_scorer is not None:
        raise InputError(
            f"{name} needs the whole vocabulary, so it is not a correction: use `lastword compare`"
        )
    return correction


def _make(name: str, facts: Facts) -> Method:
    row = entry(name)
    aggregation: dict[str, Aggregation] = {}
    numbers: list[float] = []
    for text in name.split("@")[1:]:
        if row.aggregates and text in AGGREGATIONS and not aggregation:
            aggregation["aggregation"] = text
        elif row.number and not numbers:
            numbers.append(_number(text, name, row))
        else:
            raise InputError(f"method {name} takes no @{text}; {_options(row)}")
    if row.number and not numbers:
        raise InputError(f"method {name} needs {row.number}: {name}@0.75")
    return replace(row.make(facts, *numbers, **aggregation), name=name)


def _options(row: MethodEntry) -> str:
    options = [row.number] if row.number else []
    options += [f"one of {', '.join(AGGREGATIONS)}"] * row.aggregates
    return f"it takes {' and '.join(options) or 'no option'}"


def _number(text: str, name: str, row: MethodEntry) -> float:
    try:
        return float(text)
    except ValueError as error:
        raise InputError(f"method {name}: expected {row.number}, got {text!r}") from error
