"""The tables of a run, from summaries of records (method, sections 10 to 12); shares in points.

master, grid, per_model         the paper's main and per-model tables, and the means over cells
verdict_table                   one verdict in words a cell
baselines, calibrations         what stands beside each cell
necessity_table, sweep_table    the ablations
cost                            seconds an item, from what `lastword bench --out` leaves
against_paper                   cells beside the published ones (`paper_grid.csv`)
"""

import math
from collections.abc import Iterable, Sequence

import numpy as np

from lastword.evaluation.ablation import QUESTION_GATE, Effect, Sweep
from lastword.evaluation.statistics import LEAST_CELLS, GridStatistics, Judgement, over_cells
from lastword.records.cells import Summary, benchmark_of, mean
from lastword.report.table import EN_DASH, Column, Marked, Table, Value, delta, level
from lastword.theta import Theta

FAILED = "†: items of this cell failed and count in neither mean."
DEPENDENT = (
    "Cells that share items or models are not independent: intervals and tests over cells say how "
    "stable the mean is over this grid, no more."
)
WORDING = (
    "early reads depth 0, which knows no token of the prompt but its last: its gain is a gain of "
    "the candidates' own wording, to be read beside the two baselines."
)
PAIRS = (
    "Pairs: of two questions over one candidate set, the share with both right; whoever does not "
    "read the question gets none."
)
PARTED = "The operators' gains add up to the delta; an answer of the base adds nothing."


_OPERATORS = ("decisive", "mix", "early")
_ENDS = ("", ", 95% low", ", 95% high")
_ABLATED = (
    delta("ΔMC1"),
    delta("ΔMC2"),
    Column("Negative MC1 cells"),
    Column("Negative MC2 cells"),
    Column("Cells"),
)


def master(summaries: Sequence[Summary], theta: Theta) -> Table:
    """Chance, base and delta of every cell: a row a model, five columns a benchmark."""
    benchmarks = list(dict.fromkeys(s.benchmark for s in summaries))
    columns = [Column("Model"), Column("I(M)", 2), Column("Branch")]
    for name in benchmarks:
        columns.append(level(f"{name} chance"))
        for metric in ("MC1", "MC2"):
            columns += [level(f"{name} {metric} base")]
            columns += [delta(f"{name} Δ{metric}")]
    rows = []
    for model, own in _by_model(summaries).items():
        of = {s.benchmark: s for s in own}
        row: list[Value] = [model, own[0].invariant, branch(own[0].invariant, theta)]
        for name in benchmarks:
            row += _five(of[name]) if name in of else [math.nan] * 5
        rows.append(tuple(row))
    notes = (FAILED,) if any(s.counts.failed for s in summaries) else ()
    return Table("master", "Base and TRACE, every cell", tuple(columns), tuple(rows), notes)


def grid(summaries: Sequence[Summary], *, seed: int = 0) -> Table:
    """Means over cells with their intervals, sign test and regressions."""
    by_metric = {
        "ΔMC1": over_cells(np.array([s.delta_mc1 for s in summaries]), seed=seed),
        "ΔMC2": over_cells(np.array([s.delta_mc2 for s in summaries]), seed=seed),
    }
    columns = (
        Column("Metric"),
        Column("Cells"),
        delta("Mean"),
        delta("95% low"),
        delta("95% high"),
        Column("Sign test p", 3, significant=True),
        Column("Negative cells"),
    )
    rows = tuple((name, *_over(statistics)) for name, statistics in by_metric.items())
    notes = (
        DEPENDENT,
        f"An interval needs at least {LEAST_CELLS} cells. A cell is negative where its mean is "
        "below 0, whatever its verdict.",
    )
    return Table("grid", "Means over cells", columns, rows, notes)


def per_model(summaries: Sequence[Summary], theta: Theta) -> Table:
    """What the rule does in each model: means over its benchmarks (method, section 10)."""
    columns = (
        Column("Model"),
        Column("I(M)", 2),
        Column("Scalar operator"),
        Column("% scalar", 1),
        Column("% decisive", 1),
        Column("% mix", 1),
        Column("% early", 1),
        Column("ΔMC1", 1, signed=True),
        Column("ΔMC2", 1, signed=True),
    )
    rows = []
    for model, own in _by_model(summaries).items():
        shares = [s.scalar for s in own], *([s.fired[o] for s in own] for o in _OPERATORS)
        deltas = [s.delta_mc1 for s in own], [s.delta_mc2 for s in own]
        values = [100 * _mean_known(v) for v in (*shares, *deltas)]
        rows.append(_line([model, own[0].invariant, branch(own[0].invariant, theta)], values))
    notes = (
        "Shares are over the items that count for MC1; % decisive and % mix are items that the "
        "operator answered, % early items whose max b lies below gamma.",
    )
    return Table("per-model", "What the rule does in each model", columns, tuple(rows), notes)


