"""Colours and line styles of roles, which figures and pages share."""

from dataclasses import dataclass
from typing import Literal

# The colours are distinguishable with any colour vision, and truth and error differ in line style
# too.
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
