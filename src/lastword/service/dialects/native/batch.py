"""A batch: its items from JSON or lines of JSON, and its answers line by line."""

import json
from collections.abc import AsyncIterator, Sequence
from typing import Any

from lastword.decide.batch import Scope
from lastword.errors import ItemError, TraceError
from lastword.files.strict_json import from_json
from lastword.service.call import JSON, Call
from lastword.service.corrector import characters, leave
from lastword.service.passes import ModelOrder
from lastword.service.refusal import Refusal
from lastword.service.schema import parse_item, problem, to_bytes
from lastword.text.items import Item

NDJSON = "application/x-ndjson"
_NO_BATCH = f'expected {{"items": [...]}} as {JSON}, or one item a line as {NDJSON}'
_WINDOW = 64  # items of one batch that are queued at a time, and their characters,
_WINDOW_CHARACTERS = 2**17  # so that the last of them has its answer within its own deadline
Entry = tuple[Item, Scope] | ItemError
Started = list[ModelOrder | TraceError]


def read_batch(body: bytes, kind: str, limit: int) -> list[Entry]:
    """Return the items of a batch, with an error in place of a bad one.

    Raises:
        Refusal: Not a batch, too many items, or none that is good.
    """
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError as error:
        raise Refusal("invalid_body", f"{_NO_BATCH}: this is not UTF-8") from error
    values = _values(text) if kind == JSON else _lines(text, limit)
    if len(values) > limit:
        raise _too_many(limit)
    entries = [parse_item(value, place) for place, value in enumerate(values, start=1)]
    if all(isinstance(entry, ItemError) for entry in entries):
        raise Refusal("item", f"none of {len(entries)} items can be answered; {entries[0]}")
    return entries


def _values(text: str) -> list[Any]:
    try:
        value = from_json(text)
    except (ValueError, RecursionError) as error:
        raise Refusal("invalid_body", f"{_NO_BATCH}: {_not_json(error)}") from error
    items = value.get("items") if isinstance(value, dict) else None
    if not isinstance(items, list) or not items or len(value) > 1:
        raise Refusal("invalid_body", f"{_NO_BATCH}: items is a list of at least one item, alone")
    return items


def _lines(text: str, limit: int) -> list[Any]:
    if not (lines := [line for line in text.split("\n") if line.strip()]):
        raise Refusal("invalid_body", f"{_NO_BATCH}: there is no line")
    if len(lines) > limit:  # before any is read
        raise _too_many(limit)
    return [_loads(line) for line in lines]


def _loads(line: str) -> Any:
    try:
        return from_json(line)
    except (ValueError, RecursionError) as error:
        return ItemError(_not_json(error))


def _not_json(error: Exception) -> str:
    if not isinstance(error, json.JSONDecodeError):
        return "not JSON: brackets too deep or numbers too long"
    return f"not JSON: {error if error.doc else error.msg}"  # no place is known of a key


def _too_many(limit: int) -> Refusal:
    what = f"the batch has more than {limit} items (--limits batch_limit); send it in parts"
    return Refusal("batch_too_large", what)


async def lines_of(call: Call, entries: Sequence[Entry], first: Started) -> AsyncIterator[bytes]:
    """Yield one line per entry, in order; a window of entries is queued at a time."""
    started, place = first, 0
    try:
        while started:
            for order in started:
                yield await _line(call, entries[place], place, order)
                place += 1
            started = await window_of(call, entries, place)
    finally:  # the client may leave in the middle
        leave(started)


async def window_of(call: Call, entries: Sequence[Entry], place: int) -> Started:
    """Queue the next items of a batch, as many as can be answered within the deadline.

    Raises:
        Refusal: The service is stopping, and this is the first window.
    """
    window: list[Entry] = []
    size = 0
    for entry in entries[place : place + _WINDOW]:
        size += 0 if isinstance(entry, ItemError) else characters(entry[0])
        if window and size > _WINDOW_CHARACTERS:
            break
        window.append(entry)
    try:
        return await call.corrector.start(window, call.client, batch=True)
    except Refusal as refusal:
        if not place:
            raise
        return [e if isinstance(e, ItemError) else refusal for e in window]


async def _line(call: Call, entry: Entry, place: int, order: ModelOrder | TraceError) -> bytes:
    corrector = call.corrector
    try:
        decision = await corrector.result(order)
        assert not isinstance(entry, ItemError)
        item, scope = entry
        full = scope.read == "all"
        return to_bytes(corrector.write(decision, item, full=full, request=call.id)) + b"\n"
    except Exception as error:
        corrector.count_refusal(error)
        name = entry.item if isinstance(entry, ItemError) else entry[0].id or str(place + 1)
        return to_bytes({"id": name} | problem(error)) + b"\n"