def verdict_table(judgements: Sequence[Judgement]) -> Table:
    """Whether correction helps in each cell, in words."""
    columns = (
        Column("Model"),
        Column("Benchmark"),
        Column("Items"),
        Column("Failed"),
        *(delta(f"ΔMC1{end}") for end in _ENDS),
        *(delta(f"ΔMC2{end}") for end in _ENDS),
        Column("Fixed"),
        Column("Broken"),
        Column("McNemar p", 3, significant=True),
        Column("p by Holm", 3, significant=True),
        Column("Verdict"),
    )
    rows = tuple(_judgement(v) for v in judgements)
    notes = (
        "Intervals: paired bootstrap over items; of MC1, as McNemar's p, over groups of them: "
        "copies and pairs are one. To gain or to hurt needs the exact p below "
        "0.05 after Holm's correction over these cells; to help, a gain beyond as many flips at "
        "random and above all that never reads the question.",
        DEPENDENT,
    )
    return Table("verdicts", "Does correction help?", columns, rows, notes)


def baselines(summaries: Sequence[Summary]) -> Table:
    """MC1 beside what needs no question, and what each operator adds."""
    paired = any(s.pairs == s.pairs for s in summaries)
    columns = (
        Column("Model"),
        Column("Benchmark"),
        level("Chance"),
        level("MC1 base"),
        level("MC1 TRACE"),
        level("Question-blind"),
        level("Shortest"),
        *([level("Pairs base"), level("Pairs TRACE")] if paired else []),
        *(delta(f"ΔMC1 by {o}") for o in _OPERATORS),
        *(delta(f"ΔMC2 by {o}") for o in _OPERATORS),
    )
    rows = tuple(
        _line(
            [s.model, s.benchmark],
            [100 * v for v in (s.chance, s.mc1_base, s.mc1, s.blind, s.shortest)],
            [100 * v for v in (s.pairs_base, s.pairs)] if paired else [],
            [100 * s.gain_mc1[o] for o in _OPERATORS],
            [100 * s.gain_mc2[o] for o in _OPERATORS],
        )
        for s in summaries
    )
    notes = (
        "Question-blind: the base's choice with the question left out of the template. Shortest: "
        "the candidate with the fewest characters.",
        *([PAIRS] if paired else []),
        PARTED,
        WORDING,
    )
    return Table("baselines", "Baselines and what each operator adds", columns, rows, notes)


def calibrations(summaries: Sequence[Summary]) -> Table:
    """MC3 and calibration, before and after."""
    columns = (
        Column("Model"),
        Column("Benchmark"),
        level("MC3 base"),
        delta("ΔMC3"),
        level("ECE base"),
        delta("ΔECE"),
    )
    rows = tuple(
        _line(
            [s.model, s.benchmark],
            [100 * v for v in (s.mc3_base, s.mc3 - s.mc3_base)],
            [100 * v for v in (s.ece_base, s.ece - s.ece_base)],
        )
        for s in summaries
    )
    notes = ("ECE: 15 equal bins of the top candidate's probability; lower is better.",)
    return Table("calibration", "MC3 and calibration", columns, rows, notes)


def template_table(summaries: Sequence[Summary]) -> Table:
    """How far results move with the prompt template, where a benchmark was run under several."""
    columns = [Column("Model"), Column("Benchmark"), Column("Templates")]
    for name, make in (("MC1 base", level), ("ΔMC1", delta), ("ΔMC2", delta)):
        columns += [make(f"{name}, lowest"), make(f"{name}, highest")]
    parted: dict[tuple[str, str], list[Summary]] = {}
    for summary in summaries:
        parted.setdefault((summary.model, benchmark_of(summary.benchmark)), []).append(summary)
    rows = tuple(
        _line(
            [*name, len(own)],
            _ends([s.mc1_base for s in own]),
            _ends([s.delta_mc1 for s in own]),
            _ends([s.delta_mc2 for s in own]),
        )
        for name, own in parted.items()
        if len(own) > 1
    )
    notes = ("Each template is a cell of its own, in every other table too.",)
    return Table("templates", "How much the template matters", tuple(columns), rows, notes)


