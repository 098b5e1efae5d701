"""Marks, panels, figures: what a figure is made of, as data that any drawer can read.

A figure is panels of marks; `draw` puts them on paper by matplotlib, `plots.js` on the page as
SVG. Text stays plain text here: who draws it escapes it.
"""

from dataclasses import dataclass
from typing import Literal

# Colours are told apart by readers with any colour vision, and truth and error differ in their line
# as well as in their hue. One table for matplotlib and for the page.
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
    """Colour on a light and on a dark ground, width in points, and dash of a role's lines."""

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
    """A curve; nan breaks it. Its label stands at its end, above or below."""

    x: Numbers
    y: Numbers
    role: Role
    label: str = ""
    markers: bool = False
    above: bool = False
    kind: Literal["line"] = "line"


@dataclass(frozen=True)
class Bars:
    """Bars over named places, each from `start` on; `group` of `groups` stand side by side."""

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
    """Named points; sizes are relative, 1 is the middle."""

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
    """Words at a point of the panel, above it where they are centred."""

    x: float
    y: float
    text: str
    role: Role = "chosen"
    centred: bool = True
    kind: Literal["note"] = "note"


@dataclass(frozen=True)
class Key:
    """The candidate that a letter stands for: its text, and whether it is true, if labelled."""

    letter: str
    text: str
    true: bool | None


Mark = Line | Bars | Points | Rule | Band | Note


@dataclass(frozen=True)
class Panel:
    """Marks on common axes; a panel without axes holds notes alone, x and y from 0 to 1.

    `x_names` are read at 0, 1, 2, ... instead of numbers; `key` stands under the axes.
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
