"""The tables of a comparison: every method on one model and one benchmark, shares in points."""

import math
from collections.abc import Sequence

from lastword.evaluation.comparison import Comparison, Standing
from lastword.evaluation.probed import FOLDS, LAST, MOST, PROBE, PROBES, WORDS
from lastword.report.table import Table, Value, columns

ORACLE = "any depth (oracle)"
BLIND_ORACLE = "any depth, question unread (oracle)"
_METHODS = {"question-blind"}  # rivals that are methods, and rows, themselves

_CELL = columns("Model | Benchmark | Method")
_STANDING = columns(
    "Items | MC1 .2 | ΔMC1 +.2 | MC2 .2 | MC2 a token .2 | MC3 .2 | Against | Fixed | Broken"
    " | p .3g | Holm p .3g"
)
_BESIDE = columns("Wins | Losses | p .3g | Holm p .3g")
_NOTES = (
    "Each method is held against the base of its own aggregation; p is McNemar's exact test over "
    "groups (copies and pairs are one), Holm's correction is over the methods of a cell.",
    "MC2 is the softmax of a method's scores as published (sums, means or sums over bytes), MC2 a "
    "token of the same scores as means over tokens. Only the latter compares between rows.",
    "Rows without a base never read the question (fitted wording learned from the truths of other "
    "items what truths look like): what comes no further than they do has shown nothing, nor has "
    "what comes no further than question-blind and length-only.",
    "The oracle counts an item if any depth ranks a truth first: no method could know which.",
)
_PROBES = (
    f"{PROBE}, {LAST} and {WORDS} are cross-fitted: each text is answered by fits on other groups "
    f"of texts, {FOLDS} folds, at most {MOST:,} texts a cell. They learned from labels. "
    f"{WORDS} reads the text and needs no model: a probe that is no better is of no use."
)
_BESIDE_NOTES = (
    "A win is an item that TRACE has wrong and the method right, a loss the reverse; p is "
    "McNemar's exact test over groups, Holm's correction is over the methods of a cell.",
)


def comparison_tables(comparisons: Sequence[Comparison]) -> list[Table]:
    """Every method of every cell against its base, and beside TRACE."""
    rows: list[tuple[Value, ...]] = []
    beside: list[tuple[Value, ...]] = []
    for comparison in comparisons:
        cell = (comparison.model, comparison.benchmark)
        rows += [(*cell, s.method, *_standing(s)) for s in comparison.standings]
        rows += [(*cell, name, *_alone(share)) for name, share in _alone_by(comparison).items()]
        beside += [
            (*cell, s.method, s.ahead, s.behind, s.p_trace, s.p_trace_holm)
            for s in comparison.standings
        ]
    title = "Every method on the same states"
    notes = (*_NOTES, *_probe_notes(comparisons))
    return [
        Table("comparison", title, (*_CELL, *_STANDING), tuple(rows), notes),
        Table(
            "comparison-trace",
            "Every method beside TRACE",
            (*_CELL, *_BESIDE),
            tuple(beside),
            _BESIDE_NOTES,
        ),
    ]


def _probe_notes(comparisons: Sequence[Comparison]) -> list[str]:
    """Say what the rows of probes are, and which cells have none and why."""
    there = any(not own.unprobed for own in comparisons)
    lines = [
        f"{own.model} on {own.benchmark} has no rows of {', '.join(PROBES)}: {own.unprobed}."
        for own in comparisons
        if own.unprobed
    ]
    return [_PROBES, *lines] if there else lines


def _standing(s: Standing) -> tuple[Value, ...]:
    shares = (s.mc1, s.delta_mc1, s.mc2, s.mc2_normalised, s.mc3)
    points = [100 * v for v in shares]
    return (s.items, *points, s.base, s.fixed, s.broken, s.p_base, s.p_base_holm)


def _alone_by(comparison: Comparison) -> dict[str, float]:
    """Mean MC1 of what is no method: controls that were read, then the oracles."""
    oracles = {ORACLE: comparison.oracle, BLIND_ORACLE: comparison.blind_oracle}
    rivals = {n: share for n, share in comparison.rivals.items() if n not in _METHODS}
    rivals[WORDS] = comparison.words
    return {name: share for name, share in {**rivals, **oracles}.items() if share == share}


def _alone(share: float) -> tuple[Value, ...]:
    blank = [math.nan] * 4
    return (math.nan, 100 * share, *blank, "", *blank)
