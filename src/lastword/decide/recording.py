"""Makes records of items that a decider answers, group by group."""

import time
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np

from lastword.decide.pace import Pace
from lastword.errors import ItemError
from lastword.records.decision import Decision
from lastword.records.record import Place, Row, failure, record
from lastword.rule.router import answers_by_reading
from lastword.text.forest import common_prefixes
from lastword.text.items import Item

if TYPE_CHECKING:
    from lastword.decide.batch import Scope
    from lastword.decide.decider import Decider
    from lastword.decide.tracer import Tracer
    from lastword.text.tokens import EncodedItem

    Batch = dict[int, EncodedItem | ItemError]


def plan_groups(decider: "Decider", batch: "Batch") -> list[list[int]]:
    """Return the groups of a batch as indices; failed items form the first group."""
    failed = [p for p, e in batch.items() if isinstance(e, ItemError)]
    encoded = {p: e for p, e in batch.items() if not isinstance(e, ItemError)}
    places = list(encoded)
    groups = decider.tracer.plan(list(encoded.values())) if encoded else []
    return [*([failed] if failed else []), *([places[i] for i in group] for group in groups)]


def record_group(
    decider: "Decider",
    items: Sequence[Item],
    where: Mapping[int, Place],
    batch: "Batch",
    scope: "Scope",
) -> dict[int, Row]:
    """Return the records of one batch, by index.

    Args:
        decider: The model.
        items: All items of the run.
        where: The index in the run of each item of the batch.
        batch: The encoded items, or their errors.
        scope: How much is read.
    """
    encoded = {p: e for p, e in batch.items() if not isinstance(e, ItemError)}
    # An item's seconds are its share of the batch's time, by tokens: it never runs alone.
    start = time.perf_counter()
    decisions = decider.decide_group(list(encoded.values()), scope) if encoded else []
    share = (time.perf_counter() - start) / max(sum(e.tokens for e in encoded.values()), 1)
    answers = batch | dict(zip(encoded, decisions, strict=True))
    return {
        p: record(
            where[p],
            encoded[p],
            answer,
            share * encoded[p].tokens,
            disagree(decider.tracer, answer),
        )
        if isinstance(answer, Decision)
        else failure(where[p], items[p], str(answer))
        for p, answer in answers.items()
    }


def disagree(tracer: "Tracer", decision: Decision) -> bool | None:
    """Return True if the paper's readings choose different answers; None if they were not read."""
    if not decision.t_readings:
        return None
    invariants = (tracer.invariant, *tracer.invariant_readings.values())
    answers = answers_by_reading(decision.trajectory, decision.t_readings, invariants, tracer.theta)
    return len(set(answers.values())) > 1


def paced(batch: "Batch", compute: "Callable[[Batch], Sequence[Row]]", pace: Pace) -> Sequence[Row]:
    """Return the records of the first items of a batch, as many as the pace allows.

    If the pace is unknown, a few items are computed to measure it. If the whole batch turns out
    to fit, it is computed again in one pass: small batches are then grouped, and hence rounded,
    the same way on every machine.
    """
    tokens = _fresh_tokens(list(batch.values()))

    def first(count: int) -> Sequence[Row]:
        with pace.learning(sum(tokens[:count])):
            return compute(dict(islice(batch.items(), count)))

    trial, count = not pace.measured, pace.items(tokens)
    rows = first(count)
    return first(len(batch)) if trial and count < len(batch) == pace.items(tokens) else rows


def _fresh_tokens(batch: "Sequence[EncodedItem | ItemError]") -> list[int]:
    """Return the number of tokens that each item adds to a batch, without shared prefixes."""
    encoded = [e for e in batch if not isinstance(e, ItemError)]
    shared = common_prefixes([np.asarray(e.prompt.branches[0].tokens) for e in encoded])
    fresh = (
        e.tokens - min(s, e.prompt.prompt_tokens) for e, s in zip(encoded, shared, strict=True)
    )
    return [0 if isinstance(e, ItemError) else int(next(fresh)) for e in batch]
