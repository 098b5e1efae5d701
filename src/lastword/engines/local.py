"""Local: the model in this process, one group after the other."""

from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING

from lastword.engines import Engine
from lastword.evaluation import runner
from lastword.evaluation.work import Extent, Work
from lastword.files.folder import Folder
from lastword.records.info import RunInfo

if TYPE_CHECKING:
    from lastword.tracer import Tracer


@dataclass(frozen=True)
class LocalAssignment:
    """A job and the tracer that does it."""

    tracer: "Tracer"
    job: runner.Job

    @property
    def info(self) -> RunInfo:
        """Return what `run.json` says of it, with the plan."""
        return self.job.info

    def execute(
        self,
        out: Folder,
        extent: Extent = Extent(),  # noqa: B008 - frozen
        advance: Callable[[int], None] | None = None,
    ) -> runner.RunResult:
        """Do what the cell lacks and keep it."""
        return runner.execute(self.tracer, self.job, out, extent, advance)


class Local(Engine):
    """The engine of one process.

    Args:
        load: Makes the tracer, when the engine is opened.
    """

    def __init__(self, load: "Callable[[], Tracer]") -> None:
        self._load = load
        self._tracer: Tracer | None = None

    def __enter__(self) -> "Local":
        """Load the model."""
        self._tracer = self._load()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Let the model go."""
        self._tracer = None

    def assign(self, work: Work) -> LocalAssignment:
        """Return what a cell needs computed."""
        assert self._tracer is not None, "the engine is not open"
        return LocalAssignment(self._tracer, runner.prepare(self._tracer, work))
