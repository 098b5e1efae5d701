"""A decision for the eye: a plotly figure, and the HTML that a notebook shows for it."""

from collections.abc import Mapping
from html import escape
from typing import Any

import numpy as np
from scipy.special import softmax

from tracelm.view.explanation import in_words
from tracelm.view.palette import LOOKS, Role

_NAME_LIMIT = 40
_GREY = "#79828c"  # legible on a light and on a dark ground

Record = Mapping[str, Any]


def plot(decision: Record) -> Any:
    """Probability of every candidate over depth, and before and after correction.

    Only depths that were read are drawn: all of them under `read="all"`. Depth L holds the base's
    probabilities; a vertical line marks the depth whose scores decided, where one did.

    Args:
        decision: A decision's full dictionary with its `candidates`, or a record.

    Returns:
        A `plotly.graph_objects.Figure`.
    """
    from plotly.graph_objects import Bar, Scatter
    from plotly.subplots import make_subplots

    figure = make_subplots(cols=2, column_widths=[0.62, 0.38], horizontal_spacing=0.09)
    S = np.stack([np.asarray(row, dtype=float) for row in decision["trajectory"]])
    depths = np.flatnonzero(~np.isnan(S).any(axis=0))
    pi = softmax(S[:, depths], axis=0)  # pi_l: Eq. 6
    # Numbered: texts that agree as far as they are shown stay apart.
    names = [f"{n}. {_short(text)}" for n, text in enumerate(decision["candidates"], start=1)]
    for place, (row, name) in enumerate(zip(pi, names, strict=True)):
        look = LOOKS[_role(decision, place)]
        line = {"color": look.light, "width": 1.4 * look.width, "dash": look.dash}
        figure.add_trace(
            Scatter(x=depths, y=row, name=name, mode="lines+markers", line=line), row=1, col=1
        )
    if (chosen := _chosen(decision)) is not None:
        rule = {"color": _GREY, "width": 1.5, "dash": "dot"}
        figure.add_vline(chosen, line=rule, annotation_text=f"depth {chosen}", row=1, col=1)
    bars = zip(("base", "corrected"), _before_and_after(decision), _BAR_ROLES, strict=True)
    for title, values, role in bars:
        color = LOOKS[role].light
        bar = Bar(x=values, y=names, name=title, marker_color=color, orientation="h")
        figure.add_trace(bar, row=1, col=2)
    return _styled(figure)


_BAR_ROLES: tuple[Role, Role] = ("base", "corrected")


def html(decision: Record) -> str:
    """Answer, table of candidates and reasons as HTML without scripts or references.

    Args:
        decision: A decision's dictionary with its `candidates`, or a record.
    """
    columns = (decision["candidates"], *_before_and_after(decision))
    rows = "".join(
        f"<tr><td style='text-align:left'>{_marked(decision, place, text)}</td>"
        f"<td>{before:.3f}</td><td>{after:.3f}</td></tr>"
        for place, (text, before, after) in enumerate(zip(*columns, strict=True))
    )
    why = escape(in_words(decision))
    return (
        "<div><table><thead><tr><th style='text-align:left'>candidate</th><th>base</th>"
        f"<th>corrected</th></tr></thead><tbody>{rows}</tbody></table><p>{why}</p></div>"
    )


def _before_and_after(decision: Record) -> tuple[Any, Any]:
    """Probabilities among the candidates by the base scores, and by those that decide."""
    base, corrected = (
        softmax(np.asarray(decision[name], dtype=float)) for name in ("base_scores", "scores")
    )
    return base, corrected


def _marked(decision: Record, place: int, text: str) -> str:
    told = escape(text)
    if place == decision["index"]:
        return f"<b>{told}</b>"
    return f"<s>{told}</s>" if place == decision["base_index"] else told


def _role(decision: Record, place: int) -> Role:
    if place == decision["index"]:
        return "corrected"
    return "mix" if place == decision["base_index"] else "other"


def _chosen(decision: Record) -> int | None:
    """The one depth whose scores decided: l*, or 0 where the earliest state did."""
    if decision["operator"] == "decisive":
        return int(decision["decisive_layer"])
    return 0 if decision["operator"] == "early" else None


def _short(text: str) -> str:
    """A candidate as a name in a figure; plotly reads markup in names."""
    return escape(text if len(text) <= _NAME_LIMIT else text[: _NAME_LIMIT - 1].rstrip() + "…")


def _styled(figure: Any) -> Any:
    figure.update_layout(
        template="none",
        font={"family": "system-ui, sans-serif", "color": _GREY},
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        margin={"t": 24, "b": 44, "l": 52, "r": 12},
        height=340,
        legend={"orientation": "h", "y": -0.2},
    )
    title = "probability among candidates"
    figure.update_yaxes(title=title, range=[0, 1.02], row=1, col=1)
    figure.update_xaxes(title="depth", row=1, col=1)
    figure.update_xaxes(title=title, range=[0, 1.02], row=1, col=2)
    figure.update_yaxes(autorange="reversed", automargin=True, row=1, col=2)
    return figure
