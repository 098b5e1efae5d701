"""The demo's page: the worked items' trajectories as plots, one file that needs no network."""

from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from scipy.special import softmax

from tracelm.demo.outcome import Outcome
from tracelm.errors import InputError
from tracelm.theta import Theta
from tracelm.view.explanation import in_words
from tracelm.view.palette import LOOKS, Role

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

_STYLE = "body{font:16px/1.5 sans-serif;max-width:56rem;margin:2rem auto;padding:0 1rem}"


def write_page(path: Path, note: str, examples: Mapping[str, Outcome], theta: Theta) -> None:
    """Write one self-contained HTML file; plotly's script is inside it.

    Args:
        path: The file.
        note: What the embedded models are.
        examples: Worked items by the rule that chose them.
        theta: Constants of the decisions.

    Raises:
        InputError: The file cannot be written.
    """
    parts = [_section(t, o, theta, first=i == 0) for i, (t, o) in enumerate(examples.items())]
    html = (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>tracelm demo</title>'
        f"<style>{_STYLE}</style></head><body><h1>tracelm demo</h1><p>{escape(note)}</p>"
        f"{''.join(parts)}</body></html>\n"
    )
    try:
        path.write_text(html, encoding="utf-8")
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror or error}") from error


def _section(title: str, outcome: Outcome, theta: Theta, *, first: bool) -> str:
    item, decision = outcome.item, outcome.decision
    told = decision.to_dict() | {"candidates": item.candidates, "truthful": item.truthful}
    plot = figure(outcome, theta).to_html(full_html=False, include_plotlyjs=first)
    heading = f"<h2>Organism: the {escape(title)}</h2><p>{escape(item.question or item.prompt)}</p>"
    return f"{heading}{plot}<p>{escape(in_words(told))}</p>"


def figure(outcome: Outcome, theta: Theta) -> "Figure":
    """Probabilities among the candidates over depth, with the window and the depth that decides."""
    from plotly.graph_objects import Figure, Scatter

    decision = outcome.decision
    pi = softmax(decision.trajectory, axis=0)
    depth = pi.shape[1] - 1
    drawn = Figure()
    for i, probabilities in enumerate(pi):
        look = LOOKS[_role(outcome, i)]
        line = {"color": look.light, "width": look.width, "dash": look.dash}
        name = escape(decision.candidates[i])  # plotly reads markup in names
        drawn.add_trace(Scatter(x=list(range(depth + 1)), y=probabilities, name=name, line=line))
    window = theta.window(depth)
    ground = LOOKS["window"].light
    drawn.add_vrect(window[0], window[-1], fillcolor=ground, line_width=0, layer="below")
    if decision.decisive_layer is not None:
        look = LOOKS["chosen"]
        rule = {"color": look.light, "width": look.width, "dash": look.dash}
        text = f"l* = {decision.decisive_layer}"
        drawn.add_vline(decision.decisive_layer, line=rule, annotation_text=text)
    drawn.update_layout(template="plotly_white", margin={"t": 30, "b": 40}, height=380)
    drawn.update_xaxes(title="depth", dtick=1)
    drawn.update_yaxes(title="probability among the candidates", range=(0, 1.02))
    return drawn


def _role(outcome: Outcome, candidate: int) -> Role:
    if (outcome.item.truthful or ())[candidate]:
        return "truthful"
    chosen = (outcome.decision.base_index, outcome.decision.index)
    return "winner" if candidate in chosen else "other"
