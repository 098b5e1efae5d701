"""The demo of the embedded models, on questions about their invented world."""

from lastword.lab.benchmarks.demo import items
from lastword.model.embedded import load

__all__ = ["items", "load"]
