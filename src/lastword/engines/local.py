"""Local: runs the model in this process, one group after the other."""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from lastword.engines import Assignment, Engine
from lastword.lab.evaluation import runner
from lastword.lab.evaluation.work import Work

if TYPE_CHECKING:
    from lastword.decide.decider import Decider


class LocalEngine(Engine):
    """The engine of one process."""

    def __init__(self, load: "Callable[[], Decider]") -> None:
        self._load = load
        self._decider: Decider | None = None

    def __enter__(self) -> "LocalEngine":
        """Load the model."""
        self._decider = self._load()
        return self

    def __exit__(self, *_: object) -> None:
        """Release the model."""
        self._decider = None

    def assign(self, work: Work) -> Assignment:
        """Return the work of a cell."""
        assert self._decider is not None, "the engine is not open"
        job = runner.prepare(self._decider, work)
        return Assignment(job.info, partial(runner.execute, self._decider, job))
