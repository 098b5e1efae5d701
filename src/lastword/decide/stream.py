"""Items as a stream: encoded, decided group by group, and answered in their order."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, Literal, TypeVar

from lastword.errors import ItemError, TraceError
from lastword.methods.contract import Method
from lastword.text.items import Item, as_item, rows_of
from lastword.text.tokens import EncodedItem

OnError = Literal["raise", "return"]
T = TypeVar("T")


def grouped(
    encoded: Sequence[EncodedItem],
    plan: Callable[[Sequence[EncodedItem]], list[list[int]]],
    decide: Callable[[Sequence[EncodedItem]], list[T]],
) -> Iterator[T]:
    """Decide items group by group, and yield the decisions in the order of the items."""
    # Groups follow shared prefixes, so decisions wait in `done` until it is their turn.
    done: dict[int, T] = {}
    groups = iter(plan(encoded))
    for place in range(len(encoded)):
        while place not in done:
            group = next(groups)
            decisions = decide([encoded[i] for i in group])
            done.update(zip(group, decisions, strict=True))
        yield done.pop(place)


def answered(
    items: Iterable[Any],
    encode: Callable[[Sequence[Item], int], list[EncodedItem | ItemError]],
    answer: Callable[[Sequence[EncodedItem]], Iterator[Any]],
    ahead: int,
    on_error: OnError,
) -> Iterator[Any]:
    """Encode items and answer them, in order; see `Tracer.correct_many`."""
    first = 0
    pieces = [items] if isinstance(items, Sequence) else _pieces(rows_of(items), ahead)
    for piece in pieces:
        items_or_errors = [_as_item(value, first + i, on_error) for i, value in enumerate(piece)]
        results = encode_valid(items_or_errors, encode, first)
        if on_error == "raise":
            for result in results:
                if isinstance(result, ItemError):
                    raise result
        # Errors stay in their places; only valid items reach the model.
        decisions = answer([one for one in results if isinstance(one, EncodedItem)])
        for result in results:
            outcome = next(decisions) if isinstance(result, EncodedItem) else result
            if on_error == "raise" and isinstance(outcome, TraceError):
                raise outcome
            yield outcome
        first += len(piece)


def encode_valid(
    items: Sequence[Item | ItemError],
    encode: Callable[[Sequence[Item], int], list[EncodedItem | ItemError]],
    first: int = 0,
) -> list[EncodedItem | ItemError]:
    """Return each item as token ids; an error stays in its place."""
    encoded = iter(encode([item for item in items if isinstance(item, Item)], first))
    return [next(encoded) if isinstance(item, Item) else item for item in items]


def _as_item(value: Any, place: int, on_error: OnError) -> Item | ItemError:
    try:
        return as_item(value, place)
    except ItemError as error:
        if on_error == "raise":
            raise
        return error


def _pieces(items: Iterable[Any], size: int) -> Iterator[list[Any]]:
    rest = iter(items)
    while piece := list(islice(rest, size)):
        yield piece


def applicable(
    correction: Method, encoded: EncodedItem | ItemError, place: int
) -> EncodedItem | ItemError:
    """Return an encoded item, or the error that it lacks a prompt that the correction needs."""
    if isinstance(encoded, ItemError):
        return encoded
    lack = correction.lacks(encoded.blind is not None, bool(encoded.content_free))
    if lack is None:
        return encoded
    name = encoded.item.id or str(place)
    return ItemError(f"{correction.name} needs {lack}, and there is none", name)
