"""Progress on stderr for what takes longer than a second, where stderr is a terminal."""

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from threading import Timer
from typing import TypeVar

PATIENCE_SECONDS = 1.0

T = TypeVar("T")


@contextmanager
def waiting(task: str) -> Iterator[None]:
    """Say what is going on if it takes longer than a second."""
    from rich.console import Console

    console = Console(stderr=True)
    if not console.is_terminal:
        yield
        return
    status = console.status(task)
    timer = Timer(PATIENCE_SECONDS, status.start)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()
        status.stop()


def tracked(things: Iterable[T], task: str, total: int) -> Iterator[T]:
    """The same things, counted on stderr once they have taken longer than a second."""
    from rich.console import Console
    from rich.progress import MofNCompleteColumn, Progress, TimeRemainingColumn

    console = Console(stderr=True)
    if not console.is_terminal:
        yield from things
        return
    bar = Progress(
        *Progress.get_default_columns()[:2],
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
    )
    line = bar.add_task(task, total=total)
    due = time.monotonic() + PATIENCE_SECONDS
    try:
        for thing in things:
            yield thing
            bar.advance(line)
            if time.monotonic() > due:
                bar.start()
    finally:
        bar.stop()
