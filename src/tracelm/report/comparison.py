"""The table of a comparison: every method on one model and one benchmark, shares in points."""

import math
from collections.abc import Sequence

from tracelm.evaluation.comparison import Comparison, Standing
from tracelm.report.table import Column, Table, Value, level

ORACLE = "any depth (oracle)"

_COLUMNS = (
    Column("Model"),
    Column("Benchmark"),
    Column("Method"),
    Column("Items"),
    level("MC1"),
    level("MC2"),
    level("MC2 a token"),
    level("MC3"),
    Column("Against"),
    Column("Fixed"),
    Column("Broken"),
    Column("p", 3, significant=True),
    Column("p, Holm", 3, significant=True),
    Column("TRACE wrong, it right"),
    Column("TRACE right, it wrong"),
    Column("p vs TRACE", 3, significant=True),
    Column("p vs TRACE, Holm", 3, significant=True),
    Column("s/item", 4),
    Column("Head reads/item", 1),
)
_NOTES = (
    "Each method is held against the base of its own aggregation; p is McNemar's exact test, "
    "Holm's correction is over the methods of a cell.",
    "MC2 is the softmax of a method's scores as published (sums, means or sums over bytes), MC2 a "
    "token of the same scores as means over tokens; both by log-sum-exp. Only the latter is "
    "comparable between rows.",
    "question-blind and length-only have not read the question: what comes no further than they "
    "do has shown nothing.",
    "The oracle counts an item if any depth ranks a truth first: no method could know which.",
    "Seconds and head reads (positions times depths through the output head) are of each method "
    "alone, on a sample; TRACE reads what its decisions need.",
)


def comparison_table(comparisons: Sequence[Comparison]) -> Table:
    """Every method of every cell, and what a perfect choice of depth would reach."""
    rows: list[tuple[Value, ...]] = []
    for comparison in comparisons:
        cell = (comparison.model, comparison.benchmark)
        rows += [(*cell, *_standing(s)) for s in comparison.standings]
        blank = [math.nan] * 3
        tested = [math.nan] * (len(_COLUMNS) - 9)
        oracle: tuple[Value, ...] = (
            *cell,
            ORACLE,
            math.nan,
            100 * comparison.oracle,
            *blank,
            "",
            *tested,
        )
        rows.append(oracle)
    return Table("comparison", "Every method on the same states", _COLUMNS, tuple(rows), _NOTES)


def _standing(s: Standing) -> tuple[Value, ...]:
    shares = [100 * v for v in (s.mc1, s.mc2, s.mc2_normalised, s.mc3)]
    return (
        s.method,
        s.items,
        *shares,
        s.base,
        *(s.fixed, s.broken, s.p_base, s.p_base_holm),
        *(s.ahead, s.behind, s.p_trace, s.p_trace_holm),
        math.nan if s.cost is None else s.cost.seconds,
        math.nan if s.cost is None else s.cost.head_reads,
    )
