"""Makes records of items that a decider answers, group by group."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from lastword.errors import ItemError
from lastword.records.columns import Row, failure, row_of
from lastword.records.decision import Decision
from lastword.text.items import Item
from lastword.text.tokens import EncodedItem

if TYPE_CHECKING:
    from lastword.decide.batch import Scope
    from lastword.decide.decider import Decider

WINDOW = 2048  # number of items that are encoded and planned together


def records_of(
    decider: "Decider",
    items: Sequence[Item],
    places: Sequence[int],
    scope: "Scope",
    benchmark: str,
    kinds: Sequence[str | None] | None = None,
) -> Iterator[list[Row]]:
    """Yield the records of items, group by group."""

    def where(place: int) -> dict[str, Any]:
        kind = None if kinds is None else kinds[place]
        return {"benchmark": benchmark, "kind": kind, "place": place}

    for start in range(0, len(places), WINDOW):
        window = places[start : start + WINDOW]
        failures, sound = list[Row](), list[tuple[EncodedItem, dict[str, Any]]]()
        for place, one in zip(window, decider.encode([items[p] for p in window]), strict=True):
            if isinstance(one, ItemError):
                failures.append(failure(items[place], str(one), **where(place)))
            else:
                sound.append((one, where(place)))
        yield failures
        for group in decider.tracer.plan([one for one, _ in sound]) if sound else []:
            yield _rows(decider, [sound[i] for i in group], scope)


def _rows(
    decider: "Decider", group: Sequence[tuple[EncodedItem, dict[str, Any]]], scope: "Scope"
) -> list[Row]:
    """Return the records of one group.

    An item's seconds are its share of the group's time, by tokens: it never runs alone.
    """
    start = time.perf_counter()
    decisions = decider.decide_group([one for one, _ in group], scope)
    seconds = (time.perf_counter() - start) / sum(one.tokens for one, _ in group)
    return [
        row_of(replace(answer, **context(one), **where, seconds=seconds * one.tokens))
        if isinstance(answer, Decision)
        else failure(one.item, str(answer), **where)
        for (one, where), answer in zip(group, decisions, strict=True)
    ]


def context(encoded: EncodedItem) -> dict[str, Any]:
    """Return the fields of a stored decision that the item has."""
    item, prompt, blind = encoded.item, encoded.prompt, encoded.blind
    return {
        "id": item.id,  # a cached decision has that of another item, or none
        "prompt": item.prompt,
        "question": item.question,
        "shared": item.group,
        "truthful": item.truthful,
        "prompt_tokens": prompt.prompt_tokens,
        "candidate_tokens": prompt.candidate_tokens,
        "blind_tokens": None if blind is None else blind.candidate_tokens,
        "boundary_moved": prompt.boundary_moved,
    }
