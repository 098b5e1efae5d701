"""Shows progress on stderr for work that takes longer than a second."""

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from threading import Timer
from typing import TYPE_CHECKING, TypeVar

import typer

from lastword.cli.output import printable

if TYPE_CHECKING:
    from rich.progress import Progress, ProgressColumn

PATIENCE_SECONDS = 1.0
LINE_SECONDS = 30.0  # interval between lines of progress if stderr is not a terminal

T = TypeVar("T")


@contextmanager
def _bar(*columns: "ProgressColumn", transient: bool = False) -> "Iterator[Progress]":
    """Show a bar on stderr after one second; it is hidden if that is not a terminal."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    bar = Progress(
        *columns,
        console=console,
        disable=not console.is_terminal,
        transient=transient,
        get_time=lambda: time.monotonic(),
    )
    timer = Timer(PATIENCE_SECONDS, bar.start)  # a timer, because the first step may take long
    timer.start()
    try:
        yield bar
    finally:
        timer.cancel()
        timer.join()
        bar.stop()


@contextmanager
def waiting(task: str) -> Iterator[None]:
    """Show a task and its time if it takes longer than a second."""
    from rich.progress import SpinnerColumn, TextColumn, TimeElapsedColumn

    words = TextColumn("{task.description}", markup=False)
    with _bar(SpinnerColumn(), words, TimeElapsedColumn(), transient=True) as bar:
        bar.add_task(printable(task), total=None)
        yield


def tracked(things: Iterable[T], task: str, total: int) -> Iterator[T]:
    """Yield the things, and show their count on stderr."""
    with counting(task, total) as countdown:
        for thing in things:
            yield thing
            countdown.advance(1)


@contextmanager
def counting(task: str, total: int) -> "Iterator[Countdown]":
    """Show a task's count and time left on stderr: live, or as one line per 30 seconds."""
    from rich.progress import MofNCompleteColumn, Progress, TimeRemainingColumn

    # The description and the bar.
    usual = (*Progress.get_default_columns()[:2], MofNCompleteColumn(), TimeRemainingColumn())
    with _bar(*usual) as bar:
        yield Countdown(bar, printable(task), total)


class Countdown:
    """The progress of a task, as `counting` shows it."""

    def __init__(self, bar: "Progress", task: str, total: int) -> None:
        self._bar, self._name = bar, task
        self._line = bar.add_task(task, total=total)
        self._last_line = time.monotonic()

    def stage(self, name: str) -> None:
        """Show the current step of the task; print it as a line if stderr is not a terminal."""
        self._bar.update(self._line, description=printable(name))
        if self._bar.disable:
            typer.echo(printable(name), err=True)

    def advance(self, done: int) -> None:
        """Add to the count; the first call adds the work of an earlier run, without its time."""
        self._bar.advance(self._line, done)
        if self._bar.disable and time.monotonic() - self._last_line > LINE_SECONDS:
            self._last_line = time.monotonic()
            (task,) = self._bar.tasks
            left = "" if task.time_remaining is None else f", {task.time_remaining:.0f} s left"
            typer.echo(f"{self._name}: {task.completed:.0f} of {task.total:.0f}{left}", err=True)
