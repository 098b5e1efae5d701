"""Batch: one group of items, with the scores read so far; and the scope of a reading."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal

import numpy as np
from jaxtyping import Float, Int

from lastword.decide.priors import ByBranch
from lastword.errors import NonFiniteError
from lastword.methods.contract import ItemReadings, Method, Needs
from lastword.model.readout import HiddenStates, TokenScores
from lastword.records.decision import Decision
from lastword.rule.geometry import Inputs, Scores, Trajectory
from lastword.rule.operators import Ruling, Step
from lastword.rule.scorer import Scorer
from lastword.rule.tile import TokenScorer
from lastword.text.prompt_template import Blind
from lastword.text.tokens import EncodedItem
from lastword.trust.certificate import Certificate

Read = Literal["decide", "all", "base"]


@dataclass(frozen=True)
class Scope:
    """The part of every item that is read, and the correction that decides.

    Attributes:
        read: `decide` reads what the decision needs, `all` every depth and T, `base` depth L.
        blind: After blind prompts, `base` reads depth L, `all` every depth and T, `none` nothing.
        methods: Other methods that score the items, by name (`lastword.methods.resolve`).
        correction: The correction that decides; TRACE if None.
        readings: True to compute t by every reading of the scorer; only with `all`.
        certificate: The certificate that limits the overrides.
    """

    read: Read = "decide"
    blind: Blind = "base"
    methods: Mapping[str, Method] = field(default_factory=dict)
    correction: Method | None = None
    readings: bool = False
    certificate: Certificate | None = None

    def plan(self, correction: Needs, scorer: Scorer) -> tuple[frozenset[int], Step]:
        """Return the depths whose states are stored, and the step that is read for every item.

        The router may request more of single items, from the states that are stored.
        """
        needs = [method.needs for method in self.methods.values()]
        last, every = frozenset([scorer.last]), frozenset(range(scorer.last + 1))
        whole, whole_blind = self.read == "all", self.blind == "all"
        t = any(n.t for n in needs)
        read = frozenset(scorer.depths if t else ()).union(*(n.normed for n in needs))
        blind = last.union(*(n.blind for n in needs))
        if self.blind == "none" and not correction.blind:
            blind = frozenset()
        step = Step(
            every if whole else read,
            t=whole or t,
            peers=any(n.token_scorer is not None for n in needs),
            blind=every if whole_blind else blind,
            blind_t=whole_blind,
            content_free=correction.content_free or any(n.content_free for n in needs),
            readings=whole and self.readings,
        )
        # Under `decide` the states of all depths are stored, although the gates may need few of
        # them: running the blocks again would cost more than the memory.
        stored = last if self.read == "base" and not whole_blind else every
        needed = [depths for n in needs for depths in (n.blind, n.raw)]
        return stored.union(read, correction.blind, *needed), step


class Batch:
    """The trajectories of a group's items, read step by step from their states.

    All branches of all items are numbered in one sequence: per item, the candidates after the
    prompt, then those after the blind prompt, then those after each content-free prompt. `known`
    has b of the branches without states, and nan for the others.
    """

    def __init__(
        self,
        encoded: Sequence[EncodedItem],
        states: HiddenStates,
        read: Callable[..., TokenScores],
        scorer: Scorer,
        methods: Mapping[str, Method],
        step: Step,
        known: ByBranch,
    ) -> None:
        self.states, self.scorer, self.depth = states, scorer, scorer.last
        self._head, self._encoded, self._methods = read, encoded, methods
        spans = _spans(encoded)  # in the order of `EncodedItem.prompts`
        self._main = [s[0] for s in spans]
        self._blind = [s[1] if e.blind else None for s, e in zip(spans, encoded, strict=True)]
        self._free = [
            s[len(s) - len(e.content_free) :] for s, e in zip(spans, encoded, strict=True)
        ]
        count = spans[-1][-1].stop
        self.faults = np.full(count, -1)
        self._scores = np.full((count, self.depth + 1), np.nan)
        self._scores[:, self.depth] = known
        self._computed = np.isnan(known)
        self._branch = np.flatnonzero(self._computed)[states.reads.branch]
        self._t = np.full(count, np.nan)
        peers = ((name, method.needs.token_scorer) for name, method in methods.items())
        # Token scorers by name, each with its scores: of other methods, and T's other readings.
        self._peers = {name: (s, np.full(count, np.nan)) for name, s in peers if s is not None}
        readings = scorer.variants() if step.readings else {}
        self._by_reading = {name: (s, np.full(count, np.nan)) for name, s in readings.items()}
        self.read(range(len(encoded)), step)

    @property
    def base_scores(self) -> ByBranch:
        """b of each branch; nan if unread, or if a logit is not finite."""
        return np.where(self.faults < 0, self._scores[:, self.depth], np.nan)

    def trajectory(self, item: int) -> Trajectory:
        """Return S and t of an item, as far as they have been read."""
        return self._read_so_far(self._main[item])

    def blind(self, item: int) -> Trajectory | None:
        """Return S and t of an item after its blind prompt; None if it has no blind prompt."""
        span = self._blind[item]
        return None if span is None else self._read_so_far(span)

    def fault(self, item: int) -> NonFiniteError | None:
        """Return the error of an item if logits that are not finite were read, else None."""
        spans = [self._main[item], self._blind[item], *self._free[item]]
        faults = np.concatenate([self.faults[span] for span in spans if span is not None])
        depths = faults[faults >= 0]
        return NonFiniteError(int(depths[0])) if len(depths) else None

    def evidence(self, item: int, method: str = "") -> ItemReadings:
        """Return everything read of an item so far, with the token scores of `method`."""
        encoded, of_method = self._encoded[item], self._peers.get(method)
        blind, without = self.blind(item), encoded.blind
        return ItemReadings(
            candidates=encoded.item.candidates,
            tokens=np.array(encoded.prompt.candidate_tokens),
            trajectory=self.trajectory(item),
            token_scores=None if of_method is None else of_method[1][self._main[item]],
            blind=blind,
            blind_tokens=None if without is None else np.array(without.candidate_tokens),
            content_free=self.content_free(item),
        )

    def content_free(self, item: int) -> Inputs | None:
        """Return b after each content-free prompt; nan if unread, None if there are none."""
        read = [self._scores[span, self.depth] for span in self._free[item]]
        return np.stack(read) if read else None

    def read(self, items: Sequence[int], step: Step) -> None:
        """Read a step for some items."""
        if step.depths or step.t or step.peers:
            self._read([self._main[i] for i in items], step)
        if step.blind:
            spans = [span for i in items if (span := self._blind[i])]
            self._read(spans, Step(step.blind, t=step.blind_t))
        if step.content_free:
            last = Step(frozenset([self.depth]))
            self._read([span for i in items for span in self._free[i]], last)

    def decision(self, item: int, ruling: Ruling, invariant: float, method: str) -> Decision:
        """Return the decision of an item by a ruling of `method`, with everything read of it."""
        encoded, blind, methods = self._encoded[item], self.blind(item), self._methods
        whole = blind if blind is not None and blind.t is not None else None
        return Decision.of(
            ruling,
            self.trajectory(item),
            encoded.item.candidates,
            invariant=invariant,
            blind_scores=None if blind is None else blind.base,
            blind_trajectory=None if whole is None else whole.scores,
            blind_t_scores=None if whole is None else whole.t,
            content_free_scores=self.content_free(item),
            t_readings={name: t[self._main[item]] for name, (_, t) in self._by_reading.items()},
            truncated=encoded.prompt.truncated,
            id=encoded.item.id,
            method=method,
            methods={name: m.scores(self.evidence(item, name)) for name, m in methods.items()},
        )

    def _read_so_far(self, span: slice) -> Trajectory:
        t = self._t[span]
        return Trajectory(self._scores[span], None if np.isnan(t).any() else t)

    def _read(self, spans: Sequence[slice], step: Step) -> None:
        # `mask` selects branches; `targets` selects their tokens among all whose states are stored.
        mask = np.zeros(len(self._t), dtype=bool)
        for span in spans:
            mask[span] = True
        mask &= self._computed
        if not mask.any():
            return
        branch = self._branch
        targets = np.flatnonzero(mask[branch])
        into: list[tuple[TokenScorer, Scores]] = [(self.scorer, self._t)] if step.t else []
        into += self._by_reading.values() if step.readings else ()
        into += self._peers.values() if step.peers else ()
        scorers = [scorer for scorer, _ in into]
        depths = step.depths.union(*(s.depths for s in scorers))
        reading = self._head(self.states, targets, sorted(depths), scorers)
        for depth, values in reading.log_probs.items():
            self._scores[mask, depth] = _means(values, branch[targets])
        at, fault = branch[targets], reading.faults
        self.faults[at[fault >= 0]] = fault[fault >= 0]
        for (_, means), scores in zip(into, reading.scores, strict=True):
            means[mask] = _means(scores, branch[targets])


def _spans(items: Sequence[EncodedItem]) -> list[list[slice]]:
    """Return each item's slices of the branch numbers, one slice per prompt."""
    start, spans = 0, []
    for item in items:
        ends = start + np.cumsum([len(prompt.branches) for prompt in item.prompts])
        spans.append([slice(a, b) for a, b in pairwise(map(int, (start, *ends)))])
        start = int(ends[-1])
    return spans


def _means(
    values: Float[np.ndarray, " targets"], branch: Int[np.ndarray, " targets"]
) -> Float[np.ndarray, " branches"]:
    """Return the mean over each branch's tokens in float64 (Eq. 1); `branch` is sorted."""
    starts = np.flatnonzero(np.diff(branch, prepend=-1))
    counts = np.diff(np.append(starts, len(branch)))
    means: Float[np.ndarray, " branches"] = np.add.reduceat(values.astype(np.float64), starts)
    return means / counts
