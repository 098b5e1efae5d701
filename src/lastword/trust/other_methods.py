"""Labelled items as other methods, and controls, answer them; from records alone.

A certificate chooses among methods (section 17) by the answers that each would have given. The
controls of section 15 never read the question, and take the same test: if one of them passes, the
certificate does not show that the question was used.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Bool, Float
from scipy.special import softmax

from lastword.errors import RecordError
from lastword.records.cells import Cell
from lastword.records.derived import evidence, facts_of
from lastword.records.metrics import mc1_rows
from lastword.records.ragged import Lists
from lastword.rule.geometry import Scores, Trajectory
from lastword.trust.claims import ControlResults, Finding, Trial, judge, trials
from lastword.trust.evidence import Groups
from lastword.trust.labelled import Labelled
from lastword.trust.paired import random_flips
from lastword.trust.policy import BATCH, GATED, TRACE, Policy, ScalarOperator

if TYPE_CHECKING:
    from lastword.methods.contract import Evidence, Method

Rows = Float[np.ndarray, "items candidates"]  # -inf in the padding
Truth = Bool[np.ndarray, "items candidates"]
Means = Mapping[str, tuple[float, ...]]

Methods = dict[str, "Method"]

DRAWS = 2000


def allowed(cells: Sequence[Cell], methods: Sequence[str]) -> tuple[str, ...]:
    """Return the methods whose input all cells have, in their order."""
    frames = [cell.mc1_items for cell in cells]

    def hold(name: str) -> bool:
        return all(name in frame and frame[name].notna().all() for frame in frames)

    needs = {
        GATED: lambda: all(_holds(cell, "blind_trajectory") for cell in cells),
        "pmi": lambda: hold("blind_scores"),
        "contextual": lambda: all(_holds(cell, "content_free_scores") for cell in cells),
        BATCH: lambda: bool(means(cells)),
    }
    return tuple(m for m in methods if needs.get(m.partition("@")[0], lambda: True)())


def _holds(cell: Cell, name: str) -> bool:
    """Return True if every item has a column that is not always kept in memory."""
    return all(name in frame and frame[name].notna().all() for _, frame in cell.slices(name))


def resolved(
    cells: Sequence[Cell], run: Mapping[str, Any], names: Sequence[str], batch_means: Means
) -> Methods:
    """Return the methods except TRACE; batch calibration gets the means of the items.

    Raises:
        RecordError: The records lack the input of a method.
    """
    if unread := [name for name in names if name not in allowed(cells, names)]:
        raise RecordError(
            f"these records do not have the scores that {unread[0]} needs; run `lastword eval` "
            "with --blind all, or leave it out of --methods"
        )
    others = [name for name in names if name != TRACE]
    if not others:  # the import needs torch, which is not always installed
        return {}
    from lastword.methods import resolve
    from lastword.methods.batch_calibrated import batch_calibrated

    facts = facts_of(run)
    return {
        name: m if m.fit is None else batch_calibrated(facts, batch_means)
        for name, m in resolve(others, facts).items()
    }


def means(cells: Iterable[Cell]) -> Means:
    """Return the mean of softmax(b) of each label set that enough items share."""
    from lastword.methods.batch_calibrated import means_of
    from lastword.methods.contract import Evidence

    def base_scores() -> "Iterator[Evidence]":
        for cell in cells:
            base = Lists.of(cell.items["base_scores"])
            for places, frame in cell.slices("candidates"):
                for place, texts in zip(places, frame["candidates"], strict=True):
                    b = base.stack(np.array([place]))[0]
                    yield Evidence(tuple(texts), np.zeros(0, np.int64), Trajectory(b[:, None]))

    return means_of(base_scores())


@dataclass(frozen=True, eq=False)
class ScoredItems:
    """Scores of the items that count for MC1, padded with -inf; the padding has no truth.

    Attributes:
        base: The model's scores.
        truth: True for the true candidates.
        methods: The scores of each method, by name; the model's where it does not apply.
        controls: The scores of controls that never read the question, by name.
    """

    base: Rows
    truth: Truth
    methods: Mapping[str, Rows]
    controls: Mapping[str, Rows]

    @classmethod
    def of(cls, cells: Sequence[Cell], methods: Methods) -> "ScoredItems":
        """Return the scores in cells, by TRACE and other methods."""
        base = _filled(cells, "base_scores")
        absent = np.isneginf(base)
        longest = _padded([cell.characters.at(cell.mc1_places) for cell in cells])
        controls = {"shortest": np.where(absent, -np.inf, -longest), "longest": longest}
        if allowed(cells, ("pmi",)):
            blind = _filled(cells, "blind_scores")
            controls |= {"question-blind": blind, "anti-blind": np.where(absent, -np.inf, -blind)}
        corrected = {TRACE: _filled(cells, "scores")} | _scored(cells, methods, base)
        return cls(base, _filled(cells, "truthful") > 0, corrected, controls)

    def labelled(self, operators: np.ndarray, groups: Groups) -> Labelled:
        """Return the items as every method answers them.

        Args:
            operators: TRACE's operator of each item; the gated rule has the same.
            groups: Number of each item's group.
        """
        base = mc1_rows(self.base, self.truth)
        sure = softmax(self.base, axis=1).max(axis=1)
        first = self._answered(Labelled(base, base, base > 1, operators, sure, sure, sure, groups))
        others = [name for name in self.methods if name != TRACE]
        return replace(first, others={name: self._answered(first, name) for name in others})

    def _answered(self, items: Labelled, name: str = TRACE) -> Labelled:
        """Return the items as the scores of a method, or of a control, answer them."""
        u = self.methods[name] if name in self.methods else self.controls[name]
        best = np.partition(u, -2, axis=1)[:, -2:]
        single = name not in (TRACE, GATED)  # the method is its only operator
        return replace(
            items,
            mc1=mc1_rows(u, self.truth),
            overrides=u.argmax(axis=1) != self.base.argmax(axis=1),
            operators=np.full(len(items), name) if single else items.operators,
            margins=best[:, 1] - best[:, 0],
            confidence=softmax(u, axis=1).max(axis=1),
            others={},
        )

    def shown(self, items: Labelled, policy: Policy) -> tuple[list[Scores], list[int]]:
        """Return the scores under a policy of items with one truth, and the truths' indices."""
        withheld = items.by(policy.method).overrides & ~items.stands(policy)
        u = np.where(withheld[:, None], self.base, self.methods[policy.method])
        places = np.flatnonzero(self.truth.sum(axis=1) == 1)
        # Finite base scores mark the candidates; the rest of a row is padding.
        scores = [u[i][np.isfinite(self.base[i])] for i in places]
        return scores, self.truth[places].argmax(axis=1).tolist()

    def control_results(
        self, finding: Finding, items: Labelled, scalar: ScalarOperator
    ) -> ControlResults:
        """Test the controls under the terms of a finding."""
        worth = {}
        for name in self.controls:
            control = replace(items, others={name: self._answered(items, name)})
            terms = replace(finding.terms, methods=(name,))
            best = judge(trials(control, scalar, terms), terms).chosen
            worth[name] = 0 if best is None else best.gain
        chosen = finding.chosen
        return ControlResults(worth, math.nan if chosen is None else self.flips(chosen, items))

    def flips(self, trial: Trial, items: Labelled) -> float:
        """Return the share of draws in which as many random overrides gain at least as much."""
        chosen = self.truth[np.arange(len(self.base)), self.base.argmax(axis=1)]
        count = np.isfinite(self.base).sum(axis=1)
        elsewhere = (self.truth.sum(axis=1) - chosen) / (count - 1)
        right = (items.mc1_base > 0).astype(float)
        fixed, broken = random_flips(right, elsewhere, trial.evidence.overrides, DRAWS)
        return (1 + int((fixed - broken >= trial.gain).sum())) / (1 + DRAWS)


