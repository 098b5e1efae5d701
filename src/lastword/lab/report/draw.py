"""Figures drawn with matplotlib: their style, and marks in the colours of their roles.

A figure is drawn once. Its SVG is a file, and is shown by the page; its PDF is a file too.
Texts stay texts in PDF and SVG, and are never interpreted as mathematics or markup.
"""

import io
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure as Canvas

from lastword.records.marks import LOOKS, Role

UNDATED = {"pdf": {"CreationDate": None}, "svg": {"Date": None}}  # metadata by format
WIDTH, HEIGHT = 3.4, 2.6  # of a panel, in inches
KEY_INCHES, KEY_POINTS = 0.13, 6.5  # height and font size of a line below the panels
_DASHES = {"solid": "-", "dash": (0, (4, 2.5)), "dot": (0, (1, 1.6))}
_STYLE: dict[Any, Any] = {
    "text.parse_math": False,
    "text.usetex": False,
    "svg.fonttype": "none",
    "svg.hashsalt": "lastword",
    "pdf.fonttype": 42,
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 8,
    "axes.titlesize": 8.5,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.7,
    "axes.edgecolor": "#5a6068",
    "axes.axisbelow": True,
    "xtick.color": "#5a6068",
    "ytick.color": "#5a6068",
    "legend.framealpha": 0.85,
    "legend.edgecolor": "none",
    "legend.fontsize": 7.5,
}

P = ParamSpec("P")
R = TypeVar("R")
Values = Sequence[float] | np.ndarray


@dataclass(frozen=True, eq=False)
class Figure:
    """A drawn figure; its name is a file name without ending."""

    name: str
    title: str
    caption: str
    canvas: Canvas


def styled(draw: Callable[P, R]) -> Callable[P, R]:
    """Return a function that draws in the style of the figures."""

    @wraps(draw)
    def drawn(*args: P.args, **kwargs: P.kwargs) -> R:
        with matplotlib.rc_context(_STYLE):
            return draw(*args, **kwargs)

    return drawn