def necessity_table(effects: Sequence[Effect]) -> Table:
    """The published rule and its variants, each one component away."""
    columns = (Column("Variant"), *_ABLATED)
    body = tuple((effect.label, *_ablated(effect)) for effect in effects)
    notes = (_DROPPED, *([_GATED] if any(e.label == QUESTION_GATE for e in effects) else []))
    return Table("ablation", "Necessity of the components", columns, body, notes)


def sweep_table(sweeps: Sequence[Sweep]) -> Table:
    """The constants of the outer rule, each moved alone over its grid."""
    columns = (Column("Constant"), Column("Value"), *_ABLATED)
    body: list[tuple[Value, ...]] = []
    for swept in sweeps:
        for effect in swept.effects:
            assert effect.value is not None
            own = math.isclose(effect.value, swept.published)
            value: Value = Marked(effect.value, "†") if own else effect.value
            body.append((swept.parameter, value, *_ablated(effect)))
    notes = (
        "†: the setting of these runs.",
        "tau_dim = 1 decides binary items as 1.0005 does: their effective dimension is 1 exactly. "
        "The paper's five regressions at that point are rounding noise of a computed 1.",
        "eta above 1 lies outside the paper's range.",
    )
    return Table("sweeps", "Sensitivity to the constants", columns, tuple(body), notes)


def branch(invariant: float, theta: Theta) -> str:
    """The scalar operator that I(M) chooses: `mix` or `early`; an en dash where I(M) is nan."""
    if math.isnan(invariant):
        return EN_DASH
    return "mix" if invariant > theta.tau_I else "early"


_DROPPED = (
    "A dropped operator's items answer as the base; forcing the multi-directional arm keeps its "
    "three gates and includes binary items."
)

_GATED = (
    "Question gate: ours, not the paper's, and off everywhere else. An override stands only where "
    "the question moved the new answer up against the base's at the depth that decides; an item "
    "that was not read blind keeps the base's answer. Where both prompts end alike the question "
    "moves nothing at depth 0, and early overrides nothing. Cells that were not read blind are not "
    "among its cells."
)


def _by_model(summaries: Iterable[Summary]) -> dict[str, list[Summary]]:
    parted: dict[str, list[Summary]] = {}
    for summary in summaries:
        parted.setdefault(summary.model, []).append(summary)
    return parted


def _line(*parts: Sequence[Value]) -> tuple[Value, ...]:
    return tuple(value for part in parts for value in part)


def _five(s: Summary) -> list[Value]:
    values = [100 * v for v in (s.mc1_base, s.delta_mc1, s.mc2_base, s.delta_mc2)]
    return [100 * s.chance, *([Marked(v) for v in values] if s.counts.failed else values)]


def _over(statistics: GridStatistics) -> tuple[Value, ...]:
    interval = statistics.interval
    points = (100 * v for v in (statistics.mean, interval.low, interval.high))
    return (statistics.cells, *points, statistics.sign_p, statistics.negative)


def _judgement(v: Judgement) -> tuple[Value, ...]:
    first = (v.delta_mc1, v.interval_mc1.low, v.interval_mc1.high)
    second = (v.delta_mc2, v.interval_mc2.low, v.interval_mc2.high)
    points = [100 * x for x in (*first, *second)]
    counts = (v.fixed, v.broken, v.p, v.p_holm)
    return (v.model, v.benchmark, v.items, v.failed, *points, *counts, v.sentence)


def _ablated(effect: Effect) -> tuple[Value, ...]:
    cells = int((~np.isnan(effect.deltas_mc1) | ~np.isnan(effect.deltas_mc2)).sum())
    deltas = 100 * effect.delta_mc1, 100 * effect.delta_mc2
    return (*deltas, effect.negative_mc1, effect.negative_mc2, cells)


def _ends(values: Sequence[float]) -> list[Value]:
    """Smallest and largest, in points; nan where any value is."""
    return [float(100 * np.min(values)), float(100 * np.max(values))]


def _mean_known(values: Sequence[float]) -> float:
    return mean([v for v in values if not math.isnan(v)])
