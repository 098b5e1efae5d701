"""What the method does to an embedded model's benchmark: decisions, judged and averaged."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tracelm.benchmarks.world import Form, Label, benchmark
from tracelm.evaluation.metrics import fixed_and_broken, mc1, mc2
from tracelm.rule.decision import Decision
from tracelm.text.items import Item

if TYPE_CHECKING:
    from tracelm.tracer import Tracer

Watch = Callable[[Iterable[Decision], str, int], Iterable[Decision]]


@dataclass(frozen=True)
class Outcome:
    """One item of the benchmark, answered and judged; shares lie in [0, 1]."""

    item: Item
    label: Label
    decision: Decision
    mc1_base: float
    mc1: float
    mc2_base: float
    mc2: float

    @property
    def record(self) -> dict[str, Any]:
        """What is shown of the item and its decision."""
        return self.decision.to_record(self.item.truthful) | {"prompt": self.item.prompt}

    @property
    def held(self) -> bool:
        """Whether the rule preferred another answer and a gate held it back."""
        changes = self.decision.gates.get("changes")
        return bool(changes and changes.holds) and self.decision.operator == "base"


@dataclass(frozen=True)
class Score:
    """Means over items; nan over none. `fixed` and `broken` count items whose MC1 rose or fell."""

    items: int
    mc1_base: float
    mc1: float
    mc2_base: float
    mc2: float
    fixed: int
    broken: int


@dataclass(frozen=True)
class Early:
    """Items where `early` decided, MC1 of its scores and of scores that read no question.

    Attributes:
        items: How many items it decided.
        base: MC1 of the model's own scores on them.
        early: MC1 of S[:, 0].
        blind: MC1 of the model's own scores with the question left out.
        shortest: MC1 of taking the candidate with the fewest characters.
    """

    items: int
    base: float
    early: float
    blind: float
    shortest: float


def outcomes(tracer: "Tracer", watch: Watch) -> list[Outcome]:
    """The whole benchmark answered by one model, in its order.

    Args:
        tracer: The model.
        watch: Passes decisions on and shows how many of them there are (task, total).
    """
    labelled = benchmark()
    decisions = tracer.correct_many([item for item, _ in labelled], read="all")
    watched = watch(decisions, str(tracer.source["model"]), len(labelled))
    return [
        _judge(item, label, decision)
        for (item, label), decision in zip(labelled, watched, strict=True)
    ]


def score(outcomes: Sequence[Outcome]) -> Score:
    """Means of some outcomes."""
    fixed, broken = fixed_and_broken([o.mc1 - o.mc1_base for o in outcomes])
    return Score(
        items=len(outcomes),
        mc1_base=_mean(o.mc1_base for o in outcomes),
        mc1=_mean(o.mc1 for o in outcomes),
        mc2_base=_mean(o.mc2_base for o in outcomes),
        mc2=_mean(o.mc2 for o in outcomes),
        fixed=fixed,
        broken=broken,
    )


def of_form(outcomes: Sequence[Outcome], form: Form) -> list[Outcome]:
    """The multiple-choice or the binary items."""
    return [o for o in outcomes if o.label.form == form]


def early(outcomes: Sequence[Outcome]) -> Early:
    """What `early` did, beside the baselines that belong with it (method, section 6)."""
    fired = [o for o in outcomes if o.decision.operator == "early"]
    return Early(
        items=len(fired),
        base=_mean(o.mc1_base for o in fired),
        early=_mean(o.mc1 for o in fired),
        blind=_mean(mc1(_blind(o), _truth(o.item)) for o in fired),
        shortest=_mean(mc1([-len(c) for c in o.item.candidates], _truth(o.item)) for o in fired),
    )


def worked(outcomes: Sequence[Outcome]) -> dict[str, Outcome]:
    """Three items by a rule, not by hand: the first fixed, broken and held back, if any."""
    rules: dict[str, Callable[[Outcome], bool]] = {
        "first item that correction repairs": lambda o: o.mc1 > o.mc1_base,
        "first item that correction breaks": lambda o: o.mc1 < o.mc1_base,
        "first item where a gate holds another answer back": lambda o: o.held,
    }
    firsts = {name: next(filter(rule, outcomes), None) for name, rule in rules.items()}
    return {name: first for name, first in firsts.items() if first is not None}


def _judge(item: Item, label: Label, decision: Decision) -> Outcome:
    base, corrected, truth = decision.base_scores, decision.scores, _truth(item)
    return Outcome(
        item,
        label,
        decision,
        mc1_base=mc1(base, truth),
        mc1=mc1(corrected, truth),
        mc2_base=mc2(base, truth),
        mc2=mc2(corrected, truth),
    )


def _truth(item: Item) -> tuple[bool, ...]:
    assert item.truthful is not None
    return item.truthful


def _blind(outcome: Outcome) -> np.ndarray:
    assert outcome.decision.blind_scores is not None
    return outcome.decision.blind_scores


def _mean(values: Iterable[float]) -> float:
    listed = list(values)
    return float(np.mean(listed)) if listed else float("nan")
