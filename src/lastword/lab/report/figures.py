"""Figure data: pure functions of records and their summaries.

Everything is computed here; `draw` and the page only render the marks.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Bool
from scipy.special import softmax

from lastword.errors import RecordError
from lastword.files.wording import counted
from lastword.lab.report.table import Table
from lastword.records.cells import Cell, column
from lastword.records.explanation import gate_lines
from lastword.records.item_view import band
from lastword.records.marks import (
    Arrow,
    Bars,
    Box,
    Diagram,
    Figure,
    Key,
    Line,
    Mark,
    Note,
    Numbers,
    Panel,
    Points,
    Role,
    Rule,
)
from lastword.records.portrait import Candidate, Portrait, portrait, short
from lastword.records.ragged import Lists, PerItem, Places
from lastword.records.record import Record
from lastword.rule import geometry
from lastword.rule.answer import Answer
from lastword.rule.theta import Theta

if TYPE_CHECKING:
    import pandas as pd

_SHARES = (0.0, 1.0)
MOST_DRAWN = 12  # maximum number of cells in a figure; its table has all
_CLOSE = 5
_LOOKED_THROUGH = 10_000  # maximum number of names that a mistyped one is compared with

OPERATOR_TITLES = {"mix": "Signed mixing", "early": "Earliest state", "decisive": "Decisive layer"}


# Lines are drawn in this order, so that no grey one covers the truth.
_BEHIND: tuple[Role, ...] = ("other", "mix", "corrected", "winner", "truthful")


def trajectory(record: Record, theta: Theta, title: str = "") -> Panel:
    """Return a panel of candidate probabilities over depth, with lines at the deciding depths."""
    picture = portrait(record.decision, theta)
    depths = tuple(map(float, picture.depths))
    rules = [Rule(float(depth), label=picture.deciding_name) for depth in picture.deciding_depths]
    lines = [
        Line(
            depths,
            candidate.shares,
            candidate.role,
            "" if candidate.role == "other" else candidate.letter,
            above=place == picture.base_index,  # its curve ends highest
        )
        for place, candidate in enumerate(picture.candidates)
    ]
    behind = sorted(lines, key=lambda line: _BEHIND.index(line.role))
    lettered = tuple(_key(c) for c in picture.candidates if c.role != "other")
    marks: tuple[Mark, ...] = (*rules, *behind)
    label = "probability among candidates"
    return Panel(title, marks, "depth", label, y_range=_SHARES, key=lettered)


def _key(candidate: Candidate) -> Key:
    return Key(candidate.letter, short(candidate.text, 48), candidate.true)


def regimes(cells: Sequence[Cell], theta: Theta) -> Figure | None:
    """Return the figure of one representative correction per operator; None without corrections."""
    panels: list[Panel] = []
    idle = []
    for operator in ("mix", "early", "decisive"):
        record = representative(cells, operator)
        if record is None:
            idle.append(OPERATOR_TITLES[operator])
        else:
            title = f"({'abc'[len(panels)]}) {OPERATOR_TITLES[operator]}\n{subject(record, 40)}"
            panels.append(trajectory(record, theta, title))
    caption = (
        "Representative corrections, one per operator: the repaired item whose gain of truthful"
        " probability is the median. Green: truthful; red: the false answer of the last depth;"
        " dashed grey: other candidates. Dotted lines: the depths whose scores decide (for mixing"
        " the anchors of T). Depth 0 has read nothing of the question."
        + (f" No answer was repaired by: {', '.join(idle).lower()}." if idle else "")
    )
    return Figure("regimes", "Representative regimes", caption, tuple(panels)) if panels else None


def representative(cells: Sequence[Cell], operator: str) -> Record | None:
    """Return the operator's repaired item with the median gain of truthful probability."""
    gains: list[tuple[float, Cell, int]] = []
    for cell in cells:
        answered = (cell.items["operator"] == operator).to_numpy(bool)
        places = np.flatnonzero(_repaired(cell) & answered)
        rises = _truthful_gains(cell, places)
        gains += [(float(gain), cell, int(i)) for gain, i in zip(rises, places, strict=True)]
    if not gains:
        return None
    # The lower of two middle ones, because the figure shows an item and not a mean.
    ascending = sorted(gains, key=lambda entry: entry[0])
    return _record(*ascending[(len(ascending) - 1) // 2][1:])


def _repaired(cell: Cell) -> Bool[np.ndarray, " items"]:
    before, after = column(cell.items, "mc1_base"), column(cell.items, "mc1")
    repaired: np.ndarray = (before == 0) & (after == 1)
    return repaired


def _truthful_gains(cell: Cell, places: Places) -> PerItem:
    """Return the rise of the truthful candidates' probability in each item [places]."""
    b, truthful = Lists.of(cell.items["base_scores"]), Lists.of(cell.items["truthful"])

    def gain(after: np.ndarray, before: np.ndarray, true: np.ndarray) -> PerItem:
        rises = softmax(after, axis=1) - softmax(before, axis=1)
        gains: PerItem = (rises * true).sum(axis=1)
        return gains

    return Lists.of(cell.items["scores"]).each(gain, b, truthful, items=places)


def _record(cell: Cell, item: int) -> Record:
    return Record.of(cell.whole(cell.answer_places[[item]]))[0]


def worked_example(record: Record, theta: Theta) -> Figure:
    """Return the figure of one item: trajectory, D_l, gates, scores before and after."""
    answer = record.decision
    picture = portrait(answer, theta)
    path = trajectory(record, theta, f"(a) {subject(record, 40)}")
    caption = (
        f"One item end to end: {record.benchmark} {record.id} on {model_name(record.model)}, d_eff"
        f" = {answer.d_eff:.3f}, answered by {OPERATORS.get(answer.operator, answer.operator)}. (a)"
        " Candidate probabilities over depth; (b) decisiveness, whose argmax is ℓ*; (c) the gates"
        " that were checked; (d) candidate probabilities and the margin of the scores before and"
        " after."
    )
    panels = (
        replace(path, marks=(band(picture), *path.marks), key=()),
        _sharpness(picture, theta),
        _gates_panel(answer),
        _before_after(answer),
    )
    key = tuple(map(_key, picture.candidates))
    return Figure("worked-example", "A worked example", caption, panels, columns=2, key=key)


OPERATORS = {
    "mix": "signed mixing",
    "early": "the earliest state",
    "decisive": "its decisive layer",
    "base": "the model's scores",
}


def _sharpness(picture: Portrait, theta: Theta) -> Panel:
    """Return a panel of decisiveness over depth, with l* marked if it was computed."""
    S = np.array([candidate.scores for candidate in picture.candidates])
    D = geometry.decisiveness(S[:, 1:], theta.eps_H)  # Eq. 7, depths 1..L
    depths = tuple(float(d) for d in range(1, S.shape[1]))
    layer = picture.sharpest
    rules = () if layer is None else (Rule(float(layer), label=f"ℓ* = {layer}"),)
    return Panel(
        "(b) Decisiveness" + ("" if layer is None else f", sharpest at depth {layer}"),
        (band(picture), *rules, Line(depths, numbers(D), "corrected")),
        "depth",
        "D = margin / (entropy + ε)",
    )


_GATE_MARKS: tuple[tuple[str, Role], ...] = (("✗", "alarm"), ("✓", "truthful"))


def _gates_panel(answer: Answer) -> Panel:
    notes = []
    for place, (line, holds) in enumerate(gate_lines(answer)):
        mark, role = _GATE_MARKS[bool(holds)]
        notes.append(Note(0.04, 0.78 - 0.22 * place, f"{mark} {line}", role, centred=False))
    return Panel("(c) Gates", tuple(notes), axes=False)


def _before_after(answer: Answer) -> Panel:
    picture = portrait(answer)
    names = tuple(candidate.letter for candidate in picture.candidates)
    before = Bars(names, tuple(c.before for c in picture.candidates), "base", "before")
    after = Bars(names, tuple(c.after for c in picture.candidates), "corrected", "after")
    bars = side_by_side(before, after)
    margins = [geometry.margin(u) for u in (answer.base_scores, answer.scores)]
    title = f"(d) Margin {margins[0]:.2f} → {margins[1]:.2f} nats"
    return Panel(title, bars, "candidate", "probability", y_range=_SHARES)


def across_models(rows: Sequence[Record], theta: Theta) -> Figure | None:
    """Return the figure of one item on every model, by I(M); None for fewer than two models."""
    if len(rows) < 2:
        return None
    rows = sorted(rows, key=lambda r: (_invariant(r), r.model))
    panels = tuple(
        trajectory(r, theta, f"{model_name(r.model)}\nI(M) = {_invariant(r):.2f}") for r in rows
    )
    lettered = {key.letter for panel in panels for key in panel.key}
    key = tuple(k for k in map(_key, portrait(rows[0].decision).candidates) if k.letter in lettered)
    wrong = sum(r.mc1_base == 0 for r in rows)
    right = sum(r.gain == 1 for r in rows)
    caption = (
        f"“{subject(rows[0])}” ({rows[0].benchmark} {rows[0].id}) on {len(rows)} models,"
        f" by I(M) from low to high: {wrong} are wrong at the last depth, and TRACE repairs"
        f" {right} of these. Green: truthful; red: the false answer of the last depth; blue:"
        " another false answer, where TRACE chose one."
    )
    columns = min(5, max(2, len(rows)))
    bare = tuple(replace(panel, key=()) for panel in panels)
    return Figure("across-models", "One item across all models", caption, bare, columns, key)


def hardest(cells: Sequence[Cell]) -> list[Record]:
    """Return the records of the item that most models got wrong, and of these most corrected.

    [] if no item was answered by several models.
    """
    import pandas as pd

    scores = pd.concat([_scores_of(place, cell) for place, cell in enumerate(cells)])
    several = scores.duplicated(["benchmark", "id"], keep=False).to_numpy(bool)
    if not several.any():
        return []
    by_item = scores.groupby(["benchmark", "id"], sort=True)
    counts = (
        by_item[["wrong", "repaired"]]
        .sum()
        .sort_values(["wrong", "repaired"], ascending=False, kind="stable")
    )
    item = by_item.get_group(counts.index[0])
    return [_record(cells[c], i) for c, i in zip(item["cell"], item["item"], strict=True)]


def named(cells: Sequence[Cell], name: str) -> "pd.DataFrame":
    """Return the answered records of one item, one per model.

    Args:
        cells: The cells of all models and benchmarks.
        name: BENCHMARK-ID as in records, in upper or lower case. For TruthfulQA the metric may be
            left out (`truthfulqa-42` is `truthfulqa-42/mc1`).

    Raises:
        RecordError: No such item, or no model answered it.
    """
    import pandas as pd

    names = [(f"{c.benchmark}-" + c.records["id"].astype(str)).str.casefold() for c in cells]
    folded = name.casefold()
    places = [np.flatnonzero(ids == folded) for ids in names]
    if not any(some.size for some in places):  # a question of TruthfulQA, without its metric
        places = [np.flatnonzero(ids == f"{folded}/mc1") for ids in names]
    if not any(some.size for some in places):
        some = pd.concat(names).head(_LOOKED_THROUGH).unique().tolist()
        close = get_close_matches(folded, some, _CLOSE, cutoff=0)
        raise RecordError(
            f"no item {name!r}; expected BENCHMARK-ID as records name them, such as "
            f"{', '.join(close)}"
        )
    pairs = zip(cells, places, strict=True)
    rows = pd.concat([cell.whole(some) for cell, some in pairs if some.size])
    answers = rows[rows["error"].isna()]
    if answers.empty:
        raise RecordError(f"item {name!r} failed on every model: {rows['error'].iloc[0]}")
    return answers


def telling(rows: Sequence[Record]) -> Record:
    """Return the first record that TRACE corrected, preferably with a decisive layer."""

    def rank(record: Record) -> tuple[bool, bool, bool]:
        answer = record.decision
        return record.gain == 1, answer.operator == "decisive", answer.corrected

    return max(rows, key=rank)


def _scores_of(place: int, cell: Cell) -> "pd.DataFrame":
    """Return a cell's items that count for MC1, with columns `wrong` and `repaired`."""
    items = cell.items.iloc[cell.mc1_places]
    return items[["id"]].assign(
        benchmark=cell.benchmark,
        cell=place,
        item=cell.mc1_places,
        wrong=column(items, "mc1_base") == 0,
        repaired=_repaired(cell)[cell.mc1_places],
    )


def subject(record: Record, limit: int = 60) -> str:
    """Return the question in one printable line, or the prompt's end if there is none."""
    question = record.question or ""
    return short(question if question.strip() else record.prompt[-limit:], limit)


def model_name(model: str) -> str:
    """Return a model's name without its owner or folder, in one short line."""
    return short(model.rstrip("/").rsplit("/", 1)[-1], 32)


def _invariant(record: Record) -> float:
    value = record.decision.invariant
    assert value is not None  # a run records it for every answered item
    return value


def numbers(values: Iterable[float]) -> Numbers:
    """Return numbers in the form of marks."""
    return tuple(float(v) for v in values)


# Illustrative traces of log p over the feature depths, one per motif.
_MOTIFS = {
    "Sustained growth": (-6.0, -4.4, -2.8, -1.2),
    "Abrupt promotion": (-6.0, -5.8, -1.6, -1.4),
    "Accelerating support": (-6.0, -5.7, -4.4, -1.2),
}


def scorer_motifs(theta: Theta) -> Figure:
    """Return the figure of T's evidence across the feature depths, and of its weight alpha."""
    import torch

    from lastword.rule.scorer import Scorer

    count = len(theta.scorer.features)
    scorer = Scorer(theta, depth=26, vocabulary=1)
    x = tuple(theta.scorer.features)
    panels = []
    for place, (motif, trace) in enumerate(_MOTIFS.items()):
        p = np.interp(np.linspace(0, 1, count), np.linspace(0, 1, len(trace)), trace)
        h = float(scorer.evidence(torch.tensor(p)[:, None, None]))
        line = Line(x, numbers(p), "corrected", markers=True)
        title = f"({'abc'[place]}) {motif}: h = {h:.2f}"
        panels.append(Panel(title, (line,), "feature depth / L", "log p", y_range=(-6.6, 0.0)))
    evidence = torch.linspace(0, 1, 101, dtype=torch.float64)
    alpha = scorer.alpha(evidence[None])[0]
    marks = (
        Rule(theta.scorer.lambda_0, "other", "λ₀", axis="y"),
        Line(numbers(evidence.tolist()), numbers(alpha.tolist()), "mix"),
    )
    panels.append(Panel("(d) Mixing schedule", marks, "evidence h̃", "α", y_range=_SHARES))
    caption = (
        "Three illustrative traces of a token's log-probability over the feature depths, with the"
        " evidence h that each earns, and the weight α of the anchor mixture that normalised"
        " evidence sets. Traces are drawn for illustration; h and α are the scorer's."
    )
    return Figure("scorer-motifs", "What the scorer rewards", caption, tuple(panels), columns=4)


def scorer_dataflow(theta: Theta) -> Diagram:
    """Return the diagram of the scorer T: read, filter and measure, mix, emit."""
    s = theta.scorer
    anchors, features = (
        ", ".join(f"{fraction:.2g}" for fraction in fractions)
        for fractions in (s.anchors, s.features)
    )
    boxes = (
        Box("read", "Read", f"logits z at anchors A\n{anchors} of L", 0.11, 0.72, "base"),
        Box("filter", "Filter", f"Ω: top k at {s.quorum:.0%}\nof the anchors", 0.37, 0.26, "early"),
        Box("measure", "Measure", f"slope, jump, curvature at\n{features}", 0.63, 0.26, "early"),
        Box("anchor", "Average", "z̄: anchors weighted by exp(ℓ/L)", 0.37, 0.72, "corrected"),
        Box("mix", "Mix", "z_T = (1−α) z_L + α z̄", 0.66, 0.72, "mix"),
        Box("emit", "Emit", "t: mean log softmax(z_T)\nof a candidate's tokens", 0.9, 0.72, "base"),
    )
    arrows = (
        Arrow("read", "anchor", "z"),
        Arrow("anchor", "mix", "z̄"),
        Arrow("mix", "emit", "z_T"),
        Arrow("read", "filter", dashed=True),
        Arrow("filter", "measure", "Ω", dashed=True),
        Arrow("measure", "mix", "h̃ → α", dashed=True),
    )
    caption = (
        "Dataflow of the trajectory scorer T. Dark arrows carry logits, grey ones the evidence of"
        " each token, which sets how much of the anchor mixture it takes."
    )
    return Diagram("scorer-dataflow", "The scorer's dataflow", caption, boxes, arrows)


def left_to_the_table(cells: int) -> str:
    """Return a sentence on the cells that a figure does not show; empty if it shows all."""
    rest = cells - MOST_DRAWN
    return f" The table has {counted(rest, 'more cell')}." if rest > 0 else ""


def side_by_side(*bars: Bars) -> tuple[Bars, ...]:
    """Return bars with the same names, placed side by side."""
    return tuple(replace(bar, group=place, groups=len(bars)) for place, bar in enumerate(bars))


def per_model(table: Table) -> Figure:
    """Return the figure of the operators' shares per model, and of I(M) and mean gain."""
    rows = [dict(zip((c.name for c in table.columns), row, strict=True)) for row in table.rows]
    rows.sort(key=lambda row: (row["I(M)"], row["Model"]))
    caption = (
        "(a) Share of the items that each operator answers, a mean over benchmarks; models by I(M)"
        " from low to high; the rest keep the model's scores. (b) I(M) against the mean change"
        " of MC1, by the numbers of (a); the larger the point, the larger the change of MC2."
    )
    panels = (_usage(rows), _against_invariant(rows))
    return Figure("per-model", "What the rule does in each model", caption, panels, 2)


def _usage(rows: Sequence[Mapping[str, Any]]) -> Panel:
    names = tuple(f"{model_name(str(r['Model']))}  {i}" for i, r in enumerate(rows, 1))
    operators: tuple[Role, ...] = ("decisive", "mix", "early")
    shares = np.array([[float(row[f"% {name}"]) for row in rows] for name in operators])
    shares = np.nan_to_num(shares)
    starts = np.cumsum(shares, axis=0) - shares
    bars = [
        Bars(names, numbers(share), name, name, start=numbers(start), horizontal=True)
        for name, share, start in zip(operators, shares, starts, strict=True)
    ]
    return Panel("(a) Who answers", tuple(bars), "% of items", x_range=(0.0, 100.0))


def _against_invariant(rows: Sequence[Mapping[str, Any]]) -> Panel:
    sizes = numbers(max(0.3, min(4.0, float(row["ΔMC2"]) / 5)) for row in rows)
    points = Points(
        numbers(row["I(M)"] for row in rows),
        numbers(row["ΔMC1"] for row in rows),
        tuple(str(i) for i, _ in enumerate(rows, 1)),
        "corrected",
        sizes=sizes,
    )
    marks = (Rule(1.0), Rule(0.0, "other", axis="y"), points)
    return Panel("(b) I(M) and the gain", marks, "I(M)", "mean ΔMC1, points", x_scale="log")
