"""The contract of `lastword.methods`: the readings that a method requests and receives.

A method is made from facts of the model, declares the readings that it needs, and scores items. It
never runs a model: one pass reads everything that all methods of a comparison need.
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
class Evidence:
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
        if aggregation == "mean":
            return means
        sizes = np.array([len(text.encode()) for text in self.candidates])
        tokens = self.blind_tokens if blind else self.tokens
        assert tokens is not None
        return aggregate(means, aggregation, tokens, sizes)


def aggregate(
    means: Scores, aggregation: Aggregation, tokens: np.ndarray, sizes: np.ndarray
) -> Scores:
    """Convert means over tokens as `Evidence.aggregate` does, for any number of candidates."""
    if aggregation == "mean":
        return means
    sums: Scores = means * tokens
    return sums / sizes if aggregation == "bytes" else sums


@runtime_checkable
class Method(Protocol):
    """A method as a module of this folder, or a user's module, provides it."""

    @property
    def aggregation(self) -> Aggregation:
        """The aggregation of token scores to a score per candidate."""

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
    """A method that is fitted to a set's unlabelled items before it scores them."""

    def fitted(self, items: Iterable[Evidence]) -> "Method":
        """Return the method fitted to these items."""
