"""Shows progress on stderr for work that takes longer than a second."""

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from threading import Timer
from typing import TYPE_CHECKING, Any, TypeVar

import typer

from lastword.cli.output import printable

if TYPE_CHECKING:
    from rich.progress import Progress

PATIENCE_SECONDS = 1.0
LINE_SECONDS = 30.0  # interval between lines of progress if stderr is not a terminal

T = TypeVar("T")


def _bar(*columns: Any, **options: Any) -> "Progress":
    """Return a progress bar on stderr, which is hidden if that is not a terminal."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    return Progress(*columns, console=console, disable=not console.is_terminal, **options)


@contextmanager
def _showing(bar: "Progress") -> Iterator[None]:
    """Show the bar after one second, until the block ends."""
    timer = Timer(PATIENCE_SECONDS, bar.start)  # a timer, because the first step may take long
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()
        bar.stop()


@contextmanager
def waiting(task: str) -> Iterator[None]:
    """Show a task and its time if it takes longer than a second."""
    from rich.progress import SpinnerColumn, TextColumn, TimeElapsedColumn

    words = TextColumn("{task.description}", markup=False)
    bar = _bar(SpinnerColumn(), words, TimeElapsedColumn(), transient=True)
    bar.add_task(printable(task), total=None)
    with _showing(bar):
        yield


def tracked(things: Iterable[T], task: str, total: int) -> Iterator[T]:
    """Yield the things, and show their count on stderr."""
    with counting(task, total) as countdown:
        for thing in things:
            yield thing
            countdown.advance(1)


@contextmanager
def counting(task: str, total: int) -> "Iterator[Countdown]":
    """Show a task's count, rate and time left on stderr: live, or as one line per 30 seconds."""
    from rich.progress import MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    # The description and the bar.
    usual = (*Progress.get_default_columns()[:2], MofNCompleteColumn())
    bar = _bar(*usual, TextColumn("{task.fields[rate]}"), TimeRemainingColumn())
    with _showing(bar):
        yield Countdown(bar, printable(task), total)


class Countdown:
    """The progress of a task, as `counting` shows it."""

    def __init__(self, bar: "Progress", task: str, total: int) -> None:
        self._bar, self._task, self._total = bar, task, total
        self._line = bar.add_task(task, total=total, rate="")
        self._count, self._resumed = 0, -1
        self._start = self._last_line = time.monotonic()

    def stage(self, name: str) -> None:
        """Show the current step of the task; print it as a line if stderr is not a terminal."""
        self._bar.update(self._line, description=printable(name))
        if self._bar.disable:
            typer.echo(printable(name), err=True)

    def advance(self, done: int) -> None:
        """Add to the count; the first call adds the work of an earlier run, without its time."""
        self._count += done
        if self._resumed < 0:
            self._resumed, self._start = self._count, time.monotonic()
        rate = (self._count - self._resumed) / max(time.monotonic() - self._start, 1e-6)
        self._bar.update(self._line, completed=self._count, rate=f"{rate:.3g}/s")
        if self._bar.disable and time.monotonic() - self._last_line > LINE_SECONDS:
            self._last_line = time.monotonic()
            left = f", {(self._total - self._count) / rate:.0f} s left" if rate else ""
            counts = f"{self._count} of {self._total}, {rate:.3g}/s{left}"
            typer.echo(f"{self._task}: {counts}", err=True)
