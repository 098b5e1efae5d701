"""A cell: the records of one model on one benchmark, and their metrics (method, section 10).

Shares (MC1, MC2, ...) lie in [0, 1] here and in every other module of the package; only tables and
figures multiply by 100. Failed items are excluded from both means, and counted.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float
from scipy.special import softmax

from lastword.errors import RecordError
from lastword.files.wording import counted
from lastword.records.metrics import (
    PAIR_ENDS,
    Reliability,
    Rows,
    Truths,
    fixed_and_broken,
    mc1_rows,
    mc3_rows,
    of_items,
    pair_accuracy,
    reliability,
)
from lastword.records.ragged import Lists, PerItem, Places
from lastword.rule.operators import OPERATORS

if TYPE_CHECKING:
    import pandas as pd

SLICE = 1 << 15  # number of records that are read at once

# Columns that are always in memory, because every metric and test needs them for all items.
COUNT_COLUMNS = (
    *("id", "error", "withheld", "invariant", "regime", "operator", "index", "base_index"),
    *("truthful", "base_scores", "scores", "t_scores", "blind_scores", "blind_t_scores"),
    *("mc1_base", "mc1", "mc2_base", "mc2"),
)


@dataclass(frozen=True)
class CellCounts:
    """Counts of a cell's items, computed once so that every page shows the same numbers.

    Every record is in exactly one of the counts.

    Attributes:
        items: Answered items that count for MC1: they have a truthful and a false candidate.
        mc2: Answered items that count only for MC2.
        unlabelled: Answered items that count for neither.
        failed: Items without an answer.
    """

    items: int
    mc2: int = 0
    unlabelled: int = 0
    failed: int = 0

    def __add__(self, other: "CellCounts") -> "CellCounts":
        """Return the sum with the counts of another cell."""
        return CellCounts(*map(sum, zip(vars(self).values(), vars(other).values(), strict=True)))


@runtime_checkable
class RecordSource(Protocol):
    """Access to the records of one cell."""

    @property
    def info(self) -> Mapping[str, Any]:
        """The cell's `run.json`."""

    def slices(self, names: Sequence[str]) -> "Iterator[tuple[Places, pd.DataFrame]]":
        """Yield slices of the records: their indices in the cell, and a frame of the columns.

        Every record comes once, in any order. A column that no record has is left out.
        """

    def whole(self, places: Places) -> "pd.DataFrame":
        """Return whole records, as `load_records` does, in the order of the indices."""


