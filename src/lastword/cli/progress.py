"""Progress on stderr for what takes longer than a second, where stderr is a terminal."""

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from threading import Timer
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

import typer

from lastword.cli.output import printable

if TYPE_CHECKING:
    from rich.progress import Progress

PATIENCE_SECONDS = 1.0
LINE_SECONDS = 30.0  # between two lines of progress where stderr is no terminal

T = TypeVar("T")


@contextmanager
def _showing(bar: "Progress") -> Iterator[None]:
    """Show the bar once a second has passed, until the block ends."""
    timer = Timer(PATIENCE_SECONDS, bar.start)  # the first of its things may take long
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()
        bar.stop()


@contextmanager
def waiting(task: str) -> Iterator[None]:
    """Say what is going on, and for how long, if it takes longer than a second."""
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    if not console.is_terminal:
        yield
        return
    words = TextColumn("{task.description}", markup=False)
    bar = Progress(SpinnerColumn(), words, TimeElapsedColumn(), console=console, transient=True)
    bar.add_task(printable(task), total=None)
    with _showing(bar):
        yield


def _bar(*columns: Any, **options: Any) -> "Progress":
    """Make a bar on stderr that counts, with more columns."""
    from rich.console import Console
    from rich.progress import MofNCompleteColumn, Progress, TimeRemainingColumn

    usual = (*Progress.get_default_columns()[:2], MofNCompleteColumn(), *columns)
    return Progress(*usual, TimeRemainingColumn(), console=Console(stderr=True), **options)


def tracked(things: Iterable[T], task: str, total: int) -> Iterator[T]:
    """The same things, counted on stderr once they have taken longer than a second."""
    bar = _bar(transient=True)
    if not bar.console.is_terminal:
        yield from things
        return
    line = bar.add_task(task, total=total)
    with _showing(bar):
        for thing in things:
            yield thing
            bar.advance(line)


class Countdown:
    """Items done, their rate and the time left, on stderr: live, or a line now and then."""

    def __init__(self, task: str, total: int) -> None:
        from rich.progress import TextColumn

        self._bar = _bar(TextColumn("{task.fields[rate]}"))
        self._bar.disable = not self._bar.console.is_terminal
        self._line = self._bar.add_task(printable(task), total=total, rate="")
        self._task, self._total, self._count, self._resumed = printable(task), total, 0, -1
        self._start = self._last_line = time.monotonic()

    def __enter__(self) -> "Countdown":
        """Show the bar."""
        self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Take it away."""
        self._bar.stop()

    def advance(self, records: int) -> None:
        """Count records; the first call counts those of an earlier start, which took no time."""
        self._count += records
        if self._resumed < 0:
            self._resumed, self._start = self._count, time.monotonic()
        self._bar.update(self._line, completed=self._count, rate=f"{self._rate():.3g} records/s")
        if self._bar.disable and time.monotonic() - self._last_line > LINE_SECONDS:
            self._last_line = time.monotonic()
            typer.echo(self._words(), err=True)

    def _rate(self) -> float:
        return (self._count - self._resumed) / max(time.monotonic() - self._start, 1e-6)

    def _words(self) -> str:
        rate = self._rate()
        seconds = (self._total - self._count) / rate if rate else float("nan")
        return (
            f"{self._task}: {self._count} of {self._total} records, {rate:.3g} records/s, "
            f"{seconds:.0f} s left"
        )
