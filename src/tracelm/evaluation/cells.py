"""A cell: one model on one benchmark, and what its records say (method, section 10).

Shares (MC1, MC2, ...) lie in [0, 1] here and in every other module of the package; only tables and
figures multiply by 100. A failed item leaves both the base and the corrected mean and is counted.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float
from scipy.special import softmax

from tracelm.errors import RecordError
from tracelm.evaluation.metrics import (
    Reliability,
    fixed_and_broken,
    mc1,
    mc3,
    pair_accuracy,
    reliability,
)
from tracelm.rule.operators import OPERATORS

if TYPE_CHECKING:
    import pandas as pd

PerItem = Float[np.ndarray, " items"]

_NEEDED = ("id", "model", "benchmark", "truthful", "scores", "base_scores", "operator", "regime")
_METRICS = ("mc1_base", "mc1", "mc2_base", "mc2", "error")


@dataclass(frozen=True)
class Counts:
    """How many items there are: counted once, so that every place says the same number.

    An item is one that counts for MC1; the others are named beside it. No record is in two.

    Attributes:
        items: Answered, with a truthful and a false candidate: what MC1 is a mean over.
        mc2: Answered, and of use to MC2 alone.
        unlabelled: Answered, and judged by neither.
        failed: Not answered.
    """

    items: int
    mc2: int = 0
    unlabelled: int = 0
    failed: int = 0

    def __add__(self, other: "Counts") -> "Counts":
        """Of two cells together."""
        return Counts(
            self.items + other.items,
            self.mc2 + other.mc2,
            self.unlabelled + other.unlabelled,
            self.failed + other.failed,
        )


@dataclass(frozen=True, eq=False)
class Cell:
    """The records of one model on one benchmark.

    Attributes:
        model: The model's name.
        benchmark: The benchmark's name.
        items: Records of the answered items, one row an item.
        failed: How many of its records are of items that failed.
    """

    model: str
    benchmark: str
    items: "pd.DataFrame"
    failed: int

    @cached_property
    def mc1_items(self) -> "pd.DataFrame":
        """The items that count for MC1."""
        return self.items[self.items["mc1_base"].notna()]

    @cached_property
    def mc2_items(self) -> "pd.DataFrame":
        """The items that count for MC2 and MC3."""
        return self.items[self.items["mc2_base"].notna()]

    @cached_property
    def counts(self) -> Counts:
        """How many items it has."""
        first, second = (self.items[name].notna() for name in ("mc1_base", "mc2_base"))
        neither = int((~first & ~second).sum())
        return Counts(int(first.sum()), int((second & ~first).sum()), neither, self.failed)

    @property
    def gains_mc1(self) -> PerItem:
        """Corrected minus base MC1 of every item that counts for it, in [-1, 1]."""
        gains: PerItem = column(self.mc1_items, "mc1") - column(self.mc1_items, "mc1_base")
        return gains

    @property
    def gains_mc2(self) -> PerItem:
        """Corrected minus base MC2 of every item that counts for it, in [-1, 1]."""
        gains: PerItem = column(self.mc2_items, "mc2") - column(self.mc2_items, "mc2_base")
        return gains


@dataclass(frozen=True)
class Summary:
    """One line of the master table, and what stands beside it. All shares lie in [0, 1].

    Attributes:
        model: The model's name.
        benchmark: The benchmark's name.
        counts: How many items it has.
        invariant: I(M); nan where the records have none.
        mc1_base: Mean MC1 of the model's own answers.
        mc1: Mean MC1 of the corrected answers.
        mc2_base: Mean MC2 of the base scores.
        mc2: Mean MC2 of the corrected scores.
        mc3_base: Mean MC3 of the base scores.
        mc3: Mean MC3 of the corrected scores.
        ece_base: Calibration error of the base probabilities.
        ece: Calibration error of the corrected probabilities.
        fixed: Answers that correction made right (MC1 rose).
        broken: Answers that correction made wrong (MC1 fell).
        scalar: Share of items in the scalar regime.
        fired: Share of items by operator: `decisive`, `mix` (lambda not 0), `early`.
        gain_mc1: What each operator adds to delta MC1; they sum to it.
        gain_mc2: What each operator adds to delta MC2; they sum to it.
        blind: Mean MC1 of the question-blind baseline; nan where no blind scores were read.
        shortest: Mean MC1 of the length-only baseline.
        pairs_base: Share of pairs with both of the model's own answers right; nan without pairs.
        pairs: Share of pairs with both corrected answers right; nan without pairs.
    """

    model: str
    benchmark: str
    counts: Counts
    invariant: float
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
    shortest: float
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


def cells(records: "pd.DataFrame") -> list[Cell]:
    """Records parted by model and benchmark, in the order in which they first come.

    Raises:
        RecordError: No records, or a column is missing.
    """
    if not len(records):
        raise RecordError("no records; run `tracelm eval` first")
    missing = [name for name in _NEEDED + _METRICS if name not in records.columns]
    if missing:
        raise RecordError(f"the records lack {', '.join(missing)}; write them with `tracelm eval`")
    parted = []
    for (model, benchmark), group in records.groupby(["model", "benchmark"], sort=False):
        answered = group[group["error"].isna()]
        failed = len(group) - len(answered)
        parted.append(Cell(str(model), str(benchmark), answered.reset_index(drop=True), failed))
    return parted


def benchmark_of(name: str) -> str:
    """The benchmark of a cell's name without the template (`truthfulqa@own6`)."""
    return name.split("@", 1)[0]


