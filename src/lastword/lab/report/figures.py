"""Figures of items, of the scorer and of models: pure functions of records and their summaries."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Bool
from matplotlib.axes import Axes
from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter
from scipy.special import softmax

from lastword.lab.report import draw
from lastword.lab.report.draw import Figure, styled
from lastword.lab.report.tables import ModelMeans
from lastword.records.cells import Cell, column
from lastword.records.columns import decisions
from lastword.records.decision import Decision
from lastword.records.marks import LOOKS, Role
from lastword.records.metrics import PerItem, Places
from lastword.records.view import View, letter, short, view
from lastword.rule import geometry
from lastword.rule.theta import Theta

_MOST_KEYS = 6  # maximum number of candidates that are written out below a panel

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
    axes.set_ylim(0, 1.03)
    for depth in shown["deciding"]:
        draw.rule(axes, depth, name=shown["deciding_name"] if rule is None else rule)
    for place in sorted(range(len(roles)), key=lambda i: _BEHIND.index(roles[i])):
        name = "" if roles[place] == "other" else shown["letters"][place]
        above = place == record.base_index  # its curve ends highest
        draw.line(axes, shown["depths"], shown["shares"][place], roles[place], name, above=above)
    return [key for key, role in zip(_keys(record), roles, strict=True) if role != "other"]


def _keys(record: Decision) -> list[str]:
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
    before, after = (softmax(cell.scores[n][places], axis=1) for n in ("base_scores", "scores"))
    gains: PerItem = ((after - before) * cell.truthful[places]).sum(axis=1)
    return gains


def _record(cell: Cell, item: int) -> Decision:
    return decisions(cell.whole(cell.answer_places[[item]]))[0]


@styled
def worked_example(cells: Sequence[Cell], theta: Theta) -> Figure | None:
    """Return the figure of one item that the decisive layer repairs; None without such an item.

    It shows the trajectory, D_l, the gates, and the scores before and after.
    """
    if (record := representative(cells, "decisive")) is None:
        return None
    shown = view(record, theta)
    canvas, (path, sharpness, gates, scores) = draw.canvas(4, columns=2, key=_keys(record))
    trajectory(path, record, theta, f"(a) {subject(record, 40)}")
    _band(path, shown)
    _sharpness(sharpness, record, shown, theta)
    _gates(gates, shown)
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


def _gates(axes: Axes, shown: View) -> None:
    draw.label(axes, "(c) Gates")
    axes.set_axis_off()
    axes.set(xlim=(0, 1), ylim=(0, 1))
    for place, (name, compared, holds) in enumerate(shown["gates"]):
        role: Role = "truthful" if holds else "alarm"
        mark = "✓" if holds else "✗"
        at = (0.04, 0.78 - 0.22 * place)
        draw.note(axes, f"{mark} {name}: {compared}", at, (0, 0), role, fontsize=9)


def _before_after(axes: Axes, answer: Decision) -> None:
    groups: Mapping[str, tuple[Role, list[float]]] = {
        "before": ("base", answer.base_probabilities.tolist()),
        "after": ("corrected", answer.probabilities.tolist()),
    }
    draw.bars(axes, [letter(place) for place in range(len(answer.candidates))], groups)
    before, after = (geometry.margin(u) for u in (answer.base_scores, answer.scores))
    draw.label(axes, f"(d) Margin {before:.2f} → {after:.2f} nats", "candidate", "probability")
    axes.set_ylim(0, 1.03)


def subject(record: Decision | Mapping[Any, Any], limit: int = 60) -> str:
    """Return the question in one printable line, or the prompt's end if there is none."""
    row = vars(record) if isinstance(record, Decision) else record
    question = row["question"] or ""
    return short(question if question.strip() else row["prompt"][-limit:], limit)


def model_name(model: str) -> str:
    """Return a model's name without its owner or folder, in one short line."""
    return short(model.rstrip("/").rsplit("/", 1)[-1], 32)


@styled
def per_model(means: Sequence[ModelMeans]) -> Figure:
    """Return the figure of the operators' shares per model, and of I(M) and mean gain.

    Models without a judged item are left out.
    """
    judged = [m for m in means if np.isfinite([m.invariant, m.delta_mc1]).all()]
    rows = sorted(judged, key=lambda m: (m.invariant, m.model))
    canvas, (usage, against) = draw.canvas(1, wide=[draw.bars_inches(max(1, len(rows)))])
    operators: tuple[Role, ...] = ("decisive", "mix", "early")
    shares = np.nan_to_num([m.fired for m in rows]).reshape(-1, 3).T
    names = [f"{model_name(m.model)}  {i}" for i, m in enumerate(rows, 1)]
    groups = {str(role): (role, share) for role, share in zip(operators, shares, strict=True)}
    draw.label(usage, "(a) Who answers", "% of items")
    draw.bars(usage, names, groups, horizontal=True, stacked=True)
    usage.set_xlim(0, 100)
    _gains(against, rows)
    caption = (
        "(a) Share of the items that each operator answers, a mean over benchmarks; models by I(M)"
        " from low to high; the rest keep the model's scores. (b) I(M) against the mean change"
        " of MC1, by the numbers of (a); the larger the point, the larger the change of MC2."
    )
    return Figure("per-model", "What the rule does in each model", caption, canvas)


def _gains(axes: Axes, rows: Sequence[ModelMeans]) -> None:
    """Draw I(M) against the mean gain, as numbered points."""
    draw.label(axes, "(b) I(M) and the gain", "I(M)", "mean ΔMC1, points")
    draw.rule(axes, 1.0)
    draw.rule(axes, 0.0, "other", across=True)
    sizes = 36 * np.clip(np.nan_to_num([m.delta_mc2 for m in rows]) / 5, 0.3, 4.0)
    x, y = [m.invariant for m in rows], [m.delta_mc1 for m in rows]
    axes.scatter(x, y, s=sizes, color=LOOKS["corrected"].light, alpha=0.85)
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.margins(0.14, 0.12)
    for i, at in enumerate(zip(x, y, strict=True), 1):
        draw.note(axes, str(i), at, (0, 6), ha="center", fontsize=6.5)
