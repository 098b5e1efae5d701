"""Engines: where the model of an evaluation runs, in this process or in many.

An engine holds a model while it is open and takes assignments; one says what a cell needs done and
does what the cell's folder lacks. Records, their groups and how a run goes on are those of
`lastword.evaluation.runner` and `store` under every engine, so one may go on where another stopped.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from lastword.benchmarks import Dataset, Template
    from lastword.evaluation.runner import RunResult
    from lastword.files.folder import Folder
    from lastword.records.info import RunInfo
    from lastword.records.run import Shard
    from lastword.text.items import Blind


@runtime_checkable
class Assignment(Protocol):
    """One model on one benchmark under one template, to be done."""

    @property
    def info(self) -> "RunInfo":
        """What `run.json` says of it, with the plan."""

    def execute(
        self,
        out: "Folder",
        *,
        shard: "Shard | None" = None,
        max_failures: int | None = None,
        advance: Callable[[int], None] | None = None,
    ) -> "RunResult":
        """Do what the cell lacks and keep it, as `lastword.evaluation.runner.execute` does."""


@runtime_checkable
class Engine(AbstractContextManager["Engine"], Protocol):
    """A model that is held while the engine is open."""

    def cell(
        self, dataset: "Dataset", template: "Template", *, blind: "Blind" = "base"
    ) -> Assignment:
        """What a cell needs computed, as `lastword.evaluation.runner.prepare` says."""
