"""Comparison of corrections: tests every method's answers on the same items.

It uses the records of runs with methods (`lastword compare`). A method is compared with the base of
the same aggregation, so that using sums instead of means is not counted as a gain, and with TRACE
on the same items.

Records without a method's scores raise `RecordError`.
"""

import math
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from jaxtyping import Float

from lastword.errors import RecordError
from lastword.lab.evaluation.controls import controls
from lastword.lab.report.table import ReportTable, Value, points
from lastword.records.cells import Cell, mean_defined
from lastword.records.derived import derive, fitted_methods
from lastword.records.info import find_cells, read_run
from lastword.records.metrics import (
    Metric,
    PerItem,
    Places,
    Rows,
    mc1_rows,
    mc2_rows,
    mc3_rows,
    of_items,
)
from lastword.trust.groups import Groups, changed_groups
from lastword.trust.paired import paired
from lastword.trust.policy import TRACE
from lastword.trust.testing import holm

if TYPE_CHECKING:
    from lastword.methods.contract import Aggregation, Method

ORACLE = "any depth (oracle)"
BLIND_ORACLE = "any depth, question unread (oracle)"
_METHODS = {"question-blind"}  # controls that have a row because they are methods too

_CELL = "Model | Benchmark | Method"
_STANDING = (
    "Items | MC1 .2 | ΔMC1 +.2 | MC2 .2 | MC2 a token .2 | MC3 .2 | Against | Fixed | Broken"
    " | p .3g | Holm p .3g"
)
_BESIDE = "Wins | Losses | p .3g | Holm p .3g"
_NOTES = (
    "Each method is compared with the base of the same aggregation; p is McNemar's exact test over "
    "groups (copies and pairs are one), Holm's correction is over the methods of a cell.",
    "MC2 is the softmax of a method's scores as published, MC2 a token that of the same scores as "
    "means over tokens. Only the latter compares between rows.",
    "Rows without a base never read the question. The oracle counts an item if any depth ranks a "
    "truth first; no method could know which.",
)
_BESIDE_NOTES = (
    "A win is an item that TRACE has wrong and the method right, a loss the reverse; p is "
    "McNemar's exact test over groups, Holm's correction is over the methods of a cell.",
)


class Against(NamedTuple):
    """The comparison of a method with another on the items that both answered.

    `p` is of McNemar's exact test, two-sided, over groups of items; nan against itself. `p_holm` is
    corrected over the methods of the cell.
    """

    won: int
    lost: int
    p: float
    p_holm: float


@dataclass(frozen=True)
class MethodResult:
    """One method on one cell. All shares lie in [0, 1]; nan without items to compare.

    Attributes:
        items: Number of items that count for MC1 and have its scores.
        mc2: Mean MC2 of its scores as published, by log-sum-exp.
        mc2_normalised: Mean MC2 of its scores as means over tokens.
        base: The base that it is compared with: `base-mean`, `base-sum` or `base-bytes`.
    """

    method: str
    items: int
    mc1: float
    delta_mc1: float
    mc2: float
    mc2_normalised: float
    mc3: float
    base: str
    against_base: Against
    against_trace: Against


@dataclass(frozen=True)
class Comparison:
    """Every method on one model and one benchmark.

    `controls` has mean MC1 of controls that never read the question, and of the oracles.
    """

    model: str
    benchmark: str
    standings: tuple[MethodResult, ...]
    controls: Mapping[str, float]


