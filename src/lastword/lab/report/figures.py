"""Figures of items, of the scorer and of models: pure functions of records and their summaries."""

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Bool
from matplotlib.axes import Axes
from scipy.special import softmax

from lastword.errors import RecordError
from lastword.files.wording import counted
from lastword.lab.report import draw
from lastword.lab.report.draw import Figure, styled
from lastword.lab.report.tables import ModelMeans
from lastword.records.cells import Cell, column
from lastword.records.decision import Decision, decisions
from lastword.records.explanation import gate_lines
from lastword.records.marks import LOOKS, Role
from lastword.records.ragged import Lists, PerItem, Places
from lastword.records.view import View, letter, short, view
from lastword.rule import geometry
from lastword.rule.theta import Theta

if TYPE_CHECKING:
    import pandas as pd

MOST_DRAWN = 12  # maximum number of cells in a figure; its table has all
_CLOSE = 5
_MOST_KEYS = 6  # maximum number of candidates that are written out below a panel
_LOOKED_THROUGH = 10_000  # maximum number of names that a mistyped one is compared with

OPERATOR_TITLES = {"mix": "Signed mixing", "early": "Earliest state", "decisive": "Decisive layer"}


# Lines are drawn in this order, so that no grey one covers the truth.
_BEHIND: tuple[Role, ...] = ("other", "mix", "corrected", "winner", "truthful")


def trajectory(
    axes: Axes, record: Decision, theta: Theta, title: str = "", rule: str | None = None
) -> list[str]:
    """Draw candidate probabilities over depth, and lines at the deciding depths, named `rule`.

    Returns:
        One line of text per candidate with a letter: its letter, text and truth.
    """
    shown = view(record, theta)
    roles: list[Role] = shown["roles"]
    draw.label(axes, title, "depth", "probability among candidates")
    draw.shares(axes)
    for depth in shown["deciding"]:
        draw.rule(axes, depth, name=shown["deciding_name"] if rule is None else rule)
    for place in sorted(range(len(roles)), key=lambda i: _BEHIND.index(roles[i])):
        name = "" if roles[place] == "other" else shown["letters"][place]
        above = place == record.base_index  # its curve ends highest
        draw.line(axes, shown["depths"], shown["shares"][place], roles[place], name, above=above)
    return [key for key, role in zip(_keys(record), roles, strict=True) if role != "other"]


def _keys(record: Decision) -> list[str]:
    """Return a line of text per candidate: its letter, text and truth."""
    names = {True: " (true)", False: " (false)", None: ""}
    truths = record.truthful or [None] * len(record.candidates)
    pairs = enumerate(zip(record.candidates, truths, strict=True))
    return [f"{letter(i)}: {short(text, 48)}{names[true]}" for i, (text, true) in pairs]


@styled
def regimes(cells: Sequence[Cell], theta: Theta) -> Figure | None:
    """Return the figure of one representative correction per operator; None without corrections."""
    chosen = {operator: representative(cells, operator) for operator in OPERATOR_TITLES}
    shown = {operator: record for operator, record in chosen.items() if record is not None}
    if not shown:
        return None
    most = max(len(record.candidates) for record in shown.values())
    canvas, panels = draw.canvas(len(shown), lines=min(most, _MOST_KEYS))
    for name, axes, (operator, record) in zip("abc", panels, shown.items(), strict=False):
        title = f"({name}) {OPERATOR_TITLES[operator]}\n{subject(record, 40)}"
        draw.below(axes, trajectory(axes, record, theta, title)[:_MOST_KEYS])
    idle = [title.lower() for operator, title in OPERATOR_TITLES.items() if operator not in shown]
    caption = (
        "Representative corrections, one per operator: the repaired item whose gain of truthful"
        " probability is the median. Green: truthful; red: the false answer of the last depth;"
        " dashed grey: other candidates. Dotted lines: the depths whose scores decide (for mixing"
        " the anchors of T). Depth 0 has read nothing of the question."
        + (f" No answer was repaired by: {', '.join(idle)}." if idle else "")
    )
    return Figure("regimes", "Representative regimes", caption, canvas)


def representative(cells: Sequence[Cell], operator: str) -> Decision | None:
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


def _record(cell: Cell, item: int) -> Decision:
    return decisions(cell.whole(cell.answer_places[[item]]))[0]


