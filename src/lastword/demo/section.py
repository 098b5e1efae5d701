"""A part of the demo: what a model is, what came out, and the items that show it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lastword.demo.outcome import Outcome
from lastword.demo.story import Story

Row = tuple[str, ...]


@dataclass(frozen=True)
class Grid:
    """A table of texts, for the terminal and for the page; the first column is words."""

    title: str
    columns: Row
    rows: tuple[Row, ...]


@dataclass(frozen=True)
class Section:
    """A part of the demo as the page shows it.

    Attributes:
        title: Of the part.
        name: Of the model, before the rule that chose an item.
        note: What the model is.
        story: The short of it.
        grids: What came out.
        findings: What follows from it, a sentence or two each.
        examples: Worked items by the rule that chose them.
        figures: The numbers behind what is shown, for programs.
    """

    title: str
    name: str
    note: str
    story: Story
    grids: tuple[Grid, ...]
    findings: tuple[str, ...]
    examples: Mapping[str, Outcome]
    figures: Mapping[str, Any]