def _scored(cells: Sequence[Cell], methods: Methods, base: Rows) -> dict[str, Rows]:
    """Return each method's scores of the items that count for MC1; the model's if it has none."""
    scores = {name: base.copy() for name in methods}
    first = 0
    for cell in cells if methods else ():
        # The row of each answered item among those of all cells that count for MC1.
        row = np.full(len(cell.items), -1)
        row[cell.mc1_places] = first + np.arange(len(cell.mc1_places))
        first += len(cell.mc1_places)
        for place, one in evidence(cell, methods):
            for name, method in methods.items() if row[place] >= 0 else ():
                if (u := method.scores(one)) is not None:
                    scores[name][row[place], : len(u)] = u
    return scores


def _filled(cells: Sequence[Cell], name: str) -> Rows:
    """Return a column of lists of the items that count for MC1, padded with -inf."""
    return _padded([Lists.of(cell.items[name].iloc[cell.mc1_places]) for cell in cells])


def _padded(cells: Sequence[Lists]) -> Rows:
    """Stack the lists of several cells, padded with -inf."""
    width = max(int(part.lengths.max(initial=0)) for part in cells)
    places = np.arange(width)
    rows = [
        np.where(places < part.lengths[:, None], part.padded(width).astype(float), -np.inf)
        for part in cells
    ]
    return np.concatenate(rows)
