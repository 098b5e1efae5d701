"""The explorer's plots as plotly figures of one decision or record; data comes from the library."""

from collections.abc import Mapping
from html import escape
from typing import Any

import numpy as np
from plotly.graph_objects import Bar, Figure, Scatter
from scipy.special import softmax

from tracelm.report.figures import chosen_depths, letter, preference, short
from tracelm.rule.geometry import Scores
from tracelm.theta import Theta
from tracelm.view.palette import LOOKS, Role

Record = Mapping[str, Any]

_INK = "#79828c"  # legible on a light and on a dark ground
_GRID = "rgba(121,130,140,0.25)"
_NAME_LIMIT = 28


def trajectory(record: Record, theta: Theta) -> Figure:
    """Probability of every candidate at every depth, with the window and the depths that decided.

    Args:
        record: A decision's full dictionary with its `candidates`, or a record.
        theta: Constants of the decision.
    """
    pi = preference(record)
    depth = pi.shape[1] - 1
    drawn = Figure()
    for place, row in enumerate(pi):
        look = LOOKS[_role(record, place)]
        line = {"color": look.light, "width": 1.4 * look.width, "dash": look.dash}
        drawn.add_trace(
            Scatter(x=np.arange(depth + 1), y=row, name=_name(record, place), line=line)
        )
    window = theta.window(depth)
    drawn.add_vrect(window[0], window[-1], fillcolor=_GRID, line_width=0, layer="below")
    name = {"decisive": "ℓ* = {}", "early": "depth {}"}.get(record["operator"], "")
    for chosen in chosen_depths(record, theta):
        rule = {"color": _INK, "width": 1.5, "dash": "dot"}
        drawn.add_vline(chosen, line=rule, annotation_text=name.format(chosen))
    return _styled(drawn, "depth")


def before_and_after(record: Record) -> Figure:
    """Probability of every candidate by the model's own scores and by the corrected ones."""
    names = [letter(place) for place in range(len(record["candidates"]))]
    texts = [_name(record, place) for place in range(len(names))]
    drawn = Figure()
    series: tuple[tuple[str, str, Role], ...] = (
        ("base", "base_scores", "base"),
        ("corrected", "scores", "corrected"),
    )
    for title, key, role in series:
        y = softmax(scores(record, key))
        color = LOOKS[role].light
        drawn.add_trace(Bar(x=names, y=y, name=title, marker_color=color, hovertext=texts))
    drawn.update_layout(barmode="group")
    return _styled(drawn, "candidate")


def scores(record: Record, key: str) -> Scores:
    """One of a record's rows of scores, as an array [candidates]."""
    return np.asarray(record[key], dtype=float)


def _role(record: Record, place: int) -> Role:
    """Where truth is known it shows, as in the report; otherwise the answers show."""
    truthful = record.get("truthful")
    if truthful is not None and len(truthful):
        if truthful[place]:
            return "truthful"
        return "winner" if place == record["base_index"] else "other"
    if place == record["index"]:
        return "corrected"
    return "mix" if place == record["base_index"] else "other"


def _name(record: Record, place: int) -> str:
    """A candidate's letter and text; plotly reads markup in names."""
    return escape(f"{letter(place)}  {short(record['candidates'][place], _NAME_LIMIT)}")


def _styled(drawn: Figure, x: str) -> Figure:
    drawn.update_layout(
        template="none",
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        font={"family": "system-ui, sans-serif", "color": _INK, "size": 13},
        margin={"t": 44, "b": 90, "l": 56, "r": 12},
        height=360,
        legend={"orientation": "h", "y": -0.25, "yanchor": "top"},
        hovermode="closest",
        showlegend=True,
    )
    drawn.update_xaxes(title=_title(x), gridcolor=_GRID, zeroline=False)
    y = _title("probability among candidates")
    drawn.update_yaxes(title=y, gridcolor=_GRID, zeroline=False, range=[0, 1.02])
    return drawn


def _title(text: str) -> dict[str, Any]:
    return {"text": text, "font": {"size": 13}, "standoff": 8}
