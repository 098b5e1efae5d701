"""The contract of `lastword.methods`: the readings that a method requests, and gets.

A method is made from facts of the model alone, declares once what it needs, and then scores items.
It never runs a model: one pass reads what all methods of a comparison need together.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Int

from lastword.rule.geometry import Inputs, Scores, Trajectory
from lastword.rule.theta import Theta
from lastword.rule.tile import TokenScorer

Aggregation = Literal["sum", "mean", "bytes"]
AGGREGATIONS: tuple[Aggregation, ...] = ("sum", "mean", "bytes")


@dataclass(frozen=True)
class Facts:
    """The facts of a model that a method is made from.

    Attributes:
        vocabulary: V, the rows of the output head.
    """

    depth: int
    vocabulary: int
    invariant: float
    theta: Theta = field(default_factory=Theta)


@dataclass(frozen=True)
class Needs:
    """The reading that a method needs before it can score.

    Attributes:
        depths: Depths of the trajectory S.
        t: Whether T's second reading is needed.
        blind: Depths of the trajectory without the question.
        content_free: Whether depth L after the content-free prompts is needed.
        scorer: The method's token scorer, which is computed on the tiles of the readout.
    """

    depths: frozenset[int] = frozenset()
    t: bool = False
    blind: frozenset[int] = frozenset()
    content_free: bool = False
    scorer: TokenScorer | None = None

    @property
    def normed(self) -> frozenset[int]:
        """The depths to read through the final norm, without those that T reads."""
        return self.depths | frozenset(() if self.scorer is None else self.scorer.depths)

    @property
    def raw(self) -> frozenset[int]:
        """Return depths to read without it."""
        return frozenset(() if self.scorer is None else self.scorer.raw_depths)


@dataclass(frozen=True)
class Evidence:
    """The reading of one item.

    Attributes:
        trajectory: S, nan where unread, and T's scores.
        own: Mean over tokens of the method's own token scorer [candidates]; None without one.
        blind: The trajectory without the question; None without a blind prompt.
        blind_tokens: How many tokens each candidate has after the blind prompt.
        content_free: b after each content-free prompt, nan where unread [inputs, candidates]; None
            without them.
    """

    candidates: tuple[str, ...]
    tokens: Int[np.ndarray, " candidates"]
    trajectory: Trajectory
    own: Scores | None = None
    blind: Trajectory | None = None
    blind_tokens: Int[np.ndarray, " candidates"] | None = None
    content_free: Inputs | None = None

    def aggregate(self, means: Scores, aggregation: Aggregation, *, blind: bool = False) -> Scores:
        """Turn means over tokens into sums, or sums over the candidate's UTF-8 bytes, or neither.

        `blind` means are those after the blind prompt, where a candidate may have other tokens.

        Bytes are those of the candidate's text alone, without the separator, as
        lm-evaluation-harness counts them for `acc_bytes`.
        """
        if aggregation == "mean":
            return means
        sizes = np.array([len(text.encode()) for text in self.candidates])
        tokens = self.blind_tokens if blind else self.tokens
        assert tokens is not None
        return aggregate(means, aggregation, tokens, sizes)


def aggregate(
    means: Scores, aggregation: Aggregation, tokens: np.ndarray, sizes: np.ndarray
) -> Scores:
    """Aggregate as `Evidence.aggregate` does, for as many candidates as are given."""
    if aggregation == "mean":
        return means
    sums: Scores = means * tokens
    return sums / sizes if aggregation == "bytes" else sums


@runtime_checkable
class Method(Protocol):
    """A method as a module of this folder, or a user's module, provides it."""

    @property
    def aggregation(self) -> Aggregation:
        """How token scores are aggregated to a score per candidate."""

    @property
    def needs(self) -> Needs:
        """The readings that the method needs."""

    def scores(self, evidence: Evidence) -> Scores | None:
        """Return one score per candidate, higher is better; None if the method does not apply.

        The answer is the candidate with the highest score. It must not depend on the order of the
        candidates.
        """


@runtime_checkable
class Fitted(Method, Protocol):
    """A method that learns something of a set's unlabelled items before it scores them."""

    def fitted(self, items: Iterable[Evidence]) -> "Method":
        """Return the same with what these items teach it."""
