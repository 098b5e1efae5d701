"""Figures of TRACE on a real model and `everyday`: beside baselines, by operator, by depth."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from lastword.benchmarks.everyday import EVERYDAY
from lastword.demo.certificate import TERMS, certificate
from lastword.demo.outcome import Outcome, average, score
from lastword.evaluation.statistics import Gains, Judgement, judge
from lastword.records.metrics import Numbers, pair_accuracy
from lastword.rule.geometry import margin
from lastword.text.items import Item
from lastword.trust.summary import summary

if TYPE_CHECKING:
    from lastword.tracer import Tracer

Outcomes = Sequence[Outcome]

SORTS = ("plain", "popular", "pair")
MODEL, TRACE = "the model", "TRACE"

# Whoever chooses among the candidates, and by what scores.
_CHOOSERS: dict[str, Callable[[Outcome], Numbers]] = {
    MODEL: lambda o: o.decision.base_scores,
    TRACE: lambda o: o.decision.scores,
    "question left out": lambda o: o.blind,
    "shortest candidate": lambda o: o.shortness,
    "longest candidate": lambda o: [-value for value in o.shortness],
    "first candidate": lambda o: [-place for place in range(len(o.item.candidates))],
}


@dataclass(frozen=True)
class Right:
    """Shares of right answers of one way of choosing, in [0, 1].

    Attributes:
        mc1: Over all items.
        sorts: MC1 by sort of item.
        pairs: Share of pairs with both items right.
    """

    mc1: float
    sorts: dict[str, float]
    pairs: float


@dataclass(frozen=True)
class Share:
    """The items that one operator decides; shares in [0, 1]."""

    items: int
    mc1_base: float
    mc1: float
    fixed: int
    broken: int
    mc1_blind: float


@dataclass(frozen=True)
class Depths:
    """Every depth of the model read as if it were the last.

    Attributes:
        mc1: Its MC1.
        alike: Share of pairs whose two questions get the same answer.
        apart: Distance of the best from the second best candidate in nats, the median item's.
        decided: Items of pairs that `decisive` decides.
        decided_alike: Those where its depth gives the pair's other question the same answer.
    """

    mc1: list[float]
    alike: list[float]
    apart: list[float]
    decided: int
    decided_alike: int


@dataclass(frozen=True)
class Figures:
    """A real model on `everyday`.

    Attributes:
        model: Its name.
        invariant: I(M).
        items: How many there are.
        pairs: Pairs among them.
        choosers: By whoever chooses.
        operators: By the operator that decides.
        depths: By depth.
        judgement: Whether correction helps.
        certificate: What `lastword certify` says of these items, a line each.
    """

    model: str
    invariant: float
    items: int
    pairs: int
    choosers: dict[str, Right]
    operators: dict[str, Share]
    depths: Depths
    judgement: Judgement
    certificate: list[str]


def everyday() -> list[Item]:
    """The items of `everyday` under its default template."""
    return EVERYDAY.load().items(EVERYDAY.template())


def figures(tracer: "Tracer", outcomes: Outcomes) -> Figures:
    """All that the demo says of a model's answers to `everyday`."""
    model = str(tracer.source["model"])
    first = np.array([o.gain for o in outcomes])
    second = np.array([o.mc2 - o.mc2_base for o in outcomes])
    return Figures(
        model=model,
        invariant=tracer.invariant,
        items=len(outcomes),
        pairs=len(_pairs(outcomes)),
        choosers={name: _right(outcomes, scores) for name, scores in _CHOOSERS.items()},
        operators=_operators(outcomes),
        depths=_depths(outcomes),
        judgement=judge([Gains(model, EVERYDAY.name, first, second)])[0],
        certificate=_certificate(tracer, outcomes),
    )


def _right(outcomes: Outcomes, scores: Callable[[Outcome], Numbers]) -> Right:
    rights = {str(o.item.id): o.mc1_of(scores(o)) for o in outcomes}
    return Right(
        mc1=average(rights.values()),
        sorts={
            sort: average(right for id, right in rights.items() if id.startswith(sort))
            for sort in SORTS
        },
        pairs=pair_accuracy(list(rights), list(rights.values())),
    )


def _operators(outcomes: Outcomes) -> dict[str, Share]:
    names = dict.fromkeys(o.decision.operator for o in outcomes)
    return {name: _share([o for o in outcomes if o.decision.operator == name]) for name in names}


def _share(some: Outcomes) -> Share:
    s, blind = score(some), average(o.mc1_of(o.blind) for o in some)
    return Share(s.items, s.mc1_base, s.mc1, s.fixed, s.broken, blind)


def _pairs(outcomes: Outcomes) -> list[tuple[Outcome, Outcome]]:
    by_id = {str(o.item.id): o for o in outcomes}
    stems = [id.removesuffix("/a") for id in by_id if id.endswith("/a")]
    return [(by_id[f"{stem}/a"], by_id[f"{stem}/b"]) for stem in stems]


def _depths(outcomes: Outcomes) -> Depths:
    pairs = _pairs(outcomes)
    depths = range(outcomes[0].decision.trajectory.shape[1])
    verdicts = [
        _alike(a, b, layer)
        for a, b in pairs
        for o in (a, b)
        if o.decision.operator == "decisive" and (layer := o.decision.decisive_layer) is not None
    ]
    return Depths(
        mc1=[average(o.mc1_of(_at(o, depth)) for o in outcomes) for depth in depths],
        alike=[average(_alike(a, b, depth) for a, b in pairs) for depth in depths],
        apart=[float(np.median([margin(_at(o, depth)) for o in outcomes])) for depth in depths],
        decided=len(verdicts),
        decided_alike=sum(verdicts),
    )


def _alike(one: Outcome, other: Outcome, depth: int) -> bool:
    """True if a depth gives both questions of a pair the same answer."""
    return bool(_at(one, depth).argmax() == _at(other, depth).argmax())


def _at(outcome: Outcome, depth: int) -> np.ndarray:
    return outcome.decision.trajectory[:, depth]


def _certificate(tracer: "Tracer", outcomes: Outcomes) -> list[str]:
    finding = certificate(tracer, outcomes, TERMS)
    return summary(finding, str(tracer.source["model"]), [EVERYDAY.name], failed=0)
