"""The show of the embedded models, and their making: their invented world, their benchmark."""

from lastword.benchmarks.world import (
    Fact,
    Kind,
    Label,
    facts,
    items,
    open_questions,
    parse_label,
)
from lastword.model.embedded import load

__all__ = ["Fact", "Kind", "Label", "facts", "items", "load", "open_questions", "parse_label"]
