"""The tables of a run, from summaries of records (docs/benchmarks.md), in points.

cells_table, grid, per_model    every cell, the means over cells, the paper's per-model table
verdict_table                   one verdict in words per cell
controls_table                  the baselines that a gain has to beat
calibrations                    MC3 and calibration
"""

import math
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np

from lastword.lab.evaluation.controls import Controls
from lastword.lab.evaluation.statistics import LEAST_CELLS, Judgement, over_cells
from lastword.lab.report.table import EN_DASH, ReportTable, Value, points
from lastword.probes.controls import Fit
from lastword.records.cells import Summary, mean_defined
from lastword.rule.theta import Theta
from lastword.trust.policy import OVERRIDING, scalar_operator


def cells_table(summaries: Sequence[Summary]) -> ReportTable:
    """Return the counts and metrics of every cell."""
    heads = (
        "Model | Benchmark | Items | Chance .2 | MC1 base .2 | MC1 .2 | ΔMC1 +.2 | MC2 base .2"
        " | MC2 .2 | ΔMC2 +.2 | Fixed | Broken | Failed"
    )
    paired = any(s.pairs == s.pairs for s in summaries)
    rows: list[tuple[Value, ...]] = []
    for s in summaries:
        shares = (s.chance, s.mc1_base, s.mc1, s.delta_mc1, s.mc2_base, s.mc2, s.delta_mc2)
        ends = (s.fixed, s.broken, s.counts.failed, *points(s.pairs_base, s.pairs)[: 2 * paired])
        rows.append((s.model, s.benchmark, s.counts.items, *points(*shares), *ends))
    pairs = " | Pairs base .2 | Pairs .2" if paired else ""
    return ReportTable.of("results", "Results", f"{heads}{pairs}", rows)


_SHARED = (
    "Pairs that share items or models are not independent: intervals and tests over pairs say "
    "how stable the mean is over this grid, no more."
)


def grid(summaries: Sequence[Summary]) -> ReportTable:
    """Return the table of means over cells, with intervals, sign tests and regressions."""
    heads = "Metric | Pairs | Mean +.2 | 95% low +.2 | 95% high +.2 | Sign test p .3g"
    rows: list[tuple[Value, ...]] = []
    for metric in ("mc1", "mc2"):
        over = over_cells(np.array([getattr(s, f"delta_{metric}") for s in summaries]))
        means = points(over.mean, over.interval.low, over.interval.high)
        rows.append((f"Δ{metric.upper()}", over.cells, *means, over.sign_p, over.negative))
    notes = (
        _SHARED,
        f"A pair is a model on a dataset. An interval needs {LEAST_CELLS} pairs. A pair is "
        "negative if its mean is below 0, whatever its verdict.",
    )
    return ReportTable.of("grid", "Means over pairs", f"{heads} | Negative pairs", rows, notes)


class ModelMeans(NamedTuple):
    """Means over a model's benchmarks (docs/benchmarks.md), in points.

    Attributes:
        scalar: Share of the items that are scalar.
        fired: Shares of the items that decisive, mix and early answer.
    """

    model: str
    invariant: float
    scalar: float
    fired: tuple[float, ...]
    delta_mc1: float
    delta_mc2: float


def model_means(summaries: Sequence[Summary]) -> list[ModelMeans]:
    """Return the means of each model."""
    rows = []
    for model, group in _by_model(summaries).items():
        shares = [s.scalar for s in group], *([s.fired[o] for s in group] for o in OVERRIDING)
        deltas = [s.delta_mc1 for s in group], [s.delta_mc2 for s in group]
        scalar, *fired, first, second = points(*map(mean_defined, (*shares, *deltas)))
        rows.append(ModelMeans(model, group[0].invariant, scalar, tuple(fired), first, second))
    return rows


def per_model(means: Sequence[ModelMeans], theta: Theta) -> ReportTable:
    """Return the table of operators and gains per model."""
    heads = (
        "Model | I(M) .2 | Scalar operator | % scalar .1 | % decisive .1 | % mix .1 | % early .1"
        " | ΔMC1 +.1 | ΔMC2 +.1"
    )
    rows: list[tuple[Value, ...]] = [
        (m.model, m.invariant, branch(m.invariant, theta), m.scalar, *m.fired, *m[4:])
        for m in means
    ]
    notes = (
        "Shares are over the items that count for MC1; % decisive and % mix are items that the "
        "operator answered, % early items whose max b lies below gamma.",
    )
    return ReportTable.of("per-model", "What the rule does in each model", heads, rows, notes)


