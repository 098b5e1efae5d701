"""Items as a stream: encoded, decided group by group, and answered in their order."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, Literal

from lastword.errors import ItemError, TraceError
from lastword.text.items import Item, as_item, rows_of
from lastword.text.tokens import EncodedItem

OnError = Literal["raise", "return"]
Encode = Callable[[Sequence[Item], int], list[EncodedItem | ItemError]]


def answered(
    items: Iterable[Any],
    encode: Encode,
    decide: Callable[[Sequence[EncodedItem]], Iterator[Any]],
    ahead: int = 1024,
    on_error: OnError = "raise",
) -> Iterator[Any]:
    """Yield the decision on each item, or its error; see `Tracer.correct_many`."""
    first, raises = 0, on_error == "raise"
    rest = iter([]) if isinstance(items, Sequence) else rows_of(items)
    pieces = [items] if isinstance(items, Sequence) else iter(lambda: [*islice(rest, ahead)], [])
    for piece in pieces:
        read = [_as_item(value, first + i) for i, value in enumerate(piece)]
        results = encode_valid(read, encode, first)
        for result in results if raises else ():
            if isinstance(result, ItemError):
                raise result
        # Errors stay in their places; only valid items reach the model.
        decisions = decide([one for one in results if isinstance(one, EncodedItem)])
        for result in results:
            outcome = next(decisions) if isinstance(result, EncodedItem) else result
            if raises and isinstance(outcome, TraceError):
                raise outcome
            yield outcome
        first += len(piece)


def encode_valid(
    items: Sequence[Item | ItemError], encode: Encode, first: int = 0
) -> list[EncodedItem | ItemError]:
    """Return each item as token ids; an error stays in its place."""
    encoded = iter(encode([item for item in items if isinstance(item, Item)], first))
    return [next(encoded) if isinstance(item, Item) else item for item in items]


def _as_item(value: Any, place: int) -> Item | ItemError:
    try:
        return as_item(value, place)
    except ItemError as error:
        return error