@dataclass(frozen=True, eq=False)
class Cell:
    """The records of one model on one benchmark.

    Attributes:
        records: One row per record, in the benchmark's order, with at least `COUNT_COLUMNS`.
        source: The source of all columns.
    """

    model: str
    benchmark: str
    records: "pd.DataFrame"
    source: RecordSource

    @cached_property
    def answer_places(self) -> Places:
        """Indices of the records whose items were answered."""
        return np.flatnonzero(self.records["error"].isna())

    @property
    def info(self) -> Mapping[str, Any]:
        """The `run.json` of the records."""
        return self.source.info

    @property
    def failed(self) -> int:
        """The number of records of items that failed."""
        return len(self.records) - len(self.answer_places)

    @cached_property
    def items(self) -> "pd.DataFrame":
        """Records of the answered items, one row per item."""
        if not self.failed:
            return self.records
        return self.records.iloc[self.answer_places].reset_index(drop=True)

    @cached_property
    def mc1_places(self) -> Places:
        """Indices, among the answered items, of those that count for MC1."""
        return _number_places(self.items, "mc1_base")

    @cached_property
    def mc2_places(self) -> Places:
        """Indices, among the answered items, of those that count for MC2 and MC3."""
        return _number_places(self.items, "mc2_base")

    @property
    def mc1_items(self) -> "pd.DataFrame":
        """The items that count for MC1."""
        return self.items.iloc[self.mc1_places]

    @cached_property
    def counts(self) -> CellCounts:
        """The counts of the cell's items."""
        only_mc2 = np.setdiff1d(self.mc2_places, self.mc1_places).size
        neither = len(self.items) - self.mc1_places.size - only_mc2
        return CellCounts(self.mc1_places.size, only_mc2, neither, self.failed)

    @property
    def gains_mc1(self) -> PerItem:
        """Corrected minus base MC1 of every item that counts for it, in [-1, 1]."""
        return self._gains("mc1", self.mc1_places)

    @property
    def gains_mc2(self) -> PerItem:
        """Corrected minus base MC2 of every item that counts for it, in [-1, 1]."""
        return self._gains("mc2", self.mc2_places)

    def _gains(self, metric: str, places: Places) -> PerItem:
        gains = column(self.items, metric) - column(self.items, f"{metric}_base")
        values: PerItem = gains[places]
        return values

    @cached_property
    def chance(self) -> float:
        """Mean share of truths among the candidates: the expected MC1 of a random choice."""
        truthful = Lists.of(self.items["truthful"])
        return mean(truthful.each(lambda truth: truth.mean(axis=1), items=self.mc1_places))

    @cached_property
    def characters(self) -> Lists:
        """The number of characters of each candidate of each item."""
        scores = Lists.of(self.items["base_scores"])  # one per candidate
        return scores.filled(
            (items, Lists.characters(frame["candidates"]))
            for items, frame in self.slices("candidates")
        )

    @cached_property
    def wordings(self) -> Mapping[str, float]:
        """Mean MC1 of baselines that do not read the question, by name; nan if not recorded.

        `shortest` and `longest` choose by characters, not tokens, so that they are equal for all
        models. `question-blind` and `anti-blind` choose the highest and lowest score by the model
        after the blind prompt.
        """
        shares = dict.fromkeys(("shortest", "longest", "question-blind", "anti-blind"), math.nan)
        scores = {"shortest": (self.characters, -1.0), "longest": (self.characters, 1.0)}
        if "blind_scores" in self.items.columns:
            blind = Lists.of(self.items["blind_scores"])
            scores |= {"question-blind": (blind, 1.0), "anti-blind": (blind, -1.0)}
        truthful = Lists.of(self.items["truthful"])
        for name, (numbers, sign) in scores.items():
            u = replace(numbers, values=sign * numbers.values)
            shares[name] = mean(of_items(mc1_rows, u, truthful, self.mc1_places))
        return MappingProxyType(shares)

    def slices(self, *names: str) -> "Iterator[tuple[Places, pd.DataFrame]]":
        """Yield slices of the answered items: their indices, and a frame of the columns.

        Args:
            names: Columns of records; one that no record has holds nulls.
        """
        # A source counts all records; the caller counts only answered items.
        item = np.full(len(self.records), -1)
        item[self.answer_places] = np.arange(len(self.answer_places))
        for places, frame in self.source.slices(names):
            inside = item[places] >= 0
            yield item[places[inside]], frame if inside.all() else frame[inside]

    def whole(self, places: Places) -> "pd.DataFrame":
        """Return all columns of some records, in this order."""
        return self.source.whole(places)


@dataclass(frozen=True)
class Summary:
    """One line of the report's main table. All shares lie in [0, 1].

    Attributes:
        invariant: I(M); nan if the records have none.
        chance: Mean share of truths among the candidates.
        scalar: Share of items in the scalar regime.
        fired: Share of items by operator: `decisive`, `mix` (lambda not 0), `early`, and any
            other method that decided.
        gain_mc1: Part of delta MC1 by operator; the parts sum to it.
        gain_mc2: Part of delta MC2 by operator; the parts sum to it.
        blind: Mean MC1 of the question-blind baseline; nan if no blind scores were read.
        anti_blind: Mean MC1 of choosing the lowest blind score; nan likewise.
        pairs_base: Share of pairs with both of the model's answers right; nan without pairs.
        pairs: Share of pairs with both corrected answers right; nan without pairs.
    """

    model: str
    benchmark: str
    counts: CellCounts
    invariant: float
    chance: float
    mc1_base: float
    mc1: float
    mc2_base: float
    mc2: float
    mc3_base: float
    mc3: float
    ece_base: float
    ece: float
    fixed: int
    broken: int
    scalar: float
    fired: Mapping[str, float]
    gain_mc1: Mapping[str, float]
    gain_mc2: Mapping[str, float]
    blind: float
    anti_blind: float
    shortest: float
    longest: float
    pairs_base: float
    pairs: float

    @property
    def delta_mc1(self) -> float:
        """Corrected minus base MC1, in [-1, 1]."""
        return self.mc1 - self.mc1_base

    @property
    def delta_mc2(self) -> float:
        """Corrected minus base MC2, in [-1, 1]."""
        return self.mc2 - self.mc2_base


def require_counted(cells: Sequence[Cell]) -> None:
    """Check that at least one item counts for a metric.

    Raises:
        RecordError: No item counts; the message has the reason.
    """
    counts = sum((cell.counts for cell in cells), CellCounts(0))
    if counts.items or counts.mc2:
        return
    why = f"{counts.unlabelled:,} items have no labels" if counts.unlabelled else "no item answered"
    errors = [text for cell in cells for text in cell.records["error"].dropna().head(1)]
    failed = (
        f"; {counted(counts.failed, 'item')} failed, such as with: {errors[0]}" if errors else ""
    )
    raise RecordError(f"there is nothing to reduce: {why}{failed}")


