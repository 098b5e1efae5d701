"""Batches: items from JSON or JSON lines, and answers as JSON lines."""

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
# A part of a batch is queued at a time, so that its last item is answered before its deadline.
_WINDOW = 64  # items
_WINDOW_CHARACTERS = 2**17
Entry = tuple[Item, Scope] | ItemError
Started = list[ModelOrder | TraceError]


def read_batch(body: bytes, kind: str, limit: int) -> list[Entry]:
    """Return the items of a batch, and errors in the places of invalid ones.

    Raises:
        Refusal: The body is not a batch, has too many items, or only invalid ones.
    """
    if kind == JSON:
        values = _items(body)
    else:
        values = [line for line in body.split(b"\n") if line.strip()]
        if not values:
            raise Refusal("invalid_body", f"{_NO_BATCH}: there is no line")
    if len(values) > limit:
        what = f"the batch has more than {limit} items (--limits batch_limit); send it in parts"
        raise Refusal("batch_too_large", what)
    if kind != JSON:
        values = [_loads(line) for line in values]
    entries = [parse_item(value, place) for place, value in enumerate(values, start=1)]
    if all(isinstance(entry, ItemError) for entry in entries):
        raise Refusal("item", f"none of {len(entries)} items can be answered; {entries[0]}")
    return entries


def _items(body: bytes) -> list[Any]:
    try:
        value = from_json(body.decode())
    except (ValueError, RecursionError) as error:
        raise Refusal("invalid_body", f"{_NO_BATCH}: {_not_json(error)}") from error
    items = value.get("items") if isinstance(value, dict) else None
    if not isinstance(items, list) or not items or len(value) > 1:
        raise Refusal("invalid_body", f"{_NO_BATCH}: items is a list of at least one item, alone")
    return items


def _loads(line: bytes) -> Any:
    try:
        return from_json(line.decode())
    except (ValueError, RecursionError) as error:
        return ItemError(_not_json(error))


def _not_json(error: Exception) -> str:
    if isinstance(error, UnicodeDecodeError):
        return "this is not UTF-8"
    if not isinstance(error, json.JSONDecodeError):
        return "not JSON: brackets too deep or numbers too long"
    return f"not JSON: {error if error.doc else error.msg}"  # a repeated key has no position


async def lines_of(call: Call, entries: Sequence[Entry], first: Started) -> AsyncIterator[bytes]:
    """Yield one line per entry, in order, and queue one window after the other."""
    started, place = first, 0
    try:
        while started:
            for order in started:
                yield await _line(call, entries[place], place, order)
                place += 1
            started = await window_of(call, entries, place)
    finally:  # the client may leave before the end
        leave(started)


async def window_of(call: Call, entries: Sequence[Entry], place: int) -> Started:
    """Queue the next items of a batch, as many as can be answered before the deadline.

    Raises:
        Refusal: The service is stopping, and nothing of the batch is answered yet.
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
        # The guard counts only refusals of whole requests.
        call.service.metrics.refusals.labels(Refusal.of(error).code).inc()
        name = entry.item if isinstance(entry, ItemError) else entry[0].id or str(place + 1)
        return to_bytes({"id": name} | problem(error)) + b"\n"
