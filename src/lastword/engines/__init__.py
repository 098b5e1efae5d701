"""Engines: where the model of an evaluation runs, in this process or in many.

An engine holds a model while it is open and takes assignments. An assignment names a cell's work
and answers the items that the cell's folder lacks. Every engine writes records by the same runner
(`lastword.lab.evaluation.runner`), so one engine can continue a run that another started.
"""

from abc import abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lastword.lab.benchmarks import Dataset, Template
    from lastword.lab.evaluation.runner import RunResult
    from lastword.lab.evaluation.work import Work
    from lastword.records.info import RunInfo
    from lastword.text.items import Blind


@dataclass(frozen=True)
class Assignment:
    """One model on one benchmark under one template, to be done.

    Attributes:
        info: What `run.json` says of it, with the plan.
        execute: Answers the missing items and stores them; takes the arguments of `runner.collect`
            from `out` on.
    """

    info: "RunInfo"
    execute: "Callable[..., RunResult]"


class Engine(AbstractContextManager["Engine"]):
    """A model that is held while the engine is open."""

    @abstractmethod
    def assign(self, work: "Work") -> Assignment:
        """Return the missing work of a cell, as `lastword.lab.evaluation.runner.prepare` does."""

    def cell(
        self, dataset: "Dataset", template: "Template", *, blind: "Blind" = "base"
    ) -> Assignment:
        """Return the assignment of a benchmark under a template."""
        from lastword.lab.evaluation.work import Work

        return self.assign(Work(dataset, template, blind))
