"""The request of an operator, and its answer."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from lastword.rule.answer import Gate
from lastword.rule.geometry import Scores, Trajectory


@dataclass(frozen=True)
class Step:
    """The depths, and the scorer, that are still to be read.

    Attributes:
        depths: Depths of S.
        scorer: Whether T is needed.
        peers: Whether the token scorers of peers are.
        blind: Depths of S without the question.
        content_free: Whether depth L after the content-free prompts is.
    """

    depths: frozenset[int]
    scorer: bool = False
    peers: bool = False
    blind: frozenset[int] = frozenset()
    content_free: bool = False


@dataclass(frozen=True)
class OperatorScores:
    """The scores that an operator settles on, with its gates in the order of the rule.

    Attributes:
        operator: Whose scores they are; `base` where a gate failed.
        scores: u [candidates].
        gates: Every comparison that the operator made.
        decisive_layer: l*, where the operator looked for it.
        mixing: lambda, where the operator mixes.
    """

    operator: str
    scores: Scores
    gates: dict[str, Gate] = field(default_factory=dict)
    decisive_layer: int | None = None
    mixing: float | None = None


def unread(trajectory: Trajectory, depths: Iterable[int]) -> Step | None:
    """Return the step that reads the missing ones of `depths`, or None if none is missing."""
    gaps = frozenset(d for d in depths if not trajectory.has([d]))
    return Step(gaps) if gaps else None