def benchmark_of(name: str) -> str:
    """Return a benchmark's name without its template: `truthfulqa` for `truthfulqa@own6`."""
    return name.split("@", 1)[0]


def summarise(cell: Cell) -> Summary:
    """Return the summary of a cell, one line of the report's tables."""
    items, first, second = cell.items, cell.mc1_places, cell.mc2_places
    gains_mc1, gains_mc2 = cell.gains_mc1, cell.gains_mc2
    fixed, broken = fixed_and_broken(gains_mc1)
    # Shares are over the items that count for MC1, if there are any: a TruthfulQA question gives
    # two items, one for MC1 and one for MC2. The paper's 5.26% of scalar items is 43 of 817.
    routed = first if first.size else np.arange(len(items))
    return Summary(
        model=cell.model,
        benchmark=cell.benchmark,
        counts=cell.counts,
        invariant=mean(column(items, "invariant")[:1]),
        chance=cell.chance,
        mc1_base=mean(column(items, "mc1_base")[first]),
        mc1=mean(column(items, "mc1")[first]),
        mc2_base=mean(column(items, "mc2_base")[second]),
        mc2=mean(column(items, "mc2")[second]),
        mc3_base=mean(_per_item(cell, mc3_rows, "base_scores", second)),
        mc3=mean(_per_item(cell, mc3_rows, "scores", second)),
        ece_base=calibration(cell, "base_scores").ece,
        ece=calibration(cell, "scores").ece,
        fixed=fixed,
        broken=broken,
        scalar=mean((items["regime"] == "scalar").to_numpy(float)[routed]),
        fired=_by_operator(items, routed, mean),
        gain_mc1=_by_operator(items, first, lambda fires: mean(fires * gains_mc1)),
        gain_mc2=_by_operator(items, second, lambda fires: mean(fires * gains_mc2)),
        blind=cell.wordings["question-blind"],
        anti_blind=cell.wordings["anti-blind"],
        shortest=cell.wordings["shortest"],
        longest=cell.wordings["longest"],
        pairs_base=_pairs(items, first, "mc1_base"),
        pairs=_pairs(items, first, "mc1"),
    )


def calibration(cell: Cell, scores: str) -> Reliability:
    """Return the reliability curve of softmax(scores) over the items that count for MC1."""
    tops = Lists.of(cell.items[scores]).each(confidence, items=cell.mc1_places)
    right = column(cell.items, "mc1_base" if scores == "base_scores" else "mc1")
    return reliability(tops, right[cell.mc1_places])


def confidence(scores: Float[np.ndarray, "items candidates"]) -> PerItem:
    """Return the probability of the top candidate, in [0, 1]."""
    tops: PerItem = softmax(scores, axis=1).max(axis=1)
    return tops


def _pairs(items: "pd.DataFrame", places: Places, name: str) -> float:
    ids = items["id"].astype(str)
    paired = places[ids.str.endswith(PAIR_ENDS).to_numpy(bool)[places]]
    return pair_accuracy(ids.iloc[paired].tolist(), column(items, name)[paired])


def column(items: "pd.DataFrame", name: str) -> PerItem:
    """Return a column as float64 [items], with null as nan."""
    return items[name].astype(float).to_numpy(dtype=float)


def _number_places(items: "pd.DataFrame", name: str) -> Places:
    valid: np.ndarray = ~np.isnan(column(items, name))
    return np.flatnonzero(valid)


def mean(values: PerItem | Sequence[float]) -> float:
    """Return the unweighted mean; nan if a value is nan or there are no values."""
    array = np.asarray(values, dtype=float)
    return float(array.mean()) if array.size else float("nan")


def mean_defined(values: PerItem | Sequence[float]) -> float:
    """Return the unweighted mean of the values that are not nan; nan if there are none."""
    array = np.asarray(values, dtype=float)
    return mean(array[~np.isnan(array)])


def _by_operator(
    items: "pd.DataFrame", places: Places, value: Callable[[PerItem], float]
) -> Mapping[str, float]:
    operators = items["operator"]
    others = [n for n in operators.unique() if isinstance(n, str) and n not in OPERATORS]
    names = [n for n in OPERATORS if n != "base"] + sorted(others)
    fires = {n: (operators == n).to_numpy(float)[places] for n in names}
    return MappingProxyType({name: value(fired) for name, fired in fires.items()})


def _per_item(
    cell: Cell, metric: Callable[[Rows, Truths], np.ndarray], scores: str, places: Places
) -> PerItem:
    truthful = Lists.of(cell.items["truthful"])
    return of_items(metric, Lists.of(cell.items[scores]), truthful, places)
