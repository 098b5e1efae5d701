"""Work: the settings of an evaluation, which are sent to every engine's workers."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lastword.lab.benchmarks import Dataset, Template
from lastword.records.info import SCHEMA, RunInfo
from lastword.text.prompt_template import Blind

if TYPE_CHECKING:
    from lastword.methods.contract import Method


@dataclass(frozen=True)
class Work:
    """One benchmark with one template, and the readings of its items.

    Attributes:
        blind: Readings after the blind prompt: those of depth L, of every depth and T, or none.
        methods: Other methods that score the items, by name (`lastword.methods.resolve`).
    """

    dataset: Dataset
    template: Template
    blind: Blind = "base"
    methods: "Mapping[str, Method]" = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The benchmark's name in records and folders: `truthfulqa`, `truthfulqa@own6`."""
        benchmark = self.dataset.benchmark
        if self.template.name.startswith("user/"):
            return f"{benchmark.name}@user-{self.template.variant}"
        if self.template.variant == benchmark.default_variant:
            return benchmark.name
        return f"{benchmark.name}@{self.template.variant}"

    def describe(self) -> RunInfo:
        """Return the fields of `run.json` that describe it."""
        return {
            "schema": SCHEMA,
            "benchmark": self.name,
            "dataset": {"name": self.dataset.benchmark.name, **self.dataset.to_dict()},
            "template": self.template.to_dict(),
            "blind": self.blind,
            "methods": {name: method.aggregation for name, method in self.methods.items()},
            "items": len(self.dataset.examples),
        }
