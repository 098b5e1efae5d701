"""One group of items in hand: its states, and the trajectories read from them so far."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float, Int

from tracelm.backbone import States
from tracelm.forest import Branch
from tracelm.geometry import Scores, Trajectory
from tracelm.operators import Step
from tracelm.readout import Readout, read
from tracelm.scorer import Scorer
from tracelm.tokens import Encoded


class Batch:
    """Reads states step by step into the trajectories of a group's items.

    Args:
        encoded: The items; their branches are those of `branches_of`, in order.
        states: The states of all those branches.
        readout: The head.
        scorer: T.
        depth: L.
    """

    def __init__(
        self,
        encoded: Sequence[Encoded],
        states: States,
        readout: Readout,
        scorer: Scorer,
        depth: int,
    ) -> None:
        """Nothing is read yet: every score is nan."""
        self.states, self.readout, self.scorer, self.depth = states, readout, scorer, depth
        counts = [(len(e.sequences), len(e.blind_sequences)) for e in encoded]
        starts = np.cumsum([0, *(own + blind for own, blind in counts)])
        self._own = [slice(s, s + own) for s, (own, _) in zip(starts, counts, strict=False)]
        self._blind = [slice(s.stop, e) for s, e in zip(self._own, starts[1:], strict=True)]
        self._scores = np.full((int(starts[-1]), depth + 1), np.nan)
        self._t = np.full(int(starts[-1]), np.nan)

    def trajectory(self, item: int) -> Trajectory:
        """S and t of an item, as far as they have been read."""
        own = self._own[item]
        t = self._t[own]
        return Trajectory(self._scores[own], None if np.isnan(t).any() else t)

    def blind_scores(self, item: int) -> Scores | None:
        """Base scores of an item's candidates without the question; None without a blind prompt."""
        blind = self._blind[item]
        return None if blind.start == blind.stop else self._scores[blind, self.depth]

    def read(self, items: Sequence[int], step: Step) -> None:
        """Read a step for some items; rows that they share are read once."""
        self._read([self._own[i] for i in items], step)

    def read_blind(self) -> None:
        """Read the base scores of all blind prompts."""
        if any(b.start != b.stop for b in self._blind):
            self._read(self._blind, Step(frozenset([self.depth])))

    def _read(self, spans: Sequence[slice], step: Step) -> None:
        wanted = np.zeros(len(self._t), dtype=bool)
        for span in spans:
            wanted[span] = True
        branch = self.states.reads.branch
        targets = np.flatnonzero(wanted[branch])
        scorers = [self.scorer] if step.scorer else []
        reading = read(self.readout, self.states, targets, sorted(step.depths), scorers)
        for depth, values in reading.log_probs.items():
            self._scores[wanted, depth] = _means(values, branch[targets])
        for scores in reading.scores:
            self._t[wanted] = _means(scores, branch[targets])


def branches_of(encoded: Encoded) -> list[Branch]:
    """An item's branches: one a candidate, then one a candidate after the blind prompt."""
    sequences = encoded.sequences + encoded.blind_sequences
    boundaries = encoded.boundaries + encoded.blind_boundaries
    return [Branch(s, b) for s, b in zip(sequences, boundaries, strict=True)]


def _means(
    values: Float[np.ndarray, " targets"], branch: Int[np.ndarray, " targets"]
) -> Float[np.ndarray, " branches"]:
    """Mean over each branch's tokens in float64 (Eq. 1); branches ascend."""
    starts = np.flatnonzero(np.diff(branch, prepend=-1))
    counts = np.diff(np.append(starts, len(branch)))
    means: Float[np.ndarray, " branches"] = np.add.reduceat(values.astype(np.float64), starts)
    return means / counts
