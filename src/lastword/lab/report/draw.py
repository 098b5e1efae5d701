"""Renders figure data as PDF, SVG and PNG with matplotlib; it computes nothing.

Texts stay texts in PDF and SVG, and are never interpreted as mathematics or markup.
"""

import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure as Canvas
from matplotlib.patches import FancyArrowPatch
from matplotlib.ticker import LogFormatter, StrMethodFormatter

from lastword.records import marks as parts
from lastword.records.marks import LOOKS, Diagram, Figure, Panel

FORMATS = ("pdf", "svg", "png")
_PANEL_INCHES = (3.4, 2.6)
_KEY_INCHES, _KEY_POINTS = 0.13, 6.5  # height and font size of a line in the key of letters
_DPI = 200
_DASHES = {"solid": "-", "dash": (0, (4, 2.5)), "dot": (0, (1, 1.6))}
_STYLE: Any = {
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


def save(figure: Figure | Diagram, folder: Path, *, least_columns: int = 2) -> list[Path]:
    """Write one figure as PDF, SVG and PNG into a folder; equal data give equal bytes.

    A figure is at least `least_columns` panels wide; with 1 it is legible on a phone.
    """
    with matplotlib.rc_context(_STYLE), warnings.catch_warnings():
        # Characters that the font lacks are drawn as boxes; the warning must not stop the report.
        warnings.filterwarnings("ignore", message=r"Glyph .* missing from font")
        canvas = _diagram(figure) if isinstance(figure, Diagram) else _figure(figure, least_columns)
        canvas.draw_without_rendering()
        canvas.set_layout_engine("none")  # so that it is not laid out again for each format
        # Without dates, equal figures are equal files.
        paths = [folder / f"{figure.name}.{form}" for form in FORMATS]
        for path in paths:
            undated = {"png": {}, "svg": {"Date": None}, "pdf": {"CreationDate": None}}
            canvas.savefig(path, dpi=_DPI, metadata=undated[path.suffix[1:]])
    return paths


def _canvas(width: float, height: float) -> Canvas:
    canvas = Canvas(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(canvas)
    return canvas


def _figure(figure: Figure, least_columns: int) -> Canvas:
    rows = _rows(figure)
    columns = max(len(row) for row in rows)
    width, _ = _PANEL_INCHES
    heights = [max(map(_height, row)) for row in rows]
    canvas = _canvas(
        width * max(columns, least_columns), sum(heights) + _KEY_INCHES * len(figure.key)
    )
    if figure.key:
        canvas.supxlabel(_key_text(figure.key), x=0.01, ha="left", fontsize=_KEY_POINTS)
    grid = canvas.add_gridspec(len(rows), columns, height_ratios=heights)
    for place, row in enumerate(rows):
        for column, panel in enumerate(row):
            spot = grid[place, :] if _is_wide(panel) else grid[place, column]
            _panel(panel, canvas.add_subplot(spot))
    return canvas


def _rows(figure: Figure) -> list[list[Panel]]:
    """Return panels in rows of `columns`; a panel with names along its side fills a row."""
    rows: list[list[Panel]] = [[]]
    for panel in figure.panels:
        if rows[-1] and (len(rows[-1]) == figure.columns or _is_wide(panel, rows[-1][-1])):
            rows.append([])
        rows[-1].append(panel)
    return rows


def _is_wide(*panels: Panel) -> bool:
    return any(isinstance(m, parts.Bars) and m.horizontal for panel in panels for m in panel.marks)


def _height(panel: Panel) -> float:
    bars = [mark for mark in panel.marks if isinstance(mark, parts.Bars) and mark.horizontal]
    per_name = 0.18 + 0.12 * max((mark.groups for mark in bars), default=0)
    height = 0.9 + per_name * len(bars[0].names) if bars else _PANEL_INCHES[1]
    return height + _KEY_INCHES * len(panel.key)


class _Sparse(LogFormatter):
    """Labels for the minor ticks of an axis, unless it spans many decades."""

    def __call__(self, x: float, pos: int | None = None) -> str:
        """Return a tick's label such as `0.5`, or nothing if there is too little room."""
        return f"{x:g}" if super().__call__(x, pos) else ""


def _panel(panel: Panel, axes: Any) -> None:
    has_name = any(isinstance(m, parts.Rule) and m.axis == "x" and m.label for m in panel.marks)
    # The name of a rule is placed under the title.
    axes.set_title(panel.title, pad=15 if has_name else None)
    axes.set_xlabel(panel.x_label)
    axes.set_ylabel(panel.y_label)
    axes.set_xscale(panel.x_scale)
    if panel.x_scale == "log":
        axes.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
        axes.xaxis.set_minor_formatter(_Sparse(minor_thresholds=(1.1, 0.5)))
    if panel.x_names is not None:
        axes.set_xticks(range(len(panel.x_names)), panel.x_names, rotation=45, ha="right")
    if panel.x_range is not None:
        axes.set_xlim(panel.x_range)
    if panel.y_range is not None:
        low, high = panel.y_range
        axes.set_ylim(low, high + 0.03 * (high - low))
    if not panel.axes:
        _bare(axes)
    for mark in panel.marks:
        _DRAW[type(mark)](mark, axes)
    if panel.key:
        below: Any = {"xycoords": "axes fraction", "textcoords": "offset points", "va": "top"}
        axes.annotate(_key_text(panel.key), (0, 0), (0, -32), fontsize=_KEY_POINTS, **below)
    handles, labels = axes.get_legend_handles_labels()
    if handles:
        axes.legend(handles, labels)


def _bare(axes: Any) -> None:
    axes.set_axis_off()
    axes.set_xlim(0, 1)
    axes.set_ylim(0, 1)


def _key_text(key: Sequence[parts.Key]) -> str:
    suffix = {True: " (true)", False: " (false)", None: ""}
    return "\n".join(f"{k.letter}: {k.text}{suffix[k.true]}" for k in key)


def _line(line: parts.Line, axes: Any) -> None:
    look = LOOKS[line.role]
    axes.plot(
        line.x,
        line.y,
        color=look.light,
        linewidth=look.width,
        linestyle=_DASHES[look.dash],
        marker="o" if line.markers else None,
        markersize=3.5,
    )
    if line.label:
        va = "bottom" if line.above else "top"
        end = (line.x[-1], line.y[-1])
        _write(axes, line.label, end, (4, 0), va=va, color=look.light, fontsize=7.5)


def _write(
    axes: Any, text: str, at: tuple[float, float], shift: tuple[int, int], **look: Any
) -> None:
    """Write a text beside a place, shifted by some points."""
    axes.annotate(text, at, shift, textcoords="offset points", **look)


def _bars(bars: parts.Bars, axes: Any) -> None:
    width = 0.8 / bars.groups
    shift = (bars.group - (bars.groups - 1) / 2) * width
    places = [place + shift for place in range(len(bars.names))]
    draw, size, start = (
        (axes.barh, "height", "left") if bars.horizontal else (axes.bar, "width", "bottom")
    )
    options = {size: width, start: bars.start, "color": LOOKS[bars.role].light}
    patches = draw(places, bars.values, label=bars.label or None, **options)
    if bars.texts is not None:
        axes.bar_label(
            patches, bars.texts, padding=2, fontsize=7, color=LOOKS[bars.text_role].light
        )
        axes.margins(**{"x" if bars.horizontal else "y": 0.12})  # room for the texts at both ends
    ticks = range(len(bars.names))
    if bars.horizontal:
        axes.set_yticks(ticks, bars.names)
        axes.set_ylim(len(bars.names) - 0.4, -0.6)
    else:
        long = max(map(len, bars.names), default=0) > 4
        axes.set_xticks(
            ticks, bars.names, rotation=35 if long else 0, ha="right" if long else "center"
        )


def _points(points: parts.Points, axes: Any) -> None:
    sizes = [36 * s for s in points.sizes] if points.sizes is not None else 36
    color = LOOKS[points.role].light
    axes.scatter(points.x, points.y, s=sizes, color=color, alpha=0.85, label=points.label or None)
    axes.margins(0.14, 0.12)
    order = sorted(range(len(points.x)), key=lambda i: points.x[i])
    for turn, i in enumerate(order):  # labels of neighbours alternate above and below
        above = turn % 2 == 0
        place, va = (points.x[i], points.y[i]), "bottom" if above else "top"
        shift = (0, 6 if above else -6)
        _write(axes, points.names[i], place, shift, ha="center", va=va, fontsize=6.5)


def _rule(rule: parts.Rule, axes: Any) -> None:
    look = LOOKS[rule.role]
    draw = axes.axvline if rule.axis == "x" else axes.axhline
    draw(rule.at, color=look.light, linewidth=look.width, linestyle=_DASHES["dot"], zorder=1)
    if not rule.label:
        return
    style: Any = {"va": "bottom", "fontsize": 7, "color": look.light}
    if rule.axis == "x":
        transform = axes.get_xaxis_transform()
        _write(axes, rule.label, (rule.at, 1.0), (0, 2), xycoords=transform, ha="center", **style)
    else:
        transform = axes.get_yaxis_transform()
        _write(axes, rule.label, (0.93, rule.at), (0, 2), xycoords=transform, ha="left", **style)


def _band(band: parts.Band, axes: Any) -> None:
    axes.axvspan(band.start, band.end, color=LOOKS[band.role].light, zorder=0, linewidth=0)


def _note(note: parts.Note, axes: Any) -> None:
    ha, size, up = ("center", 7, 3) if note.centred else ("left", 9, 0)
    color = LOOKS[note.role].light
    _write(axes, note.text, (note.x, note.y), (0, up), ha=ha, fontsize=size, color=color)


_DRAW: dict[type, Callable[[Any, Any], None]]
_DRAW = {
    parts.Line: _line,
    parts.Bars: _bars,
    parts.Points: _points,
    parts.Rule: _rule,
    parts.Band: _band,
    parts.Note: _note,
}


def _diagram(diagram: Diagram) -> Canvas:
    canvas = _canvas(3 * _PANEL_INCHES[0], _PANEL_INCHES[1])
    axes = canvas.add_subplot()
    _bare(axes)
    artists = {box.name: _box(box, axes) for box in diagram.boxes}
    for arrow in diagram.arrows:
        _arrow(arrow, artists, axes)
    return canvas


def _box(box: parts.Box, axes: Any) -> Any:
    frame = {"facecolor": "white", "edgecolor": LOOKS[box.role].light, "linewidth": 1.4}
    frame["boxstyle"] = "round,pad=0.7"
    text, centred = f"{box.title}\n{box.text}", {"ha": "center", "va": "center"}
    return axes.text(box.x, box.y, text, linespacing=1.5, bbox=frame, **centred)


def _arrow(arrow: parts.Arrow, artists: dict[str, Any], axes: Any) -> None:
    start, end = artists[arrow.start], artists[arrow.end]
    look = LOOKS["other" if arrow.dashed else "chosen"]
    axes.add_patch(
        FancyArrowPatch(
            start.get_position(),
            end.get_position(),
            patchA=start.get_bbox_patch(),
            patchB=end.get_bbox_patch(),
            arrowstyle="-|>",
            mutation_scale=9,
            linestyle=_DASHES["dash" if arrow.dashed else "solid"],
            color=look.light,
        )
    )
    (x0, y0), (x1, y1) = start.get_position(), end.get_position()
    steep = abs(x1 - x0) < abs(y1 - y0)  # the label of a steep arrow is at its side
    dx, dy, side = (0.012, 0.0, "left") if steep else (0.0, 0.04, "center")
    place = (x0 + x1) / 2 + dx, (y0 + y1) / 2 + dy
    axes.text(*place, arrow.label, ha=side, color=look.light)
