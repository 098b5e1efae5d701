"""The interface between router and operators: the readings requested, the scores returned."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from lastword.rule.answer import Gate
from lastword.rule.geometry import Scores, Trajectory


@dataclass(frozen=True)
class Step:
    """A request for further readings of an item.

    Attributes:
        depths: Depths of S.
        t: True for t, the scores by T.
        peers: True for the token scores of other methods on the same rows.
        readings: True for t by every reading of the scorer.
        blind: Depths of S after the blind prompt.
        blind_t: True for t after the blind prompt.
        content_free: True for depth L after the content-free prompts.
    """

    depths: frozenset[int]
    t: bool = False
    peers: bool = False
    readings: bool = False
    blind: frozenset[int] = frozenset()
    blind_t: bool = False
    content_free: bool = False


@dataclass(frozen=True)
class OperatorScores:
    """The scores that an operator returns.

    Attributes:
        operator: The operator that made them; `base` if a gate failed.
        scores: u, in nats [candidates].
        gates: The operator's comparisons, in the order of the rule.
        decisive_layer: l*; None if it was not computed.
        mixing: lambda; None unless the operator mixes.
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
