"""Makes records of items that a decider answers, group by group."""

import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from lastword.errors import ItemError
from lastword.records.decision import Decision
from lastword.records.record import Place, Row, failure, record
from lastword.rule.router import answers_by_reading
from lastword.text.items import Item

if TYPE_CHECKING:
    from lastword.decide.batch import Scope
    from lastword.decide.decider import Decider
    from lastword.decide.tracer import Tracer
    from lastword.text.tokens import EncodedItem

WINDOW = 2048  # number of items that are encoded and planned together


def records_of(
    decider: "Decider",
    items: Sequence[Item],
    where: Sequence[Place],
    places: Sequence[int],
    scope: "Scope",
) -> Iterator[list[Row]]:
    """Yield the records of items, group by group.

    Args:
        decider: The model.
        items: All items of the run.
        where: The position of each item in the run.
        places: The indices of the items to answer.
        scope: How much is read.
    """
    for start in range(0, len(places), WINDOW):
        window = places[start : start + WINDOW]
        outcomes = decider.encode([items[p] for p in window])
        failed, encoded = [], {}
        for p, outcome in zip(window, outcomes, strict=True):
            if isinstance(outcome, ItemError):
                failed.append(failure(where[p], items[p], str(outcome)))
            else:
                encoded[p] = outcome
        yield failed
        members = list(encoded)
        for group in decider.tracer.plan(list(encoded.values())) if encoded else []:
            batch = {members[i]: encoded[members[i]] for i in group}
            yield _record_group(decider, where, batch, scope)


def _record_group(
    decider: "Decider", where: Sequence[Place], batch: "dict[int, EncodedItem]", scope: "Scope"
) -> list[Row]:
    """Return the records of the encoded items of one group, by index."""
    # An item's seconds are its share of the group's time, by tokens: it never runs alone.
    start = time.perf_counter()
    decisions = decider.decide_group(list(batch.values()), scope)
    share = (time.perf_counter() - start) / sum(e.tokens for e in batch.values())
    rows = []
    for (p, one), answer in zip(batch.items(), decisions, strict=True):
        if isinstance(answer, Decision):
            disagreement = disagree(decider.tracer, answer)
            rows.append(record(where[p], one, answer, share * one.tokens, disagreement))
        else:
            rows.append(failure(where[p], one.item, str(answer)))
    return rows


def disagree(tracer: "Tracer", decision: Decision) -> bool | None:
    """Return True if the paper's readings choose different answers; None if they were not read."""
    if not decision.t_readings:
        return None
    invariants = (tracer.invariant, *tracer.invariant_readings.values())
    answers = answers_by_reading(decision.trajectory, decision.t_readings, invariants, tracer.theta)
    return len(set(answers.values())) > 1