@styled
def worked_example(record: Decision, theta: Theta) -> Figure:
    """Return the figure of one item: trajectory, D_l, gates, scores before and after."""
    shown = view(record, theta)
    canvas, (path, sharpness, gates, scores) = draw.canvas(4, columns=2, key=_keys(record))
    trajectory(path, record, theta, f"(a) {subject(record, 40)}")
    _band(path, shown)
    _sharpness(sharpness, record, shown, theta)
    _gates(gates, record)
    _before_after(scores, record)
    caption = (
        f"One item end to end: {record.benchmark} {record.id} on {model_name(record.model)}, d_eff"
        f" = {record.d_eff:.3f}, answered by {OPERATORS.get(record.operator, record.operator)}. (a)"
        " Candidate probabilities over depth; (b) decisiveness, whose argmax is ℓ*; (c) the gates"
        " that were checked; (d) candidate probabilities and the margin of the scores before and"
        " after."
    )
    return Figure("worked-example", "A worked example", caption, canvas)


OPERATORS = {
    "mix": "signed mixing",
    "early": "the earliest state",
    "decisive": "its decisive layer",
    "base": "the model's scores",
}


def _band(axes: Axes, shown: View) -> None:
    """Shade the interior window."""
    axes.axvspan(*shown["window"], color=LOOKS["window"].light, zorder=0, linewidth=0)


def _sharpness(axes: Axes, record: Decision, shown: View, theta: Theta) -> None:
    """Draw decisiveness over depth, with l* marked if it was computed."""
    S = shown["scores"]
    D = geometry.decisiveness(S[:, 1:], theta.eps_H)  # Eq. 7, depths 1..L
    layer = record.decisive_layer
    title = "(b) Decisiveness" + ("" if layer is None else f", sharpest at depth {layer}")
    draw.label(axes, title, "depth", "D = margin / (entropy + ε)")
    _band(axes, shown)
    if layer is not None:
        draw.rule(axes, layer, name=f"ℓ* = {layer}")
    draw.line(axes, range(1, S.shape[1]), D, "corrected")


def _gates(axes: Axes, answer: Decision) -> None:
    draw.label(axes, "(c) Gates")
    _bare(axes)
    for place, (line, holds) in enumerate(gate_lines(answer)):
        role: Role = "truthful" if holds else "alarm"
        mark = "✓" if holds else "✗"
        at = (0.04, 0.78 - 0.22 * place)
        draw.note(axes, f"{mark} {line}", at, (0, 0), role, fontsize=9)


def _bare(axes: Axes) -> None:
    axes.set_axis_off()
    axes.set_xlim(0, 1)
    axes.set_ylim(0, 1)


def _before_after(axes: Axes, answer: Decision) -> None:
    groups: Mapping[str, tuple[Role, list[float]]] = {
        "before": ("base", answer.base_probabilities.tolist()),
        "after": ("corrected", answer.probabilities.tolist()),
    }
    draw.bars(axes, [letter(place) for place in range(len(answer.candidates))], groups)
    before, after = (geometry.margin(u) for u in (answer.base_scores, answer.scores))
    draw.label(axes, f"(d) Margin {before:.2f} → {after:.2f} nats", "candidate", "probability")
    draw.shares(axes)


@styled
def across_models(rows: Sequence[Decision], theta: Theta) -> Figure | None:
    """Return the figure of one item on every model, by I(M); None for fewer than two models."""
    if len(rows) < 2:
        return None
    rows = sorted(rows, key=lambda r: (_invariant(r), r.model))
    canvas, panels = draw.canvas(len(rows), columns=5, key=_keys(rows[0]))
    for axes, record in zip(panels, rows, strict=True):
        title = f"{model_name(record.model)}\nI(M) = {_invariant(record):.2f}"
        trajectory(axes, record, theta, title)
    wrong = sum(r.share("mc1", base=True) == 0 for r in rows)
    right = sum(r.gain == 1 for r in rows)
    caption = (
        f"“{subject(rows[0])}” ({rows[0].benchmark} {rows[0].id}) on {len(rows)} models,"
        f" by I(M) from low to high: {wrong} are wrong at the last depth, and TRACE repairs"
        f" {right} of these. Green: truthful; red: the false answer of the last depth; blue:"
        " another false answer, where TRACE chose one."
    )
    return Figure("across-models", "One item across all models", caption, canvas)


def hardest(cells: Sequence[Cell]) -> list[Decision]:
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


def telling(rows: Sequence[Decision]) -> Decision:
    """Return the first record that TRACE corrected, preferably with a decisive layer."""

    def rank(record: Decision) -> tuple[bool, bool, bool]:
        return record.gain == 1, record.operator == "decisive", record.corrected

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


def subject(record: Decision | Mapping[Any, Any], limit: int = 60) -> str:
    """Return the question in one printable line, or the prompt's end if there is none."""
    row = vars(record) if isinstance(record, Decision) else record
    question = row["question"] or ""
    return short(question if question.strip() else row["prompt"][-limit:], limit)


