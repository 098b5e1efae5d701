"""The show of the embedded models, on the questions of their invented world."""

from lastword.benchmarks.demo import Kind, Label, items, parse_label
from lastword.model.embedded import load

__all__ = ["Kind", "Label", "items", "load", "parse_label"]