def verdict_table(judgements: Sequence[Judgement]) -> ReportTable:
    """Return the table of verdicts: in each cell correction helps, hurts, or neither is shown."""
    heads = (
        "Model | Benchmark | Items | Failed"
        " | ΔMC1 +.2 | ΔMC1, 95% low +.2 | ΔMC1, 95% high +.2"
        " | ΔMC2 +.2 | ΔMC2, 95% low +.2 | ΔMC2, 95% high +.2"
        " | Fixed | Broken | McNemar p .3g | p by Holm .3g | Verdict"
    )
    rows: list[tuple[Value, ...]] = []
    for v in judgements:
        first = points(v.delta_mc1, v.interval_mc1.low, v.interval_mc1.high)
        second = points(v.delta_mc2, v.interval_mc2.low, v.interval_mc2.high)
        tests = (v.fixed, v.broken, v.p, v.p_holm)
        names = (v.model, v.benchmark, v.items, v.failed)
        rows.append((*names, *first, *second, *tests, v.sentence))
    notes = (
        "Intervals: paired bootstrap over groups of items (copies and pairs are one) for MC1, over "
        "items for MC2. p: McNemar's exact test over groups, after Holm over these pairs.",
        _SHARED,
    )
    return ReportTable.of("verdicts", "Does correction help?", heads, rows, notes)


def controls_table(summaries: Sequence[Summary], controls: Sequence[Controls]) -> ReportTable:
    """Return one row per cell: chance, base and TRACE, then the controls, then pairs."""
    heads = (
        "Model | Benchmark | Chance .2 | MC1 base .2 | MC1 TRACE .2 | Flips | Flips gain +.2"
        " | P .3g | Shortest .2 | Longest .2 | Question-blind .2 | Anti-blind .2"
        " | Fitted wording .2 | Reading adds: MC1 .2 | fixed | broken | p .3g"
        " | The middle adds: MC1 .2 | fixed | broken | p .3g | Any depth .2 | Any depth, blind .2"
        " | Pairs base .2 | Pairs TRACE .2"
    )
    wordings = ("shortest", "longest", "question-blind", "anti-blind")
    rows: list[tuple[Value, ...]] = []
    for s, control in zip(summaries, controls, strict=True):
        flips = (control.placebo.overrides, 100 * control.placebo.gain, control.placebo.p)
        shares = points(control.chance, control.base, control.corrected)
        unread = points(*(control.wordings[name] for name in wordings))
        fitted = [math.nan] * 9 if control.fit is None else _added(control.fit)
        last = points(control.oracle, control.blind_oracle, s.pairs_base, s.pairs)
        rows.append((s.model, s.benchmark, *shares, *flips, *unread, *fitted, *last))
    notes = (
        "Flips: as many random overrides as the rule made; P is the share of draws that gain at "
        "least as much. Fitted wording: a conditional logit that never reads the question, then "
        "with the base's scores (reading adds), then with the middle depths and T (the middle "
        "adds). Anti-blind: what the base likes least without the question. See "
        "docs/statistics.md.",
    )
    return ReportTable.of("controls", "What a gain has to beat", heads, rows, notes)


def _added(fit: Fit) -> list[Value]:
    steps = ((100 * r.mc1, r.fixed, r.broken, r.p) for r in (fit.reading, fit.middle))
    return [100 * fit.wording, *chain(*steps)]


def calibrations(summaries: Sequence[Summary]) -> ReportTable:
    """Return the table of MC3 and calibration, before and after correction."""
    heads = "Model | Benchmark | MC3 base .2 | ΔMC3 +.2 | ECE base .2 | ΔECE +.2"
    rows: list[tuple[Value, ...]] = []
    for s in summaries:
        shares = points(s.mc3_base, s.mc3 - s.mc3_base, s.ece_base, s.ece - s.ece_base)
        rows.append((s.model, s.benchmark, *shares))
    notes = ("ECE: 15 equal bins of the top candidate's probability; lower is better.",)
    return ReportTable.of("calibration", "MC3 and calibration", heads, rows, notes)


def branch(invariant: float, theta: Theta) -> str:
    """Return the scalar operator that I(M) chooses, `mix` or `early`; an en dash for nan."""
    if math.isnan(invariant):
        return EN_DASH
    return scalar_operator(invariant, theta.tau_I)


def _by_model(summaries: Iterable[Summary]) -> dict[str, list[Summary]]:
    parted: dict[str, list[Summary]] = {}
    for summary in summaries:
        parted.setdefault(summary.model, []).append(summary)
    return parted