def summarise(cell: Cell) -> Summary:
    """What the records of one cell say, as one line."""
    first, second = cell.mc1_items, cell.mc2_items
    gains = cell.gains_mc1
    fixed, broken = fixed_and_broken(gains)
    shared = _routed(cell)
    return Summary(
        model=cell.model,
        benchmark=cell.benchmark,
        counts=cell.counts,
        invariant=mean(column(cell.items, "invariant")[:1]),
        mc1_base=mean(column(first, "mc1_base")),
        mc1=mean(column(first, "mc1")),
        mc2_base=mean(column(second, "mc2_base")),
        mc2=mean(column(second, "mc2")),
        mc3_base=mean(_each(second, mc3, "base_scores")),
        mc3=mean(_each(second, mc3, "scores")),
        ece_base=calibration(cell, "base_scores").ece,
        ece=calibration(cell, "scores").ece,
        fixed=fixed,
        broken=broken,
        scalar=mean((shared["regime"] == "scalar").to_numpy(float)),
        fired=_by_operator(shared, lambda fires: mean(fires)),
        gain_mc1=_by_operator(first, lambda fires: mean(fires * gains)),
        gain_mc2=_by_operator(second, lambda fires: mean(fires * cell.gains_mc2)),
        blind=question_blind(cell),
        shortest=shortest(cell),
        pairs_base=_pairs(first, "mc1_base"),
        pairs=_pairs(first, "mc1"),
    )


def question_blind(cell: Cell) -> float:
    """Mean MC1 of the question-blind baseline: base scores with the question left out.

    nan where an item that counts has no blind scores.
    """
    if "blind_scores" not in cell.items.columns:
        return float("nan")
    return mean(_each(cell.mc1_items, mc1, "blind_scores"))


def shortest(cell: Cell) -> float:
    """Mean MC1 of the length-only baseline: the candidate with the fewest characters.

    Characters, not tokens: the baseline is then the same for every model.
    """
    rows = zip(cell.mc1_items["candidates"], cell.mc1_items["truthful"], strict=True)
    values = [mc1([-len(text) for text in texts], np.asarray(truth)) for texts, truth in rows]
    return mean(np.array(values, dtype=float))


def calibration(cell: Cell, scores: str) -> Reliability:
    """Reliability curve of softmax(scores) over the items that count for MC1.

    Args:
        cell: The cell.
        scores: `base_scores` or `scores`.
    """
    vectors = [np.asarray(u, dtype=float) for u in cell.mc1_items[scores]]
    tops = np.array([softmax(u).max() for u in vectors], dtype=float)
    return reliability(
        tops, column(cell.mc1_items, "mc1_base" if scores == "base_scores" else "mc1")
    )


def _pairs(items: "pd.DataFrame", name: str) -> float:
    return pair_accuracy(items["id"].astype(str).tolist(), column(items, name))


def column(items: "pd.DataFrame", name: str) -> PerItem:
    """A column as float64, null as nan."""
    return items[name].astype(float).to_numpy(dtype=float)


def mean(values: PerItem | Sequence[float]) -> float:
    """Unweighted mean; nan for nothing and where a value is nan."""
    array = np.asarray(values, dtype=float)
    return float(array.mean()) if array.size else float("nan")


def _routed(cell: Cell) -> "pd.DataFrame":
    """The items that shares are taken over: those of MC1, where there are any.

    A TruthfulQA question is two items; the paper's 5.26% of scalar items is 43 of 817 questions.
    """
    return cell.mc1_items if len(cell.mc1_items) else cell.items


def _by_operator(items: "pd.DataFrame", value: Callable[[PerItem], float]) -> Mapping[str, float]:
    operators = items["operator"].to_numpy(dtype=object)
    return MappingProxyType(
        {name: value((operators == name).astype(float)) for name in OPERATORS if name != "base"}
    )


def _each(items: "pd.DataFrame", metric: Callable[[Any, Any], float], scores: str) -> PerItem:
    rows = zip(items[scores], items["truthful"], strict=True)
    values = [float("nan") if u is None else metric(np.asarray(u), np.asarray(t)) for u, t in rows]
    return np.array(values, dtype=float)
