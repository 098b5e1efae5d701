"""The show of the embedded models, on the questions of their invented world."""

from lastword.lab.benchmarks.demo import items
from lastword.model.embedded import load

__all__ = ["items", "load"]
