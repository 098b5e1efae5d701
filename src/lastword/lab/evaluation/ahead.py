"""Ahead: encodes a window of items while the previous one is computed.

Tokenizers and the model both release the interpreter lock, so they run in parallel.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lastword.errors import ItemError
    from lastword.text.tokens import EncodedItem

    Batch = dict[int, EncodedItem | ItemError]

WINDOW = 2048  # number of items that are planned together


def window_from(start: int, items: int) -> range:
    """Return the indices of the window that begins at `start`."""
    return range(start, min(start + WINDOW, items))


class Ahead:
    """Encodes windows, one ahead of the current one; use as a context manager.

    Args:
        encode: Function that encodes items by index. Calls never overlap.
        items: Number of items.
    """

    def __init__(self, encode: "Callable[[Sequence[int]], Batch]", items: int) -> None:
        self._encode, self._items = encode, items
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="tokens")
        self._held: Batch = {}
        self._next: tuple[int, Future[Batch]] | None = None

    def __enter__(self) -> "Ahead":
        """Return itself; nothing is encoded yet."""
        return self

    def __exit__(self, *error: object) -> None:
        """Wait for the window that is being encoded, and drop it."""
        self._thread.shutdown(cancel_futures=True)

    def window(self, start: int) -> "Batch":
        """Return the encoded window that begins at `start`, and start encoding the next."""
        begun, waiting = self._next or (-1, None)
        if waiting is None or begun != start:
            waiting = self._begin(start)
        self._held = waiting.result()
        after = start + len(self._held)
        self._next = (after, self._begin(after)) if after < self._items else None
        return self._held

    def take(self, places: Sequence[int]) -> "Batch":
        """Return encoded items by index, from the current window if they are in it."""
        if all(place in self._held for place in places):
            return {place: self._held[place] for place in places}
        return self._thread.submit(self._encode, places).result()

    def _begin(self, start: int) -> "Future[Batch]":
        return self._thread.submit(self._encode, window_from(start, self._items))
