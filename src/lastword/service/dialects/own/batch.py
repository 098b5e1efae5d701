"""A batch: what kind of body it is, its items as they are read, its answers line by line."""

import asyncio
import json
from collections import deque
from collections.abc import AsyncIterator, Sequence
from typing import Any

from lastword.errors import ItemError, TraceError
from lastword.files.strict_json import from_json
from lastword.service.call import JSON
from lastword.service.correction import Corrector
from lastword.service.orders import Promise, characters
from lastword.service.refusal import Refusal
from lastword.service.schema import parse_item, problem, require_few, to_bytes
from lastword.text.items import Item

NDJSON = "application/x-ndjson"
_NO_BATCH = f'expected {{"items": [...]}} as {JSON}, or one item a line as {NDJSON}'
_SENT = 8  # lines at a time
_WINDOW = 64  # items of one batch that are queued at a time, and their characters,
_WINDOW_CHARACTERS = 2**17  # so that the last of them has its answer within its own deadline
Entry = tuple[Item, bool] | ItemError
Started = Promise | TraceError


def read_batch(body: bytes, kind: str, limit: int, most: int) -> list[Entry]:
    """The items of a batch, bad ones as their errors.

    Args:
        body: As it came.
        kind: JSON, or lines of it.
        limit: Most items.
        most: Most entries of the lists and objects of one.

    Raises:
        Refusal: Not a batch, too many items, or none that is good.
    """
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError as error:
        raise Refusal("invalid_body", f"{_NO_BATCH}: this is not UTF-8") from error
    values = _values(text) if kind == JSON else _loads_lines(text, limit)
    if len(values) > limit:
        raise _too_many(limit)
    entries = [_entry(value, place, most) for place, value in enumerate(values, start=1)]
    if all(isinstance(entry, ItemError) for entry in entries):
        raise Refusal("item", f"none of {len(entries)} items can be answered; {entries[0]}")
    return entries


def _entry(value: Any, place: int, most: int) -> Entry:
    try:
        require_few(value, most)
    except Refusal as refusal:
        value = ItemError(str(refusal))
    return parse_item(value, place)


def _values(text: str) -> list[Any]:
    try:
        value = from_json(text)
    except (ValueError, RecursionError) as error:
        raise Refusal("invalid_body", f"{_NO_BATCH}: {_not_json(error)}") from error
    items = value.get("items") if isinstance(value, dict) else None
    if not isinstance(items, list) or not items or len(value) > 1:
        raise Refusal("invalid_body", f"{_NO_BATCH}: items is a list of at least one item, alone")
    return items


def _loads_lines(text: str, limit: int) -> list[Any]:
    lines = [line for line in text.split("\n") if line.strip()]
    if not lines:
        raise Refusal("invalid_body", f"{_NO_BATCH}: there is no line")
    if len(lines) > limit:
        raise _too_many(limit)
    return [_loads(line) for line in lines]


def _loads(line: str) -> Any:
    """A line's value; a line that is not JSON is an entry that fails alone."""
    try:
        return from_json(line)
    except (ValueError, RecursionError) as error:
        return ItemError(_not_json(error))


def _not_json(error: Exception) -> str:
    if not isinstance(error, json.JSONDecodeError):
        return "not JSON: brackets too deep or numbers too long"
    return f"not JSON: {error if error.doc else error.msg}"  # no place is known of a key


def _too_many(limit: int) -> Refusal:
    what = f"the batch has more than {limit} items (--batch-limit); send it in parts"
    return Refusal("batch_too_large", what)


async def _start(corrector: Corrector, entry: Entry, batch: int, *, patient: bool) -> Started:
    if isinstance(entry, ItemError):
        return entry
    item, full = entry
    read = "all" if full else "decide"
    try:
        if patient:
            return await corrector.start_patiently(item, read, batch)  # type: ignore[arg-type]
        return corrector.start(item, read, batch=batch)  # type: ignore[arg-type]
    except TraceError as error:
        return error


async def first_of(corrector: Corrector, entries: Sequence[Entry]) -> Started:
    """The first item, started: a full queue refuses the whole batch before its answer begins."""
    first = await _start(corrector, entries[0], id(entries), patient=False)
    if isinstance(first, Refusal) and first.code in ("queue_full", "draining"):
        raise first
    return first


async def lines_of(
    corrector: Corrector, entries: Sequence[Entry], first: Started, request: str
) -> AsyncIterator[bytes]:
    """One line an entry, in order; a window of them is queued, so that a batch leaves room."""
    window: deque[tuple[int, Started]] = deque([(0, first)])
    sizes = [0 if isinstance(entry, ItemError) else characters(entry[0]) for entry in entries]
    try:
        for place in range(1, len(entries)):
            # Lines that cost nothing wait for nothing: others have their turn all the same.
            await asyncio.sleep(0)
            while _full(window, sizes, place) or _is_decided(window):
                yield await _lines(corrector, entries, window, request)
            window.append(
                (place, await _start(corrector, entries[place], id(entries), patient=True))
            )
        while window:
            yield await _lines(corrector, entries, window, request)
    finally:  # the client may leave in the middle
        for _, promise in window:
            if isinstance(promise, Promise):
                promise.cancel()


def _full(window: Sequence[tuple[int, Started]], sizes: Sequence[int], place: int) -> bool:
    """Whether the next entry waits for a line to be told; one alone has always room."""
    queued = sum(sizes[before] for before, _ in window)
    too_long = queued + sizes[place] > _WINDOW_CHARACTERS
    return len(window) >= _WINDOW or (len(window) > 0 and too_long)


async def _lines(
    corrector: Corrector, entries: Sequence[Entry], window: deque[tuple[int, Started]], request: str
) -> bytes:
    """The next line, and those behind it that are there already: each sending has its price."""
    lines = [await _line(corrector, entries, *window.popleft(), request)]
    while len(lines) < _SENT and _is_decided(window):
        lines.append(await _line(corrector, entries, *window.popleft(), request))
    return b"".join(lines)


def _is_decided(window: Sequence[tuple[int, Started]]) -> bool:
    """Whether the first of a window has its answer; errors wait for one that has, or for room."""
    return bool(window) and isinstance(window[0][1], Promise) and window[0][1].done()


async def _line(
    corrector: Corrector, entries: Sequence[Entry], place: int, promise: Started, request: str
) -> bytes:
    entry = entries[place]
    try:
        if not isinstance(promise, Promise):
            raise promise
        assert not isinstance(entry, ItemError)
        item, full = entry
        decision = await corrector.result(promise)
        return to_bytes(corrector.write(decision, item, full=full, request=request)) + b"\n"
    except Exception as error:
        corrector.count_refusal(error)
        name = entry.item if isinstance(entry, ItemError) else entry[0].id or str(place + 1)
        return to_bytes({"id": name} | problem(error)) + b"\n"
