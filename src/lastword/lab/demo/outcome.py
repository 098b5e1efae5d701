"""Answers labelled items with one model; has the rules that choose the demo's examples."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from lastword.records.decision import Decision
from lastword.records.metrics import mc1
from lastword.records.record import Record
from lastword.text.items import Item

if TYPE_CHECKING:
    from lastword.decide.batch import Read
    from lastword.decide.tracer import Tracer

Watch = Callable[[Iterable[Decision], str, int], Iterable[Decision]]

FIRST_DEEP = 3  # decisions by depths 1 and 2 are chance: docs/demo.md, "Why it loses here"

CORRECTED = "first correction from depth 3 on"
BROKEN = "first break from depth 3 on"

RULES: dict[str, Callable[[Record], bool]] = {
    CORRECTED: lambda record: gain(record) > 0 and _deep(record),
    BROKEN: lambda record: gain(record) < 0 and _deep(record),
}


def _deep(record: Record) -> bool:
    """Return True if no depth below `FIRST_DEEP` decided; those have read too little."""
    answer = record.decision
    layer = 0 if answer.operator == "early" else answer.decisive_layer
    return layer is None or layer >= FIRST_DEEP


def gain(record: Record) -> float:
    """Return the change of a labelled item's MC1 through correction."""
    assert record.gain is not None
    return record.gain


def answer(
    tracer: "Tracer", items: Sequence[Item], watch: Watch, read: "Read" = "all"
) -> list[Record]:
    """Return the records of labelled items, answered by one model, in their order."""
    decisions = tracer.correct_many(items, read, blind="none")
    watched = watch(decisions, str(tracer.source["model"]), len(items))
    return [judge(item, decision) for item, decision in zip(items, watched, strict=True)]


def judge(item: Item, decision: Decision) -> Record:
    """Return the record of a labelled item, with the MC1 of its decision."""
    truth = item.truthful
    assert truth is not None
    return Record(
        id=item.id,
        prompt=item.prompt,
        question=item.question,
        candidates=item.candidates,
        truthful=truth,
        shared=item.group,
        answer=replace(decision, truthful=truth),
        mc1_base=mc1(decision.base_scores, truth),
        mc1=mc1(decision.scores, truth),
    )