def canvas(
    panels: int,
    columns: int = 3,
    *,
    wide: Sequence[float] = (),
    key: Sequence[str] = (),
    lines: int = 0,
) -> tuple[Canvas, list[Axes]]:
    """Return a canvas with panels in rows.

    Args:
        panels: Number of panels of equal size.
        columns: Maximum number of them in a row.
        wide: Heights in inches of panels above them, each of which fills a row.
        key: Lines of text below all panels.
        lines: Number of lines of text below each panel.
    """
    columns = max(1, min(columns, panels))
    heights = [*wide, *[HEIGHT + KEY_INCHES * lines] * -(-panels // columns)]
    size = WIDTH * max(columns, 2), sum(heights) + KEY_INCHES * len(key)
    drawn = Canvas(figsize=size, layout="constrained")
    FigureCanvasAgg(drawn)
    if key:
        drawn.supxlabel("\n".join(key), x=0.01, ha="left", fontsize=KEY_POINTS)
    grid = drawn.add_gridspec(len(heights), columns, height_ratios=heights)
    spots = [grid[row, :] for row in range(len(wide))]
    spots += [grid[len(wide) + i // columns, i % columns] for i in range(panels)]
    return drawn, [drawn.add_subplot(spot) for spot in spots]


def bars_inches(names: int, groups: int = 1) -> float:
    """Return the height of a panel of horizontal bars."""
    return 0.9 + (0.18 + 0.12 * groups) * names


def label(axes: Axes, title: str = "", x: str = "", y: str = "") -> None:
    """Write the title and the names of the axes."""
    axes.set(title=title, xlabel=x, ylabel=y)


def line(
    axes: Axes,
    x: Values,
    y: Values,
    role: Role,
    name: str = "",
    *,
    markers: bool = False,
    above: bool = False,
) -> None:
    """Draw a curve, interrupted at nan, with its name at its end, above or below."""
    look, marker = LOOKS[role], "o" if markers else None
    ink: dict[str, Any] = {"color": look.light, "linestyle": _DASHES[look.dash]}
    axes.plot(x, y, marker=marker, markersize=3.5, lw=look.width, label=f"_{name}", **ink)
    if name:
        va = "bottom" if above else "top"
        note(axes, name, (x[-1], y[-1]), (4, 0), role, va=va, fontsize=7.5)


def rule(
    axes: Axes, at: float, role: Role = "chosen", name: str = "", *, across: bool = False
) -> None:
    """Draw a dotted line from bottom to top, or across; its name is at its end."""
    draw = axes.axhline if across else axes.axvline
    look = LOOKS[role]
    draw(at, color=look.light, linewidth=look.width, linestyle=_DASHES["dot"], zorder=1)
    if not name:
        return
    if across:
        where = {"xycoords": axes.get_yaxis_transform(), "ha": "left"}
        note(axes, name, (0.93, at), (0, 2), role, va="bottom", fontsize=7, **where)
    else:
        axes.set_title(axes.get_title(loc="left"), pad=15)  # the name is placed under the title
        where = {"xycoords": axes.get_xaxis_transform(), "ha": "center"}
        note(axes, name, (at, 1.0), (0, 2), role, va="bottom", fontsize=7, **where)


def note(
    axes: Axes,
    text: str,
    at: tuple[float, float],
    shift: tuple[int, int] = (0, 3),
    role: Role = "chosen",
    **look: Any,
) -> None:
    """Write a text beside a place, shifted by some points."""
    axes.annotate(text, at, shift, textcoords="offset points", color=LOOKS[role].light, **look)


def bars(
    axes: Axes,
    names: Sequence[str],
    groups: Mapping[str, tuple[Role, Values]],
    *,
    horizontal: bool = False,
    stacked: bool = False,
) -> None:
    """Draw groups of bars over named places, side by side or stacked, with a legend.

    `groups` has their roles and values by name.
    """
    width = 0.8 if stacked else 0.8 / len(groups)
    places, start = np.arange(len(names)), np.zeros(len(names))
    draw, size, at = (axes.barh, "height", "left") if horizontal else (axes.bar, "width", "bottom")
    for group, (name, (role, values)) in enumerate(groups.items()):
        shift = 0.0 if stacked else (group - (len(groups) - 1) / 2) * width
        where: dict[str, Any] = {size: width, at: start}
        draw(places + shift, values, color=LOOKS[role].light, label=name, **where)
        start = start + np.asarray(values) if stacked else start
    if horizontal:
        axes.set_yticks(places, names)
        axes.set_ylim(len(names) - 0.4, -0.6)
    else:
        long = max(map(len, names), default=0) > 4
        turned: dict[str, Any] = {"rotation": 35, "ha": "right"} if long else {}
        axes.set_xticks(places, names, **turned)
    axes.legend()


def at_ends(axes: Axes, group: int, texts: Sequence[str], role: Role = "chosen") -> None:
    """Write texts at the ends of a group of horizontal bars."""
    bars: Any = axes.containers[group]
    axes.bar_label(bars, texts, padding=2, fontsize=7, color=LOOKS[role].light)
    axes.margins(x=0.12)  # room for the texts


def below(axes: Axes, key: Sequence[str]) -> None:
    """Write lines of text below a panel."""
    axes.annotate(
        "\n".join(key),
        (0, 0),
        (0, -32),
        xycoords="axes fraction",
        textcoords="offset points",
        va="top",
        fontsize=KEY_POINTS,
    )


@styled
def save(figure: Figure, folder: Path) -> list[Path]:
    """Write a figure as PDF and SVG into a folder; equal data give equal bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{figure.name}.{form}" for form in UNDATED]
    for path in paths:
        path.write_bytes(rendered(figure, path.suffix[1:]))
    return paths


@styled
def rendered(figure: Figure, form: str) -> bytes:
    """Return a figure as a file of a form, without a date."""
    content = io.BytesIO()
    with warnings.catch_warnings():
        # Characters that the font lacks are drawn as boxes; the warning must not stop the report.
        warnings.filterwarnings("ignore", message=r"Glyph .* missing from font")
        if figure.canvas.get_layout_engine() is not None:  # laid out once, not for each form
            figure.canvas.draw_without_rendering()
            figure.canvas.set_layout_engine("none")
        figure.canvas.savefig(content, format=form, metadata=UNDATED[form])
    return content.getvalue()