def model_name(model: str) -> str:
    """Return a model's name without its owner or folder, in one short line."""
    return short(model.rstrip("/").rsplit("/", 1)[-1], 32)


def _invariant(record: Decision) -> float:
    value = record.invariant
    assert value is not None  # a run records it for every answered item
    return value


# Illustrative traces of log p over the feature depths, one per motif.
_MOTIFS = {
    "Sustained growth": (-6.0, -4.4, -2.8, -1.2),
    "Abrupt promotion": (-6.0, -5.8, -1.6, -1.4),
    "Accelerating support": (-6.0, -5.7, -4.4, -1.2),
}


@styled
def scorer_motifs(theta: Theta) -> Figure:
    """Return the figure of T's evidence across the feature depths, and of its weight alpha."""
    import torch

    from lastword.rule.scorer import Scorer

    x = theta.scorer.features
    scorer = Scorer(theta, depth=26, vocabulary=1)
    canvas, (*motifs, schedule) = draw.canvas(4, columns=4)
    for place, axes, (motif, trace) in zip("abc", motifs, _MOTIFS.items(), strict=True):
        p = np.interp(np.linspace(0, 1, len(x)), np.linspace(0, 1, len(trace)), trace)
        h = float(scorer.evidence(torch.tensor(p)[:, None, None]))
        draw.label(axes, f"({place}) {motif}: h = {h:.2f}", "feature depth / L", "log p")
        draw.line(axes, x, p, "corrected", markers=True)
        axes.set_ylim(-6.6, 0.2)
    evidence = torch.linspace(0, 1, 101, dtype=torch.float64)
    draw.label(schedule, "(d) Mixing schedule", "evidence h̃", "α")
    draw.rule(schedule, theta.scorer.lambda_0, "other", "λ₀", across=True)
    draw.line(schedule, evidence.numpy(), scorer.alpha(evidence[None])[0].numpy(), "mix")
    draw.shares(schedule)
    caption = (
        "Three illustrative traces of a token's log-probability over the feature depths, with the"
        " evidence h that each earns, and the weight α of the anchor mixture that normalised"
        " evidence sets. Traces are drawn for illustration; h and α are the scorer's."
    )
    return Figure("scorer-motifs", "What the scorer rewards", caption, canvas)


def left_to_the_table(cells: int) -> str:
    """Return a sentence on the cells that a figure does not show; empty if it shows all."""
    rest = cells - MOST_DRAWN
    return f" The table has {counted(rest, 'more cell')}." if rest > 0 else ""


@styled
def per_model(means: Sequence[ModelMeans]) -> Figure:
    """Return the figure of the operators' shares per model, and of I(M) and mean gain.

    Models without a judged item are left out.
    """
    rows = sorted(
        (m for m in means if np.isfinite([m.invariant, m.delta_mc1]).all()),
        key=lambda m: (m.invariant, m.model),
    )
    canvas, (usage, against) = draw.canvas(1, wide=[draw.bars_inches(max(1, len(rows)))])
    operators: tuple[Role, ...] = ("decisive", "mix", "early")
    shares = np.nan_to_num([m.fired for m in rows]).reshape(-1, 3).T
    names = [f"{model_name(m.model)}  {i}" for i, m in enumerate(rows, 1)]
    groups = {str(role): (role, share) for role, share in zip(operators, shares, strict=True)}
    draw.label(usage, "(a) Who answers", "% of items")
    draw.bars(usage, names, groups, horizontal=True, stacked=True)
    usage.set_xlim(0, 100)
    draw.label(against, "(b) I(M) and the gain", "I(M)", "mean ΔMC1, points")
    draw.rule(against, 1.0)
    draw.rule(against, 0.0, "other", across=True)
    x, y, second = (
        np.array([getattr(m, name) for m in rows])
        for name in ("invariant", "delta_mc1", "delta_mc2")
    )
    sizes = np.clip(np.nan_to_num(second) / 5, 0.3, 4.0)
    draw.points(against, x, y, [str(i) for i, _ in enumerate(rows, 1)], "corrected", sizes)
    draw.logarithmic(against)
    caption = (
        "(a) Share of the items that each operator answers, a mean over benchmarks; models by I(M)"
        " from low to high; the rest keep the model's scores. (b) I(M) against the mean change"
        " of MC1, by the numbers of (a); the larger the point, the larger the change of MC2."
    )
    return Figure("per-model", "What the rule does in each model", caption, canvas)
