"""Engines: where the model of an evaluation runs, in this process or in many.

An engine holds a model while it is open and takes assignments; one says what a cell needs done and
does what the cell's folder lacks. Records, their groups and how a run goes on are those of
`lastword.evaluation.runner` and `store` under every engine, so one may go on where another stopped.
"""

from abc import abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lastword.benchmarks import Dataset, Template
    from lastword.evaluation.runner import RunResult
    from lastword.evaluation.work import Work
    from lastword.records.info import RunInfo
    from lastword.text.items import Blind


@dataclass(frozen=True)
class Assignment:
    """One model on one benchmark under one template, to be done.

    Attributes:
        info: What `run.json` says of it, with the plan.
        execute: Does what the cell lacks and keeps it: `lastword.evaluation.runner.collect` from
            its argument `out` on.
    """

    info: "RunInfo"
    execute: "Callable[..., RunResult]"


class Engine(AbstractContextManager["Engine"]):
    """A model that is held while the engine is open."""

    @abstractmethod
    def assign(self, work: "Work") -> Assignment:
        """Return what a cell needs computed, as `lastword.evaluation.runner.prepare` says."""

    def cell(
        self, dataset: "Dataset", template: "Template", *, blind: "Blind" = "base"
    ) -> Assignment:
        """Return the assignment of a benchmark under a template."""
        from lastword.evaluation.work import Work

        return self.assign(Work(dataset, template, blind))
