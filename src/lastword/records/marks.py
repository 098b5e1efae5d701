"""Figures as data: panels of marks, which any renderer can read.

`draw` renders them with matplotlib, `plots.js` as SVG on pages. Texts are not escaped here: each
renderer escapes them.
"""

from dataclasses import dataclass
from typing import Literal

# The colours are distinguishable with any colour vision, and truth and error differ in line style
# too. matplotlib and the pages share this table.
Role = Literal[
    "truthful",
    "winner",
    "other",
    "chosen",
    "window",
    "base",
    "corrected",
    "decisive",
    "mix",
    "early",
    "none",
    "alarm",
]


@dataclass(frozen=True)
class Look:
    """Style of a role's lines: colour in light and dark mode, width in points, and dash."""

    light: str
    dark: str
    width: float = 1.6
    dash: Literal["solid", "dash", "dot"] = "solid"


LOOKS: dict[Role, Look] = {
    "truthful": Look("#00805a", "#3ecf9d", 2.4),
    "winner": Look("#c8321f", "#ff7b66", 1.9),
    "other": Look("#9a9a9a", "#80868c", 1.0, "dash"),
    "chosen": Look("#1f2933", "#e8e6df", 1.2, "dot"),
    "window": Look("#e9e5da", "#262c31"),
    "base": Look("#8b97a3", "#7d8a96"),
    "corrected": Look("#2367a8", "#6cb2f2"),
    "decisive": Look("#2367a8", "#6cb2f2"),
    "mix": Look("#d9892b", "#f0ad5a"),
    "early": Look("#7d4f9e", "#be93dd"),
    "none": Look("#d5d3cc", "#3a4148"),
    "alarm": Look("#c8321f", "#ff7b66", 1.2),
}

Numbers = tuple[float, ...]


@dataclass(frozen=True)
class Line:
    """A curve, interrupted at nan. Its label is at its end, above or below."""

    x: Numbers
    y: Numbers
    role: Role
    label: str = ""
    markers: bool = False
    above: bool = False
    kind: Literal["line"] = "line"


@dataclass(frozen=True)
class Bars:
    """Bars over named places, each from `start`; `group` of `groups` are placed side by side."""

    names: tuple[str, ...]
    values: Numbers
    role: Role
    label: str = ""
    start: Numbers | None = None
    texts: tuple[str, ...] | None = None
    text_role: Role = "chosen"
    group: int = 0
    groups: int = 1
    horizontal: bool = False
    kind: Literal["bars"] = "bars"


@dataclass(frozen=True)
class Points:
    """Named points; sizes are relative to a medium size of 1."""

    x: Numbers
    y: Numbers
    names: tuple[str, ...]
    role: Role
    label: str = ""
    sizes: Numbers | None = None
    kind: Literal["points"] = "points"


@dataclass(frozen=True)
class Rule:
    """A straight line across the panel: a chosen depth, a published constant, zero."""

    at: float
    role: Role = "chosen"
    label: str = ""
    axis: Literal["x", "y"] = "x"
    kind: Literal["rule"] = "rule"


@dataclass(frozen=True)
class Band:
    """A shaded range of x."""

    start: float
    end: float
    role: Role = "window"
    kind: Literal["band"] = "band"


@dataclass(frozen=True)
class Note:
    """A text at a point of the panel; centred text is above the point."""

    x: float
    y: float
    text: str
    role: Role = "chosen"
    centred: bool = True
    kind: Literal["note"] = "note"


@dataclass(frozen=True)
class Key:
    """An entry of the legend: a letter, its candidate, and True or False if it is labelled."""

    letter: str
    text: str
    true: bool | None


Mark = Line | Bars | Points | Rule | Band | Note


@dataclass(frozen=True)
class Panel:
    """Marks on common axes; a panel without axes has only notes, with x and y from 0 to 1.

    `x_names` replace the numbers 0, 1, 2, ... on the axis; `key` is below the axes.
    """

    title: str
    marks: tuple[Mark, ...]
    x_label: str = ""
    y_label: str = ""
    x_scale: Literal["linear", "log"] = "linear"
    x_names: tuple[str, ...] | None = None
    x_range: tuple[float, float] | None = None
    y_range: tuple[float, float] | None = None
    axes: bool = True
    key: tuple[Key, ...] = ()


@dataclass(frozen=True)
class Figure:
    """A figure: its file name, its caption, its panels in reading order, and their common key."""

    name: str
    title: str
    caption: str
    panels: tuple[Panel, ...]
    columns: int = 3
    key: tuple[Key, ...] = ()
    kind: Literal["figure"] = "figure"


@dataclass(frozen=True)
class Box:
    """A node of a diagram, centred at x, y in [0, 1]."""

    name: str
    title: str
    text: str
    x: float
    y: float
    role: Role = "none"


@dataclass(frozen=True)
class Arrow:
    """An edge of a diagram: the main path is solid, evidence dashed."""

    start: str
    end: str
    label: str = ""
    dashed: bool = False


@dataclass(frozen=True)
class Diagram:
    """Boxes and arrows."""

    name: str
    title: str
    caption: str
    boxes: tuple[Box, ...]
    arrows: tuple[Arrow, ...]
    kind: Literal["diagram"] = "diagram"
