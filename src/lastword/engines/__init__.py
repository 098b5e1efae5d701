"""Engines: run the model of an evaluation, in this process or in many.

An engine has a model loaded while it is open. Its assignments compute the items that a cell's
folder lacks. Every engine writes records with the same runner (`lastword.lab.evaluation.runner`),
so that one engine can continue a run that another started.
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
    """The work of one model on one benchmark with one template.

    Attributes:
        info: The content of its `run.json`.
        execute: Function that answers the missing items and stores them, with the arguments of
            `runner.collect` from `out` on.
    """

    info: "RunInfo"
    execute: "Callable[..., RunResult]"


class Engine(AbstractContextManager["Engine"]):
    """A model that is loaded while the engine is open."""

    @abstractmethod
    def assign(self, work: "Work") -> Assignment:
        """Return the work of a cell; see `lastword.lab.evaluation.runner.prepare`."""

    def cell(
        self, dataset: "Dataset", template: "Template", *, blind: "Blind" = "base"
    ) -> Assignment:
        """Return the assignment of a benchmark with a template."""
        from lastword.lab.evaluation.work import Work

        return self.assign(Work(dataset, template, blind))
