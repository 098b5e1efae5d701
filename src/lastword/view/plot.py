"""A portrait as plotly figures, for a notebook and for the explorer; nothing is computed here."""

from html import escape
from typing import Any

from plotly.graph_objects import Bar, Figure, Scatter
from plotly.subplots import make_subplots

from lastword.view.palette import LOOKS, Role
from lastword.view.portrait import Candidate, Portrait, short

_NAME_LIMIT = 32
_INK = "#79828c"  # legible on a light and on a dark ground
_GRID = "rgba(121,130,140,0.25)"
_PROBABILITY = "probability among candidates"


def plot(portrait: Portrait) -> Figure:
    """Probability of every candidate over the depths that were read, and before and after."""
    figure = make_subplots(cols=2, column_widths=[0.62, 0.38], horizontal_spacing=0.09)
    _draw_trajectory(figure, portrait, column=1)
    _draw_bars(figure, portrait, column=2)
    return figure


def trajectory(portrait: Portrait) -> Figure:
    """Probability of every candidate over depth, with the window and the depths that decided."""
    figure = make_subplots()
    _draw_trajectory(figure, portrait)
    return figure


def before_and_after(portrait: Portrait) -> Figure:
    """Probability of every candidate by the model's own scores and by those that decide."""
    figure = make_subplots()
    _draw_bars(figure, portrait)
    return figure


def _draw_trajectory(figure: Figure, portrait: Portrait, column: int = 1) -> None:
    at = {"row": 1, "col": column}
    for candidate in portrait.candidates:
        look = LOOKS[candidate.role]
        line = {"color": look.light, "width": 1.4 * look.width, "dash": look.dash}
        name, mode = _name(candidate), "lines+markers"
        curve = Scatter(x=portrait.depths, y=candidate.shares, name=name, mode=mode, line=line)
        figure.add_trace(curve, **at)
    if portrait.window is not None:
        figure.add_vrect(*portrait.window, fillcolor=_GRID, line_width=0, layer="below", **at)
    rule = {"color": _INK, "width": 1.5, "dash": "dot"}
    label = {"annotation_text": portrait.deciding_name, "annotation_position": "top"}
    for depth in portrait.deciding_depths:
        figure.add_vline(depth, line=rule, **label, **at)
    _style(figure)
    figure.update_xaxes(title=_title("depth"), **at)
    figure.update_yaxes(title=_title(_PROBABILITY), range=[0, 1.02], **at)


def _draw_bars(figure: Figure, portrait: Portrait, column: int = 1) -> None:
    at = {"row": 1, "col": column}
    letters = [candidate.letter for candidate in portrait.candidates]
    shares: dict[Role, list[float]] = {
        "base": [candidate.before for candidate in portrait.candidates],
        "corrected": [candidate.after for candidate in portrait.candidates],
    }
    for role, x in shares.items():
        color, names = LOOKS[role].light, [_name(candidate) for candidate in portrait.candidates]
        bar = Bar(x=x, y=letters, name=role, marker_color=color, hovertext=names, orientation="h")
        figure.add_trace(bar, **at)
    _style(figure)
    figure.update_xaxes(title=_title(_PROBABILITY), range=[0, 1.02], **at)
    figure.update_yaxes(autorange="reversed", automargin=True, **at)


def _name(candidate: Candidate) -> str:
    """A candidate's letter and text; plotly reads markup in names."""
    return escape(f"{candidate.letter}  {short(candidate.text, _NAME_LIMIT)}")


def _style(figure: Figure) -> None:
    figure.update_layout(
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
    figure.update_xaxes(gridcolor=_GRID, zeroline=False)
    figure.update_yaxes(gridcolor=_GRID, zeroline=False)


def _title(text: str) -> dict[str, Any]:
    return {"text": text, "font": {"size": 13}, "standoff": 8}
