"""Phases of a pass of the model, told to whoever watches the thread that computes it."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

# Takes a phase's name, its begin and its end in nanoseconds since the epoch.
Watcher = Callable[[str, int, int], None]
_watching: ContextVar[Watcher | None] = ContextVar("watching", default=None)


@contextmanager
def watched(watcher: Watcher) -> Iterator[None]:
    """Tell `watcher` of the phases that end in this thread while the block runs."""
    token = _watching.set(watcher)
    try:
        yield
    finally:
        _watching.reset(token)


@contextmanager
def phase(name: str) -> Iterator[None]:
    """Name what the block computes; on a GPU its end is when the work is queued, unless it waits.

    Args:
        name: `trunk` or `readout`.
    """
    begun = time.time_ns()
    yield
    if (watcher := _watching.get()) is not None:
        watcher(name, begun, time.time_ns())
