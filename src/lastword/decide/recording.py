"""Records of items that a decider answers, group by group."""

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from lastword.errors import ItemError
from lastword.records.decision import Decision
from lastword.records.record import Place, Row, failure, record
from lastword.text.items import Item

if TYPE_CHECKING:
    from lastword.decide.batch import Scope
    from lastword.decide.decider import Decider
    from lastword.text.tokens import EncodedItem

    Batch = dict[int, EncodedItem | ItemError]


def plan_groups(decider: "Decider", batch: "Batch") -> list[list[int]]:
    """Return the groups of a batch as places; items without tokens are a group, the first."""
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
    """Return the records of items that are one batch, by place.

    Args:
        decider: The model.
        items: All items of the run.
        where: The place of each item of the batch in its run.
        batch: The items as tokens, or as the error that names one.
        scope: The extent of what is read.
    """
    good = {p: e for p, e in batch.items() if not isinstance(e, ItemError)}
    start = time.perf_counter()
    decisions = decider.decide_group(list(good.values()), scope) if good else []
    share = (time.perf_counter() - start) / max(sum(e.tokens for e in good.values()), 1)
    answers = batch | dict(zip(good, decisions, strict=True))
    return {
        p: record(where[p], good[p], answer, share * good[p].tokens)
        if isinstance(answer, Decision)
        else failure(where[p], items[p], str(answer))
        for p, answer in answers.items()
    }
