"""Outcomes of the method on a model's items: decisions, held against the truth."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from lastword.records.cells import mean
from lastword.records.decision import Decision
from lastword.records.metrics import mc1
from lastword.records.record import Record
from lastword.rule.geometry import margin
from lastword.text.items import Item

if TYPE_CHECKING:
    from lastword.decide.batch import Read
    from lastword.decide.tracer import Tracer

Watch = Callable[[Iterable[Decision], str, int], Iterable[Decision]]


@dataclass(frozen=True)
class ItemOutcome:
    """One item of a benchmark, answered and judged; shares lie in [0, 1]."""

    item: Item
    decision: Decision
    mc1_base: float
    mc1: float

    @property
    def record(self) -> Record:
        """The fields of the item and its decision that are shown."""
        item, answer = self.item, replace(self.decision, truthful=self.item.truthful)
        return Record(
            prompt=item.prompt, candidates=item.candidates, truthful=item.truthful, answer=answer
        )

    @property
    def stays(self) -> bool:
        """True if correction leaves the model's answer unchanged."""
        return self.decision.index == self.decision.base_index

    @property
    def gain(self) -> float:
        """The change of MC1 by correction."""
        return self.mc1 - self.mc1_base

    @property
    def margin(self) -> float:
        """Distance of the two best scores in nats."""
        return margin(self.decision.scores)

    @property
    def chance(self) -> float:
        """Share of truthful candidates: how often a draw among them is right."""
        return mean([*map(float, _truth(self.item))])

    @property
    def deep(self) -> bool:
        """True if what decided has read enough of the question: no depth below `FIRST_DEEP`."""
        layer = 0 if self.decision.operator == "early" else self.decision.decisive_layer
        return layer is None or layer >= FIRST_DEEP


FIRST_DEEP = 3  # what depths 1 and 2 decide is chance: docs/demo.md, "Why it loses here"

CORRECTED = "first correction from depth 3 on"
BROKEN = "first break from depth 3 on"

RULES: dict[str, Callable[[ItemOutcome], bool]] = {
    CORRECTED: lambda o: o.gain > 0 and o.deep,
    BROKEN: lambda o: o.gain < 0 and o.deep,
}


def answer(
    tracer: "Tracer", items: Sequence[Item], watch: Watch, read: "Read" = "all"
) -> list[ItemOutcome]:
    """Labelled items answered by one model, in their order."""
    decisions = tracer.correct_many(items, read, blind="none")
    watched = watch(decisions, str(tracer.source["model"]), len(items))
    return [judge(item, decision) for item, decision in zip(items, watched, strict=True)]


def judge(item: Item, decision: Decision) -> ItemOutcome:
    """Return the outcome of comparing a decision with the truth of its item."""
    before, after = (mc1(u, _truth(item)) for u in (decision.base_scores, decision.scores))
    return ItemOutcome(item, decision, before, after)


def _truth(item: Item) -> tuple[bool, ...]:
    assert item.truthful is not None
    return item.truthful