def compare(
    cell: Cell, methods: "Mapping[str, Aggregation]", fitted: "Mapping[str, Method] | None" = None
) -> Comparison:
    """Return the results of every method on a cell."""
    from lastword.methods.contract import aggregate  # imports torch

    tokens, sizes, scores = _scores(cell, methods)
    scores |= derive(cell, fitted or {})

    def of(metric: Metric, u: Rows, places: Places) -> Float[np.ndarray, " places"]:
        return of_items(metric, u[places], cell.truthful[places])

    base, first, second = cell.scores["base_scores"], cell.mc1_places, cell.mc2_places
    bases = {how: aggregate(base, how, tokens, sizes) for how in {*methods.values()}}
    mc1 = {name: of(mc1_rows, scores[name], first) for name in methods}
    on_base = {n: mc1[n] - of(mc1_rows, bases[how], first) for n, how in methods.items()}
    on_trace = {n: mc1[n] - of(mc1_rows, cell.scores["scores"], first) for n in methods}
    # Grouping reads texts, so it is done once, for the items that any comparison changes.
    changes = [np.nan_to_num(gain) != 0 for gain in (*on_base.values(), *on_trace.values())]
    groups = changed_groups(cell, np.sum(changes, axis=0, dtype=float))
    against_base = _against(on_base, groups, {f"base-{how}" for how in bases})
    against_trace = _against(on_trace, groups, {TRACE})

    def result(name: str, how: "Aggregation") -> MethodResult:
        u = scores[name]
        # A mean of 1 has the aggregate that a score is divided by to make a mean of it.
        means = u / aggregate(np.ones_like(u), how, tokens, sizes)
        return MethodResult(
            method=name,
            items=int((~np.isnan(mc1[name])).sum()),
            mc1=mean_defined(mc1[name]),
            delta_mc1=mean_defined(on_base[name]),
            mc2=mean_defined(of(mc2_rows, u, second)),
            mc2_normalised=mean_defined(of(mc2_rows, means, second)),
            mc3=mean_defined(of(mc3_rows, u, second)),
            base=f"base-{how}",
            against_base=against_base[name],
            against_trace=against_trace[name],
        )

    of_cell = controls(cell)
    shares = {name: share for name, share in of_cell.rivals.items() if name not in _METHODS}
    shares |= {ORACLE: of_cell.oracle, BLIND_ORACLE: of_cell.blind_oracle}
    shares = {name: share for name, share in shares.items() if not math.isnan(share)}
    standings = tuple(result(name, how) for name, how in methods.items())
    return Comparison(cell.model, cell.benchmark, standings, shares)


def _against(
    gains: Mapping[str, PerItem], groups: Groups, itself: Container[str]
) -> dict[str, Against]:
    """Return tests of the methods' gains over another, which is `itself` among them.

    Holm's correction is over the methods; the other is not compared with itself.
    """
    tests = {name: paired(gain, groups) for name, gain in gains.items()}
    p = [math.nan if name in itself else p for name, (*_, p) in tests.items()]
    rows = zip(tests.items(), p, holm(np.array(p)).tolist(), strict=True)
    return {name: Against(won, lost, p, p_holm) for (name, (won, lost, _)), p, p_holm in rows}


def read_comparisons(runs: Path, parted: Sequence[Cell]) -> list[Comparison]:
    """Return comparisons of the cells whose runs included methods."""
    infos = {(run["model"], run["benchmark"]): run for run in map(read_run, find_cells(runs))}
    pairs = [(cell, infos[cell.model, cell.benchmark]) for cell in parted]
    return [
        compare(cell, names, fitted_methods(names, run))
        for cell, run in pairs
        if (names := run.get("methods"))
    ]


def _scores(cell: Cell, names: Iterable[str]) -> tuple[Rows, Rows, dict[str, Rows]]:
    tokens, sizes = np.ones(cell.present.shape), np.where(cell.present, cell.sizes(), 1.0)
    scores = {name: np.where(cell.present, np.nan, -np.inf) for name in names}
    for items, table in cell.pieces("methods", "candidate_tokens"):
        present = cell.present[items]
        tokens[items] = np.where(present, cell.stack(items, table["candidate_tokens"]), 1.0)
        by = cell.stack_by_name(items, table["methods"])
        for name, u in scores.items():
            if name not in by:
                raise RecordError(
                    f"{cell.model} on {cell.benchmark} has no scores of {name}; write them with "
                    "`lastword compare`"
                )
            u[items] = by[name]
    return tokens, sizes, scores


def comparison_tables(comparisons: Sequence[Comparison]) -> list[ReportTable]:
    """Return tables of every method per cell: against its base and TRACE."""
    if not comparisons:
        return []
    rows: list[tuple[Value, ...]] = []
    trace_rows: list[tuple[Value, ...]] = []
    blank = [math.nan] * 4
    for comparison in comparisons:
        cell = (comparison.model, comparison.benchmark)
        for s in comparison.standings:
            shares = points(s.mc1, s.delta_mc1, s.mc2, s.mc2_normalised, s.mc3)
            rows.append((*cell, s.method, s.items, *shares, s.base, *s.against_base))
        for name, share in comparison.controls.items():
            rows.append((*cell, name, math.nan, 100 * share, *blank, "", *blank))
        trace_rows += [(*cell, s.method, *s.against_trace) for s in comparison.standings]
    title, trace_title = "Every method on the same states", "Every method beside TRACE"
    return [
        ReportTable.of("comparison", title, f"{_CELL} | {_STANDING}", rows, _NOTES),
        ReportTable.of(
            "comparison-trace", trace_title, f"{_CELL} | {_BESIDE}", trace_rows, _BESIDE_NOTES
        ),
    ]
