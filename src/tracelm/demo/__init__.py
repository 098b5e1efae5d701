"""The embedded models, their invented world and their benchmark."""

from tracelm.demo.weights import load
from tracelm.demo.world import Fact, Kind, Label, facts, open_questions, parse_label
from tracelm.items import Item

__all__ = ["Fact", "Kind", "Label", "facts", "items", "load", "open_questions", "parse_label"]


def items() -> list[Item]:
    """The demo's benchmark; an item's id carries its label (`parse_label`)."""
    from tracelm.demo.world import benchmark

    return [item for item, _ in benchmark()]
