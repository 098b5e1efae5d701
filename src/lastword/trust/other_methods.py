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
from lastword.records.cells import Cell, stack_cells
from lastword.records.derived import derive, facts_of
from lastword.records.metrics import mc1_rows
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
    needs = {
        GATED: lambda: all(_holds(cell, "blind_trajectory") for cell in cells),
        "pmi": lambda: not any(np.isnan(_scores(cell, "blind_scores")).any() for cell in cells),
        "contextual": lambda: all(_holds(cell, "content_free_scores") for cell in cells),
        BATCH: lambda: bool(means(cells)),
    }
    return tuple(m for m in methods if needs.get(m.partition("@")[0], lambda: True)())


def _holds(cell: Cell, name: str) -> bool:
    """Return True if every item has a column that is not always kept in memory."""
    return not any(table[name].null_count for _, table in cell.pieces(name))


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
            for items, table in cell.pieces("candidates"):
                for place, texts in zip(
                    items.tolist(), table["candidates"].to_pylist(), strict=True
                ):
                    b = cell.base_scores(place)
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
        scores: dict[str, list[Rows]] = {}
        truths = []
        for cell in cells:
            places, derived = cell.mc1_places, derive(cell, methods)
            base = cell.scores["base_scores"]
            columns = {"base": base, TRACE: cell.scores["scores"], "longest": cell.characters}
            columns |= {name: np.where(np.isnan(u), base, u) for name, u in derived.items()}
            columns["question-blind"] = cell.scores["blind_scores"]
            for opposite, name in (("shortest", "longest"), ("anti-blind", "question-blind")):
                columns[opposite] = cell.least_first(columns[name])
            for name, u in columns.items():
                scores.setdefault(name, []).append(u[places])
            truths.append(cell.truthful[places] * 1.0)
        stacked = {name: stack_cells(parts) for name, parts in scores.items()}
        names = ["shortest", "longest"]
        names += ["question-blind", "anti-blind"] if allowed(cells, ("pmi",)) else []
        return cls(
            base=stacked["base"],
            truth=stack_cells(truths) > 0,
            methods={name: stacked[name] for name in (TRACE, *methods)},
            controls={name: stacked[name] for name in names},
        )

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


def _scores(cell: Cell, name: str) -> Rows:
    """Return a column of scores of the items that count for MC1."""
    scores: Rows = cell.scores[name][cell.mc1_places]
    return scores
