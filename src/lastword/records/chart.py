"""Chart: lines over one axis as SVG, in the colours of the page that shows it."""

import io
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from markupsafe import Markup

from lastword.records.figure_parts import LOOKS, Role

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_ROLES: tuple[Role, ...] = ("corrected", "base", "mix")


def line_chart(
    title: str,
    along: str,
    lines: Mapping[str, tuple[Sequence[int | float], Sequence[int | float]]],
    up: str,
) -> Markup:
    """Return lines of shares, drawn in percent, as SVG.

    Args:
        title: Also what a screen reader says.
        along: Label of the horizontal axis.
        lines: Abscissas and shares, by name.
        up: Label of the vertical axis.
    """
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context({"svg.fonttype": "none", "svg.hashsalt": title, "font.family": "sans-serif"}):
        figure = Figure(figsize=(4.6, 3.0), layout="constrained")
        axes: Axes = figure.subplots()
        for role, (name, (x, y)) in zip(_ROLES, lines.items(), strict=False):
            color = LOOKS[role].light
            axes.plot(x, [100 * share for share in y], color=color, marker="o", ms=3, label=name)
        axes.set(title=title, xlabel=along, ylabel=up)
        axes.title.set_fontsize("medium")
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="y", alpha=0.25)
        if len(lines) > 1:
            axes.legend(frameon=False)
        file = io.StringIO()
        figure.savefig(file, format="svg", transparent=True, metadata={"Date": None})
    svg = file.getvalue()[file.getvalue().index("<svg") :]
    for role in _ROLES:
        svg = svg.replace(LOOKS[role].light, f"var(--{role})")
    # What is left has matplotlib's black, or none at all.
    svg = svg.replace("#000000", "currentColor").replace("<text ", '<text fill="currentColor" ')
    return Markup(svg.replace("<svg ", f'<svg role="img" aria-label="{title}" ', 1))
