"""Streams of items, and several threads: order, lookahead, and independence."""

import itertools
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import pytest
from families import build, random_items, tokenizer

from lastword import Decision, Item, Tracer
from lastword.errors import ItemError


@cache
def tracer() -> Tracer:
    return Tracer(build("llama"), tokenizer(), invariant=2.0)


def summary(decision: Decision) -> tuple[int, str, list[float]]:
    return decision.index, decision.operator, [round(float(s), 4) for s in decision.scores]


def test_a_generator_is_read_only_as_far_as_needed():
    items, taken = random_items(71, 12), list[Item]()

    def endless() -> Iterator[Item]:
        for item in itertools.cycle(items):
            taken.append(item)
            yield item

    whole = list(tracer().correct_many(items))
    decisions: Any = tracer().correct_many(endless(), ahead=4)
    assert not taken
    for place in range(10):
        assert summary(next(decisions)) == summary(whole[place])
        assert len(taken) == 4 * (place // 4 + 1)
    decisions.close()
    assert len(taken) == 12


def test_a_sequence_is_checked_at_once_but_a_generator_in_pieces():
    bad = Item("w5", ("w6", "w6"))
    with pytest.raises(ItemError, match="item 5: candidates 0 and 1"):
        next(tracer().correct_many([*random_items(72, 5), bad], ahead=2))
    decisions = tracer().correct_many(iter([*random_items(73, 4), bad]), ahead=2)
    assert len([next(decisions) for _ in range(4)]) == 4
    with pytest.raises(ItemError, match="item 4: candidates 0 and 1"):  # counted from the start
        next(decisions)
    assert list(tracer().correct_many(iter(()))) == list(tracer().correct_many([])) == []


def test_threads_that_correct_and_stream_get_the_same_results_as_alone():
    items, demo = random_items(74, 9), Tracer.demo()
    prompt = "Question: Which goods come from Baevwick? Answer:"
    candidates = ["green wool combs", "pale cedar boats", "clay lamps"]
    start = threading.Barrier(6)

    def stream() -> object:
        return [summary(d) for d in tracer().correct_many(iter(items), ahead=2)]

    def correct() -> object:
        return [summary(demo.correct(prompt, candidates)) for _ in range(4)]

    alone = [stream(), correct()]

    def together(work) -> object:
        start.wait()
        return work()

    with ThreadPoolExecutor(6) as pool:
        results = list(pool.map(together, (stream, correct) * 3))
    assert results == alone * 3
