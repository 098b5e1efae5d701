"""Controls: baselines that a benchmark's gain has to beat to count as one (docs/statistics.md).

None of them reads the question. Random flips gain if the base is below chance, the longest
candidate is often right if truths are longer, and a rule may only prefer a wording. All use MC1,
over the items that count for it.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from lastword.probes.controls import ALPHA, Fit, fit_cell
from lastword.records.cells import Cell, column, mean
from lastword.records.metrics import ByDepth, PerItem, Places, mc1_by_depth
from lastword.trust.paired import ROUNDING, random_flips

DRAWS = 4000


@dataclass(frozen=True)
class Placebo:
    """Random overrides, as many as the rule made, on random items and to random candidates.

    `gain` is their mean gain in MC1, and `p` the share of draws that gain at least what the rule
    gained; both are nan without an override.
    """

    overrides: int
    gain: float
    p: float


@dataclass(frozen=True)
class Controls:
    """Controls of the rule in one cell. Shares lie in [0, 1]; nan if the scores were not read.

    `fit` needs every depth with and without the question. The oracles are the shares of items that
    some depth answers right, with and without it.
    """

    base: float
    corrected: float
    chance: float
    placebo: Placebo
    wordings: Mapping[str, float]
    fit: Fit | None
    oracle: float
    blind_oracle: float

    @property
    def rivals(self) -> dict[str, float]:
        """Mean MC1 of all baselines that never read the question, by name."""
        fitted = {} if self.fit is None else {"fitted wording": self.fit.wording}
        return {"chance": self.chance, **self.wordings, **fitted}

    @property
    def objection(self) -> str:
        """The reason not to count a gain as help, in words; empty if there is none."""
        rivals = {name: share for name, share in self.rivals.items() if share >= self.corrected}
        if rivals:
            best = max(rivals, key=lambda name: rivals[name])
            return f"and so does {best}, which never reads the question"
        return "" if self.placebo.p < ALPHA else "and so do as many random flips"

    @property
    def sentence(self) -> str:
        """The results of the controls and of the rule in words; shares in percent."""
        read = {name: share for name, share in self.rivals.items() if share == share}
        if not read:
            return ""
        parts = [", ".join(f"{name} {100 * share:.2f}" for name, share in read.items())]
        if self.placebo.overrides:
            flips = f"as many random flips {100 * self.placebo.gain:+.2f}"
            parts.append(f"{flips} points (P {self.placebo.p:.2g})")
        if self.fit is not None:
            parts.append(f"reading adds {self.fit.reading.sentence}")
            parts.append(f"the middle adds {self.fit.middle.sentence}")
        return f"For comparison, without the question: {'; '.join(parts)}."


def controls(cell: Cell) -> Controls:
    """Return the controls of one cell."""
    return Controls(
        base=mean(column(cell.items, "mc1_base")[cell.mc1_places]),
        corrected=mean(column(cell.items, "mc1")[cell.mc1_places]),
        chance=cell.chance,
        placebo=placebo(cell),
        wordings=cell.wordings,
        fit=fit_cell(cell),
        oracle=_any_depth(cell, "trajectory"),
        blind_oracle=_any_depth(cell, "blind_trajectory"),
    )


def placebo(cell: Cell) -> Placebo:
    """Compare the rule's gain with those of as many random overrides, drawn `DRAWS` times."""
    items, counts = cell.items, cell.mc1_places
    overrides = int((column(items, "index") != column(items, "base_index"))[counts].sum())
    if not overrides:
        return Placebo(0, float("nan"), float("nan"))
    base = column(items, "mc1_base")[counts]
    fixed, broken = random_flips(base, _truth_elsewhere(cell), overrides, DRAWS)
    gains = (fixed - broken) / len(counts)
    hits = int((gains >= mean(cell.gains("mc1")) - ROUNDING).sum())
    return Placebo(overrides, mean(gains), (1 + hits) / (1 + DRAWS))


def _truth_elsewhere(cell: Cell) -> PerItem:
    """Return the share of truths among candidates that the base did not choose, per item."""
    places = cell.mc1_places
    truthful, count = cell.truthful[places], cell.present[places].sum(axis=1)
    index = column(cell.items, "base_index")[places].astype(int)
    chosen = truthful[np.arange(len(places)), index]
    shares: PerItem = (truthful.sum(axis=1) - chosen) / (count - 1)
    return shares


def _any_depth(cell: Cell, trajectory: str) -> float:
    """Return the share of items that some depth answers right; nan if not every depth was read."""
    pieces = mc1_of_depths(cell, trajectory, cell.mc1_places)
    return mean(np.concatenate([np.empty(0), *(shares.max(axis=1) for shares in pieces)]))


def mc1_of_depths(cell: Cell, trajectory: str, items: Places) -> Iterator[ByDepth]:
    """Yield MC1 of the scores at every depth [items, depths], for some items at a time."""
    for some, table in cell.pieces(trajectory, items=items):
        yield mc1_by_depth(cell.stack(some, table[trajectory]), cell.truthful[some])
