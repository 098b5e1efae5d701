"""Labelled items as other methods, and controls, answer them; from records alone.

A certificate chooses among methods (section 17) by the answers that each would have given. The
controls of section 15 never read the question, and take the same test: if one of them passes, the
certificate does not show that the question was used.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
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
from lastword.trust.claims import ControlResults, Finding, Trial, claims, judge
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


def answers(items: Labelled, cells: Sequence[Cell], methods: Methods) -> dict[str, Labelled]:
    """Return the items as each method answers them; as the model where it does not apply."""
    base, truth = _filled(cells, "base_scores"), _truth(cells)
    # The gated rule has TRACE's operators; every other method is its only operator.
    return {
        name: _labelled(items, u, base, truth, None if name == GATED else name)
        for name, u in _scored(cells, methods).items()
    }


def shown(
    items: Labelled, cells: Sequence[Cell], methods: Methods, policy: Policy
) -> tuple[list[Scores], list[int]]:
    """Return the scores under a policy of items with one truth, and the truths' indices."""
    base, truth = _filled(cells, "base_scores"), _truth(cells)
    corrected = _scored(cells, methods)[policy.method] if methods else _filled(cells, "scores")
    withheld = items.by(policy.method).overrides & ~items.stands(policy)
    u = np.where(withheld[:, None], base, corrected)
    places = np.flatnonzero(truth.sum(axis=1) == 1)
    # Finite base scores mark the candidates; the rest of a row is padding.
    return [u[i][np.isfinite(base[i])] for i in places], truth[places].argmax(axis=1).tolist()


def _scored(cells: Sequence[Cell], methods: Methods) -> dict[str, Rows]:
    """Return each method's scores of the items that count for MC1; the model's if it has none."""
    scores = {name: _filled(cells, "base_scores") for name in methods}
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


def control_results(
    finding: Finding, items: Labelled, cells: Sequence[Cell], scalar: ScalarOperator
) -> ControlResults:
    """Test the controls under the terms of a finding."""
    base, truth = _filled(cells, "base_scores"), _truth(cells)
    absent = np.isneginf(base)  # padding, which must stay the lowest score
    longest = _padded([cell.characters.at(cell.mc1_places) for cell in cells])
    rows = {"shortest": np.where(absent, -np.inf, -longest), "longest": longest}
    if allowed(cells, ("pmi",)):
        blind = _filled(cells, "blind_scores")
        rows |= {"question-blind": blind, "anti-blind": np.where(absent, -np.inf, -blind)}
    worth = {}
    for name, u in rows.items():
        control = replace(items, others={name: _labelled(items, u, base, truth, name)})
        terms = replace(finding.terms, methods=(name,))
        best = judge(claims(control, scalar, terms), terms).chosen
        worth[name] = 0 if best is None else best.gain
    flips = float("nan") if finding.chosen is None else _flips(finding.chosen, items, base, truth)
    return ControlResults(worth, flips)


def _flips(trial: Trial, items: Labelled, base: Rows, truth: Truth) -> float:
    """Return the share of draws in which as many random overrides gain at least as much."""
    chosen = truth[np.arange(len(base)), base.argmax(axis=1)]
    count = np.isfinite(base).sum(axis=1)
    elsewhere = (truth.sum(axis=1) - chosen) / (count - 1)
    right = (items.mc1_base > 0).astype(float)
    fixed, broken = random_flips(right, elsewhere, trial.evidence.overrides, DRAWS)
    hits = int((fixed - broken >= trial.gain).sum())
    return (1 + hits) / (1 + DRAWS)


def _labelled(items: Labelled, u: Rows, base: Rows, truth: Truth, name: str | None) -> Labelled:
    """Return the items as these scores answer them."""
    best = np.partition(u, -2, axis=1)[:, -2:]
    return replace(
        items,
        mc1=mc1_rows(u, truth),
        overrides=u.argmax(axis=1) != base.argmax(axis=1),
        operators=items.operators if name is None else np.full(len(items), name),
        margins=best[:, 1] - best[:, 0],
        confidence=softmax(u, axis=1).max(axis=1),
        others={},
    )


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


def _truth(cells: Sequence[Cell]) -> Truth:
    return _filled(cells, "truthful") > 0
