"""Local: the model in this process, one group after the other."""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from lastword.engines import Assignment, Engine
from lastword.lab.evaluation import runner
from lastword.lab.evaluation.work import Work

if TYPE_CHECKING:
    from lastword.decide.tracer import Tracer


class Local(Engine):
    """The engine of one process."""

    def __init__(self, load: "Callable[[], Tracer]") -> None:
        self._load = load
        self._tracer: Tracer | None = None

    def __enter__(self) -> "Local":
        """Load the model."""
        self._tracer = self._load()
        return self

    def __exit__(self, *_: object) -> None:
        """Let the model go."""
        self._tracer = None

    def assign(self, work: Work) -> Assignment:
        """Return what a cell needs computed."""
        assert self._tracer is not None, "the engine is not open"
        job = runner.prepare(self._tracer, work)
        return Assignment(job.info, partial(runner.execute, self._tracer, job))
